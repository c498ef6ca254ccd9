// LiveStats: the router's last two minutes, per second: throughput, TTFT, TPOT, errors, and KV
// transfers. For the status page and `aisp top`; Prometheus has the long term. Fixed memory. Plain
// state without I/O; the router's thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/clock.h"
#include "frontend/answer_sink.h"

namespace aisp {

// Counts durations in buckets that grow by a factor of 1.25, from 0.1 ms to over two minutes;
// percentiles are exact within 12 %.
class LatencyCounts {
 public:
  static constexpr size_t kBuckets = 64;
  void Add(double ms);
  void Add(const LatencyCounts& other);
  uint64_t total() const { return total_; }
  // 0 when there are no counts.
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
  // A request that has ended. `ttft_ms` and `tpot_ms` below 0: not measured.
  struct Ended {
    bool ok = false;
    bool cancelled = false;
    double ttft_ms = -1;
    double tpot_ms = -1;
  };
  void Finished(const Ended& ended);
  // Counts a prompt's KV written by `from` into `to`.
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
  // Rates over the last whole `seconds`.
  Rates Over(int64_t seconds) const;
  // The last `seconds` whole seconds, oldest first. Each latency covers kSmoothSeconds.
  std::vector<Rates> Series(int64_t seconds) const;
  // By {from, to, transport}; since the start.
  const std::map<std::array<std::string, 3>, Path>& paths() const { return paths_; }

 private:
  struct Second {
    int64_t number = -1;  // seconds since the clock's start; a slot with another number is stale
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
