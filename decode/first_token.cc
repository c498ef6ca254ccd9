#include "decode/first_token.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace aisp {

bool MayBeDrawnElsewhere(const SequenceRequest& request) {
  // The engine has not validated these numbers yet.
  const auto generated =
      static_cast<int64_t>(request.tokens.size()) - int64_t{request.prompt_tokens};
  const bool draws = request.pooling == Pooling::kNone && generated < request.max_new_tokens;
  return draws && request.guide == nullptr;
}

Status CheckDrawn(const v1::DrawnToken& drawn, const v1::FirstDraw& asked, int64_t generated,
                  int32_t vocabulary) {
  const int32_t num_logprobs = asked.sampling().num_logprobs();
  const auto known = [vocabulary](int32_t token) { return token >= 0 && token < vocabulary; };
  if (!known(drawn.token())) {
    return DataLoss(fmt::format("data loss: the first token is {}, of a vocabulary of {}",
                                drawn.token(), vocabulary));
  }
  const auto& stops = asked.stop_token_ids();
  if (generated < int64_t{asked.min_new_tokens()} &&
      std::find(stops.begin(), stops.end(), drawn.token()) != stops.end()) {
    return DataLoss(
        fmt::format("data loss: the first token is {}, which may not come yet", drawn.token()));
  }
  // Logprobs of at most 0, with a tolerance for rounding.
  const auto logprob = [](float value) { return std::isfinite(value) && value < 0.1f; };
  const v1::TokenLogprobs& logprobs = drawn.logprobs();
  const bool fits = drawn.has_logprobs() == (num_logprobs >= 0) &&
                    logprobs.top_ids_size() == logprobs.top_logprobs_size() &&
                    logprobs.top_ids_size() <= std::max(0, num_logprobs) &&
                    std::all_of(logprobs.top_ids().begin(), logprobs.top_ids().end(), known);
  const bool sane =
      logprob(logprobs.logprob()) &&
      std::all_of(logprobs.top_logprobs().begin(), logprobs.top_logprobs().end(), logprob);
  if (!sane) return DataLoss("data loss: a logprob of the first token is none");
  if (fits) return {};
  return DataLoss(
      fmt::format("data loss: the first token came with {} likeliest tokens where {} were asked "
                  "for",
                  drawn.has_logprobs() ? logprobs.top_ids_size() : -1, num_logprobs));
}

}  // namespace aisp
