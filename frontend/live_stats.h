// LiveStats: what a router has served in the last two minutes, second by second: throughput, TTFT,
// TPOT, errors, and where KV blocks moved. For people who look now (the page, `aisp top`);
// Prometheus has the long run. Memory is fixed. Plain state without I/O; the router's thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/clock.h"
#include "frontend/answer_sink.h"

namespace aisp {

// Counts of durations in buckets that grow by a quarter: 0.1 ms to more than two minutes, a
// percentile within 12 %.
class LatencyCounts {
 public:
  static constexpr size_t kBuckets = 64;
  void Add(double ms);
  void Add(const LatencyCounts& other);
  uint64_t total() const { return total_; }
  // 0 when there is none.
  double PercentileMs(double fraction) const;

 private:
  std::array<uint32_t, kBuckets> counts_{};
  uint64_t total_ = 0;
};

class LiveStats {
 public:
  static constexpr int64_t kSeconds = 120;
  static constexpr int64_t kSmoothSeconds = 5;
  static constexpr size_t kMaxPaths = 256;

  explicit LiveStats(const Clock* clock) : clock_(clock), started_(clock->Now()) {}

  void Started() { ++active_; }
  void Tokens(uint32_t count) { Now().tokens += count; }
  // One request has ended. `ttft_ms` and `tpot_ms` below 0: it had none.
  struct Ended {
    bool ok = false;
    bool cancelled = false;
    double ttft_ms = -1;
    double tpot_ms = -1;
  };
  void Finished(const Ended& ended);
  // KV of one prompt was written by `from` into `to`.
  void Moved(const std::string& from, const std::string& to, const std::string& transport,
             uint32_t blocks);

  struct Path {
    uint64_t requests = 0;
    uint64_t blocks = 0;
  };
  struct Rates {
    double tokens_per_s = 0;
    double requests_per_s = 0;
    double errors_per_s = 0;
    LatencyCounts ttft;
    LatencyCounts tpot;
  };
  uint64_t active() const { return active_; }
  Duration uptime() const { return clock_->Now() - started_; }
  // Over the last whole `seconds`.
  Rates Over(int64_t seconds) const;
  // Of the last `seconds` whole seconds, oldest first. Latencies are those of kSmoothSeconds.
  std::vector<Rates> Series(int64_t seconds) const;
  // {from, to, transport}; since the start.
  const std::map<std::array<std::string, 3>, Path>& paths() const { return paths_; }

 private:
  struct Second {
    int64_t number = -1;  // since the clock's start; others are of an earlier round
    uint64_t tokens = 0;
    uint64_t requests = 0;
    uint64_t errors = 0;
    LatencyCounts ttft;
    LatencyCounts tpot;
  };
  Second& Now();
  int64_t Number() const { return clock_->Now().ns / 1'000'000'000; }
  const Second* At(int64_t number) const;

  const Clock* const clock_;
  const Instant started_;
  uint64_t active_ = 0;
  std::array<Second, kSeconds + 1> seconds_;
  std::map<std::array<std::string, 3>, Path> paths_;
};

}  // namespace aisp
