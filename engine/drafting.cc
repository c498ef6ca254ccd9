#include "engine/drafting.h"

#include <algorithm>
#include <cmath>

namespace aisp {
namespace {

bool ReadsGenerated(const SamplingParams& p) {
  return p.presence_penalty != 0 || p.frequency_penalty != 0 ||
         (p.repetition_penalty != 1 && p.repetition_penalty != 0);
}

// Logprob over the head's own logits, which are fewer than the target's vocabulary.
float LogprobOf(float logit, std::span<const float> own) {
  const float most = *std::max_element(own.begin(), own.end());
  float sum = 0;
  for (const float each : own) sum += std::exp(each - most);
  return logit - most - std::log(sum);
}

}  // namespace

SampledToken DrawDrafted(Sampler& sampler, std::span<const float> own, std::span<const float> all,
                         const SampleRow& row) {
  SampledToken token = sampler.Sample(all, row);
  if (!token.status || token.token < 0) return token;
  if (row.mask.empty()) {
    token.logprob = TokenLogprob{LogprobOf(all[static_cast<size_t>(token.token)], own), {}};
  } else {
    token.logprob = sampler.LogprobsUnder(row.mask, all, token.token, 0);
  }
  return token;
}

SamplingParams DraftSampling(const SamplingParams& target) {
  SamplingParams own = target;
  own.num_logprobs = 0;
  return own;
}

void Drafting::Begin() {
  if (ReadsGenerated(*sampling))
    generated.assign(context->tokens.begin() + context->prompt_tokens, context->tokens.end());
}

SampleRow Drafting::Draw(int32_t logit_index, int32_t slot, int32_t ahead) const {
  const auto prompt = static_cast<size_t>(context->prompt_tokens);
  const auto drawn =
      static_cast<int32_t>(context->tokens.size() - prompt + draft->tokens.size()) + ahead;
  SampleRow row;
  row.logit_index = logit_index;
  row.slot = slot;
  row.position = static_cast<uint32_t>(context->prompt_tokens + drawn);
  row.params = sampling;
  row.prompt = context->tokens.first(prompt);
  row.generated = ReadsGenerated(*sampling) ? std::span<const TokenId>(generated)
                                            : context->tokens.subspan(prompt);
  if (context->request != nullptr) {
    if (drawn < context->request->min_new_tokens) row.banned = context->request->stop_token_ids;
    if (context->request->guide != nullptr) row.mask = context->request->guide->Allowed();
  }
  return row;
}

bool Drafting::DrawsAhead() const {
  const bool guided = context->request != nullptr && context->request->guide != nullptr;
  return !guided && !ReadsGenerated(*sampling);
}

void Drafting::Take(const SampledToken& sampled, float min_probability) {
  done = true;
  if (!sampled.status || sampled.token < 0) return;
  if (const SequenceRequest* const request = context->request; request != nullptr) {
    const auto& stops = request->stop_token_ids;
    if (std::find(stops.begin(), stops.end(), sampled.token) != stops.end()) return;
    if (DrawGuide* const guide = request->guide.get(); guide != nullptr) {
      if (!guide->Take(sampled.token)) return;
      ++taken;
      if (guide->AtEnd()) return;
    }
  }
  const float sure =
      sampled.logprob ? std::clamp(std::exp(sampled.logprob->logprob), 0.0f, 1.0f) : 0.5f;
  draft->Add(sampled.token, sure);
  if (ReadsGenerated(*sampling)) generated.push_back(sampled.token);
  together *= sure;
  done = static_cast<int32_t>(draft->tokens.size()) >= limit || together < min_probability;
}

void Drafting::End() {
  if (taken > 0) context->request->guide->Rewind(static_cast<size_t>(taken));
  taken = 0;
}

}  // namespace aisp
