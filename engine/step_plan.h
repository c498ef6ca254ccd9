// StepPlan: what one step will compute, as data. Plan() is a pure function from a snapshot of the engine, so a scheduling
// decision can be tested, logged and replayed without an engine. It allocates no block: it counts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"

namespace aisp {

enum class SequencePhase : uint8_t {
  kWaiting,     // no blocks yet, or preempted
  kRunning,     // holds blocks; prefilling or decoding
  kAwaitingKv,  // a remote writer fills its blocks; not schedulable
};

// One sequence as the scheduler sees it. Lengths count tokens that are in flight as if they were there.
struct SequenceView {
  SequenceId id;
  SequencePhase phase = SequencePhase::kWaiting;
  bool gated = false;          // may not start yet (prefill-only, waiting for the reader's blocks)
  int32_t target_tokens = 0;   // tokens whose KV is wanted: all known ones (prefill-only: tokens - 1)
  int32_t computed_tokens = 0; // KV done or in flight
  int32_t cached_tokens = 0;   // waiting only: length of the prefix match it would start with
  int32_t cached_free_blocks = 0;  // waiting only: how many of the matched blocks count as available now
  int32_t blocks_held = 0;
  bool samples = true;         // draws a token once computed == target
  bool token_in_flight = false;  // its next input token is still on the device
  int32_t priority = 0;
  uint64_t arrival = 0;        // smaller came earlier
};

struct EngineSnapshot {
  std::span<const SequenceView> sequences;  // any order
  int32_t available_blocks = 0;
  int32_t block_tokens = 16;
};

struct ScheduleLimits {
  int32_t max_batch_tokens = 512;    // token budget of a step (chunked prefill)
  int32_t max_sequences = 64;        // rows sets in a step = running sequences
  int32_t max_prefill_chunk = 512;   // largest chunk of one sequence
  int32_t watermark_blocks = 1;      // kept free for running sequences when admitting a waiting one
};

struct PlannedSequence {
  SequenceId id;
  int32_t token_begin = 0;  // first position computed in this step
  int32_t num_tokens = 0;
  int32_t new_blocks = 0;   // to reserve before launch (after the prefix match, for a starting sequence)
  bool starts = false;      // was waiting: match the prefix first
  bool samples = false;     // draws a token at the end of these rows
};

struct StepPlan {
  std::vector<SequenceId> preempt;         // drop their blocks first, newest and lowest priority first
  std::vector<PlannedSequence> sequences;  // decodes first, then prefill chunks
  int32_t num_tokens = 0;
  bool empty() const { return sequences.empty() && preempt.empty(); }
};

// Running decodes first (each one row), then running prefills, then waiting sequences by (priority, arrival), within the
// token budget and the block count. When a running sequence cannot get its next block, the lowest-priority newest running
// one is preempted, never one that is already in the plan, never the oldest. Pure and deterministic.
StepPlan PlanStep(const EngineSnapshot& snapshot, const ScheduleLimits& limits);

}  // namespace aisp
