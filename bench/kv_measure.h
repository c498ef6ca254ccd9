// What `aisp bench kv` measures of a lane or a reference: one write alone, and several in flight.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "bench/kv.h"
#include "common/clock.h"
#include "kvcache/transport/kv_transport.h"

namespace aisp {

inline constexpr size_t kKvUnderWay = 8;
// A lane and its reference are measured in many short turns: throughput between two processes
// changes within a second, with the cores and pages that they get.
inline constexpr Duration kKvTurn = std::chrono::milliseconds(80);

// Starts writes, and counts those that have ended.
struct KvPump {
  std::function<Status(size_t round)> start;
  std::function<Result<size_t>()> ended;  // waits for at least one
  pid_t owner = 0;                        // the other process, if any
};

// Blocks of both pools in random order, different for each round.
class KvScatter {
 public:
  KvScatter(const KvWriteShape& shape, uint64_t pool_bytes);
  std::vector<BlockCopy> Copies(size_t round) const;

 private:
  const KvWriteShape shape_;
  std::vector<size_t> order_;
};

// `lane` names the row.
Result<KvBenchRow> MeasureKv(const std::string& lane, const KvWriteShape& shape, const KvPump& pump,
                             Duration at_least = kKvTurn);
// The median of each figure over the turns.
KvBenchRow MediansOf(std::vector<KvBenchRow> turns);

}  // namespace aisp
