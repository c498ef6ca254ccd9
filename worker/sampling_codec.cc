#include "worker/sampling_codec.h"

#include <algorithm>

namespace aisp {

SamplingParams SamplingFromWire(const v1::SamplingParams& wire, uint32_t choice) {
  SamplingParams params;
  params.temperature = wire.temperature();
  params.top_k = wire.top_k();
  params.top_p = wire.top_p() != 0 ? wire.top_p() : 1.0f;  // unset
  params.min_p = wire.min_p();
  params.seed = wire.seed();
  params.choice = choice;
  params.presence_penalty = wire.presence_penalty();
  params.frequency_penalty = wire.frequency_penalty();
  params.repetition_penalty = wire.repetition_penalty() != 0 ? wire.repetition_penalty() : 1.0f;
  for (const auto& [token, bias] : wire.logit_bias()) params.logit_bias.emplace_back(token, bias);
  // A protobuf map is unordered.
  std::sort(params.logit_bias.begin(), params.logit_bias.end());
  params.num_logprobs = wire.num_logprobs();
  return params;
}

void LogprobToWire(const TokenLogprob& logprob, v1::TokenLogprobs* wire) {
  wire->set_logprob(logprob.logprob);
  wire->set_rank(static_cast<uint32_t>(logprob.rank));
  for (const auto& [token, value] : logprob.top) {
    wire->add_top_ids(token);
    wire->add_top_logprobs(value);
  }
}

TokenLogprob LogprobFromWire(const v1::TokenLogprobs& wire) {
  TokenLogprob logprob;
  logprob.logprob = wire.logprob();
  logprob.rank = static_cast<int32_t>(wire.rank());
  const int count = std::min(wire.top_ids_size(), wire.top_logprobs_size());
  for (int i = 0; i < count; ++i) logprob.top.emplace_back(wire.top_ids(i), wire.top_logprobs(i));
  return logprob;
}

v1::FirstDraw FirstDrawToWire(const SequenceRequest& request, const v1::SamplingParams& sampling) {
  v1::FirstDraw wire;
  *wire.mutable_sampling() = sampling;
  wire.set_choice(request.sampling.choice);
  wire.set_prompt_tokens(static_cast<uint32_t>(request.prompt_tokens));
  wire.set_min_new_tokens(static_cast<uint32_t>(request.min_new_tokens));
  // Stop tokens affect a draw only while they are banned.
  if (request.min_new_tokens > 0)
    wire.mutable_stop_token_ids()->Add(request.stop_token_ids.begin(),
                                       request.stop_token_ids.end());
  return wire;
}

void ApplyFirstDraw(const v1::FirstDraw& wire, SequenceRequest* request) {
  request->draws_first = true;
  if (wire.has_sampling()) request->sampling = SamplingFromWire(wire.sampling(), wire.choice());
  request->sampling.choice = wire.choice();
  request->prompt_tokens = static_cast<int32_t>(wire.prompt_tokens());
  request->min_new_tokens = static_cast<int32_t>(wire.min_new_tokens());
  request->stop_token_ids.assign(wire.stop_token_ids().begin(), wire.stop_token_ids().end());
}

void DrawnToWire(const TokenOutput& output, v1::DrawnToken* wire) {
  wire->set_token(output.token);
  if (output.logprob) LogprobToWire(*output.logprob, wire->mutable_logprobs());
}

SampledToken DrawnFromWire(const v1::DrawnToken& wire) {
  SampledToken drawn;
  drawn.token = wire.token();
  if (wire.has_logprobs()) drawn.logprob = LogprobFromWire(wire.logprobs());
  return drawn;
}

}  // namespace aisp
