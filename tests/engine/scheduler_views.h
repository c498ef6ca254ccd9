// Sequence views for tests of the scheduler.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/step_plan.h"

namespace aisp {

inline constexpr int32_t kBlock = 16;

inline int32_t BlocksFor(int32_t tokens) { return (tokens + kBlock - 1) / kBlock; }

inline SequenceView Waiting(uint64_t arrival, int32_t tokens) {
  SequenceView v;
  v.id = SequenceId(arrival);
  v.arrival = arrival;
  v.target_tokens = tokens;
  return v;
}

inline SequenceView Prefilling(uint64_t arrival, int32_t tokens, int32_t computed) {
  SequenceView v = Waiting(arrival, tokens);
  v.phase = SequencePhase::kRunning;
  v.computed_tokens = computed;
  v.blocks_held = BlocksFor(tokens);
  return v;
}

// Its next token goes to position `tokens - 1`.
inline SequenceView Decoding(uint64_t arrival, int32_t tokens) {
  SequenceView v = Prefilling(arrival, tokens, tokens - 1);
  v.blocks_held = BlocksFor(tokens - 1);
  return v;
}

inline StepPlan Plan(std::vector<SequenceView> views, int32_t available,
                     const ScheduleLimits& limits = {}) {
  return PlanStep(EngineSnapshot{views, available, kBlock}, limits);
}

inline std::vector<uint64_t> Ids(const StepPlan& plan) {
  std::vector<uint64_t> ids;
  for (const auto& s : plan.sequences) ids.push_back(s.id.value);
  return ids;
}
inline std::vector<uint64_t> Preempted(const StepPlan& plan) {
  std::vector<uint64_t> ids;
  for (SequenceId id : plan.preempt) ids.push_back(id.value);
  return ids;
}

}  // namespace aisp
