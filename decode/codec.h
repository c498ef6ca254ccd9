// Converts between wire messages and the engine's plain values. Pure functions: any thread.
#pragma once

#include "common/result.h"
#include "common/shared_tokens.h"
#include "engine/request.h"
#include "worker.pb.h"

namespace aisp {

// Without deadline and KV source, which the role decides. `shared`: tokens that precede the
// message's.
SequenceRequest SequenceFromWire(const v1::GenerateRequest& wire, const SharedTokens& shared);

v1::FinishReason FinishToWire(FinishReason reason);

// Sets whether another worker may succeed with the same request.
void ErrorToWire(const Error& error, Fault fault, v1::Error* wire);

// Adds `output` to `event`, which is empty or holds earlier tokens of the same sequence.
void DraftsToWire(const DraftCounts& drafts, v1::DraftCounts* wire);
void AppendOutput(const TokenOutput& output, v1::TokenEvent* event);

}  // namespace aisp
