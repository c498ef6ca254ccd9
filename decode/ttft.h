// TTFT in parts that add up to what the request saw, all on the decode worker's clock. What a prefill worker reports are
// durations on its own clock; they are cut so that the parts never exceed the whole. Pure functions: any thread.
#pragma once

#include <string>

#include "common.pb.h"
#include "common/clock.h"
#include "engine/engine.h"

namespace aisp {

// What is known of a remote prefill when its KV has arrived.
struct RemotePrefill {
  Instant asked = kNever;   // PrefillRequest was sent
  Instant filled = kNever;  // all KV acknowledged here
  Duration queue{};         // on the prefill worker, its clock
  Duration prefill{};       // likewise
  uint32_t cached_tokens = 0;
  uint32_t blocks = 0;
  std::string transport;
};

// queue + prefill + transfer + first_decode == times.first_token - received, exactly, none negative.
v1::Timing LocalTiming(Instant received, const SequenceTimes& times);
v1::Timing RemoteTiming(Instant received, const SequenceTimes& times, const RemotePrefill& remote);

}  // namespace aisp
