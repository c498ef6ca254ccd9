// The parts of TTFT, which add up to the request's TTFT on the decode worker's clock. A prefill
// worker reports durations on its own clock; they are cut so that the parts never exceed the whole.
// Pure functions: any thread.
#pragma once

#include <string>
#include <vector>

#include "common.pb.h"
#include "common/clock.h"
#include "decode/prefix_puller.h"
#include "engine/engine.h"
#include "worker/trace_spans.h"

namespace aisp {

// A failed attempt at a remote prefill.
struct FailedAttempt {
  Instant began;  // of dialling or asking
  Instant failed;
  std::string address;
  std::string why;
};

// What is known of a remote prefill when its KV has arrived.
struct RemotePrefill {
  Instant asked = kNever;   // when PrefillRequest was sent
  Instant filled = kNever;  // when all KV was acknowledged here
  Duration queue{};         // on the prefill worker's clock
  Duration prefill{};       // likewise
  Duration moving{};        // likewise: from first to last write, overlapped or not
  Duration tail{};          // likewise: from the end of compute to the last write, at least 0
  bool drawn = false;       // the first token came with the KV
  uint32_t cached_tokens = 0;
  uint32_t blocks = 0;
  uint32_t preemptions = 0;
  std::string transport;
  std::string worker;                    // that computed it
  std::vector<v1::TraceSpan> its_spans;  // relative to `asked`
  v1::PrefixPull pull;                   // of a prefix, by the prefill worker
};

// queue + prefill + transfer + first_decode == times.first_token - received, exactly; none
// negative.
v1::Timing LocalTiming(Instant received, const SequenceTimes& times);
v1::Timing RemoteTiming(Instant received, const SequenceTimes& times, const RemotePrefill& remote);

v1::PrefixPull PullToWire(const PullOutcome& pulled);
// Adds the outcome of a pull. If the prompt was then computed here, its time counts as transfer
// instead of queue.
void AddPull(const PullOutcome& pulled, v1::Timing* timing);
// Overlaps the parts; its note says where the prefix came from, or why it did not.
void AppendPullSpan(Instant received, const PullOutcome& pulled, v1::Timing* timing);

// The parts of `timing` as spans, in order and without gaps; below "prefill" the chunks, computed
// by `worker` or the prefill worker; and the failed attempts. Relative to `received`.
void AppendSpans(Instant received, const SequenceTimes& times, const RemotePrefill* remote,
                 const std::vector<FailedAttempt>& failed, const std::string& worker,
                 v1::Timing* timing);

}  // namespace aisp
