#include "engine/draw_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace aisp {
namespace {

// Far beyond the APIs' limits, yet small enough to be summed.
constexpr float kMostEdit = 1e6f;
constexpr int32_t kMostLogprobs = 1024;

// Below it draws are greedy anyway, and logits divided by it may overflow.
constexpr float kLeastTemperature = 1e-5f;
// Any smaller value makes no difference to draws.
constexpr float kLeastRepetitionPenalty = 1e-3f;

Status Within(std::string_view name, float value, float least, float most) {
  // Written this way round so that NaN fails.
  if (value >= least && value <= most) return {};
  return InvalidArgument(
      fmt::format("{} is {} and must be within [{}, {}]", name, value, least, most));
}

Status AtMost(std::string_view name, size_t count, size_t most) {
  if (count <= most) return {};
  return InvalidArgument(
      fmt::format("{} has {} tokens, and the vocabulary has {}", name, count, most));
}

}  // namespace

Status CheckDraws(const SequenceRequest& request, int32_t vocabulary) {
  const SamplingParams& p = request.sampling;
  AISP_RETURN_IF_ERROR(Within("temperature", p.temperature, 0, kMostEdit));
  AISP_RETURN_IF_ERROR(Within("top_p", p.top_p, 0, 1));
  AISP_RETURN_IF_ERROR(Within("min_p", p.min_p, 0, 1));
  AISP_RETURN_IF_ERROR(Within("presence_penalty", p.presence_penalty, -kMostEdit, kMostEdit));
  AISP_RETURN_IF_ERROR(Within("frequency_penalty", p.frequency_penalty, -kMostEdit, kMostEdit));
  AISP_RETURN_IF_ERROR(Within("repetition_penalty", p.repetition_penalty, 0, kMostEdit));
  for (const auto& [token, bias] : p.logit_bias)
    AISP_RETURN_IF_ERROR(
        Within(fmt::format("logit_bias of token {}", token), bias, -kMostEdit, kMostEdit));
  const auto tokens = static_cast<size_t>(vocabulary);
  AISP_RETURN_IF_ERROR(AtMost("logit_bias", p.logit_bias.size(), tokens));
  AISP_RETURN_IF_ERROR(AtMost("stop_token_ids", request.stop_token_ids.size(), tokens));
  const int32_t logprobs = std::max(p.num_logprobs, request.prompt_logprobs);
  if (logprobs <= kMostLogprobs) return {};
  return InvalidArgument(fmt::format("{} likeliest tokens are asked for, and {} are the most",
                                     logprobs, kMostLogprobs));
}

void FitDraws(SamplingParams* sampling) {
  if (sampling->temperature < kLeastTemperature) sampling->temperature = 0;
  if (sampling->repetition_penalty > 0)
    sampling->repetition_penalty = std::max(sampling->repetition_penalty, kLeastRepetitionPenalty);
}

}  // namespace aisp
