// Benefits and costs of speculation, under vLLM's metric names. Handles are fetched once; the
// engine thread. Without a Metrics it counts nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/metrics.h"
#include "engine/engine.h"

namespace aisp {

class SpeculationMetrics {
 public:
  SpeculationMetrics() = default;
  SpeculationMetrics(Metrics& m, const MetricLabels& labels);

  // Call after every Collect. `speculator` may be null.
  void Record(const CollectOutput& out, const Speculator* speculator);

 private:
  // Positions of a draft counted separately, as many as the longest draft has.
  static constexpr size_t kPositions = 32;

  struct Handles {
    Counter drafts, drafted, accepted, seconds, failed, slow;
    Histogram acceptance_length, chosen_length;
    std::vector<Counter> accepted_at;
  };
  std::optional<Handles> handles_;
  uint64_t failed_recorded_ = 0, slow_recorded_ = 0;
};

}  // namespace aisp
