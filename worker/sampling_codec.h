// Converts sampling parameters and drawn tokens between wire messages and the engine's plain
// values. Pure functions: any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "common.pb.h"
#include "engine/executor.h"
#include "engine/request.h"
#include "kv.pb.h"

namespace aisp {

SamplingParams SamplingFromWire(const v1::SamplingParams& wire, uint32_t choice);

void LogprobToWire(const TokenLogprob& logprob, v1::TokenLogprobs* wire);
TokenLogprob LogprobFromWire(const v1::TokenLogprobs& wire);

// For a prefill worker that draws the first token of `request`; `sampling`: its parameters as
// received.
v1::FirstDraw FirstDrawToWire(const SequenceRequest& request, const v1::SamplingParams& sampling);
// Makes a prefill-only request draw its first token.
void ApplyFirstDraw(const v1::FirstDraw& wire, SequenceRequest* request);

void DrawnToWire(const TokenOutput& output, v1::DrawnToken* wire);
SampledToken DrawnFromWire(const v1::DrawnToken& wire);

}  // namespace aisp
