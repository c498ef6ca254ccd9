// TTFT in parts that add up to what the request saw, all on the decode worker's clock. What a
// prefill worker reports are durations on its own clock; they are cut so that the parts never
// exceed the whole. Pure functions: any thread.
#pragma once

#include <string>
#include <vector>

#include "common.pb.h"
#include "common/clock.h"
#include "decode/prefix_puller.h"
#include "engine/engine.h"
#include "worker/trace_spans.h"

namespace aisp {

// An attempt at a remote prefill that failed.
struct FailedAttempt {
  Instant began;  // dialling it, or asking
  Instant failed;
  std::string address;
  std::string why;
};

// What is known of a remote prefill when its KV has arrived.
struct RemotePrefill {
  Instant asked = kNever;   // PrefillRequest was sent
  Instant filled = kNever;  // all KV acknowledged here
  Duration queue{};         // on the prefill worker, its clock
  Duration prefill{};       // likewise
  Duration moving{};        // likewise: from the first write to the last, hidden or not
  Duration tail{};          // likewise: from the end of computing to the last write, at least 0
  bool drawn = false;       // the first token came with it
  uint32_t cached_tokens = 0;
  uint32_t blocks = 0;
  uint32_t preemptions = 0;
  std::string transport;
  std::string worker;                    // who computed it
  std::vector<v1::TraceSpan> its_spans;  // counted from `asked`
  v1::PrefixPull pull;                   // of a prefix, by the prefill worker
};

// queue + prefill + transfer + first_decode == times.first_token - received, exactly, none
// negative.
v1::Timing LocalTiming(Instant received, const SequenceTimes& times);
v1::Timing RemoteTiming(Instant received, const SequenceTimes& times, const RemotePrefill& remote);

v1::PrefixPull PullToWire(const PullOutcome& pulled);
// What came of a pull. The time that it took is transfer instead of queue, as far as the prompt
// was then computed here.
void AddPull(const PullOutcome& pulled, v1::Timing* timing);
// Lies over the parts; its note says where the prefix came from, or why it did not.
void AppendPullSpan(Instant received, const PullOutcome& pulled, v1::Timing* timing);

// The parts of `timing` as spans, in order and without gaps; below "prefill" the chunks that were
// computed, by `worker` itself or by the prefill worker; and the attempts that failed. Counted from
// `received`.
void AppendSpans(Instant received, const SequenceTimes& times, const RemotePrefill* remote,
                 const std::vector<FailedAttempt>& failed, const std::string& worker,
                 v1::Timing* timing);

}  // namespace aisp
