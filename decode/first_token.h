// The first token drawn by a prefill worker: for which requests it may draw, and validation of what
// it sent. Pure functions: any thread.
#pragma once

#include <cstdint>

#include "common/result.h"
#include "engine/request.h"
#include "kv.pb.h"

namespace aisp {

// A prefill worker knows the tokens and sampling parameters, but not the state of a constraint,
// which only the decode worker has.
bool MayBeDrawnElsewhere(const SequenceRequest& request);

// DATA_LOSS: not a token of the vocabulary, not allowed as the `generated`-th token of the answer,
// or without the requested logprobs.
Status CheckDrawn(const v1::DrawnToken& drawn, const v1::FirstDraw& asked, int64_t generated,
                  int32_t vocabulary);

}  // namespace aisp
