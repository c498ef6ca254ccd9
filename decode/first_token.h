// The first token that a prefill worker draws: of which requests it may, and whether what it
// brought can be what was asked for. Pure functions: any thread.
#pragma once

#include <cstdint>

#include "common/result.h"
#include "engine/request.h"
#include "kv.pb.h"

namespace aisp {

// A prefill worker knows the tokens and the parameters. What else a draw depends on is here alone:
// the state of a constraint.
bool MayBeDrawnElsewhere(const SequenceRequest& request);

// DATA_LOSS: not a token of the vocabulary, one that was not to be drawn as the `generated`-th of
// the answer, or not with the logprobs that were asked for.
Status CheckDrawn(const v1::DrawnToken& drawn, const v1::FirstDraw& asked, int64_t generated,
                  int32_t vocabulary);

}  // namespace aisp
