// Sampler: draws a token from a row of logits on the host, as engine/request.h defines it.
//
// Order: repetition penalty, presence and frequency penalties, bias, bans, mask; temperature;
// top_k, top_p, min_p; then the argmax of log p + Gumbel noise keyed by (seed, choice, position,
// token), so a draw depends on no earlier draw. Ties: the lower token id. Logprobs are of the
// model's own distribution, before all of this; with a mask, over the allowed tokens.
//
// Scratch memory is allocated once; one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/executor.h"

namespace aisp {

// Why a row got no token; every backend uses the same text.
Error NotFiniteError(uint32_t position);
Error NothingLeftError();
// Whether this row's logits are changed before the draw.
bool EditsLogits(const SampleRow& row);

class Sampler {
 public:
  explicit Sampler(int32_t vocabulary);

  // `logits`: [vocabulary]. The token's status is INTERNAL when a logit is NaN or infinite,
  // INVALID_ARGUMENT when bans and biases leave nothing.
  SampledToken Sample(std::span<const float> logits, const SampleRow& row);
  // Logprobs of `token` and of the `count` likeliest tokens, by the model's own distribution.
  static TokenLogprob Logprobs(std::span<const float> logits, TokenId token, int32_t count);
  // The same, given log(sum(exp(logits))).
  static TokenLogprob Logprobs(std::span<const float> logits, double log_sum, TokenId token,
                               int32_t count);
  // The same over the tokens that `mask` allows; empty: over all.
  static TokenLogprob LogprobsUnder(std::span<const uint32_t> mask, std::span<const float> logits,
                                    TokenId token, int32_t count);
  // Scores the known token of a row that draws nothing; INTERNAL when a logit is NaN or infinite.
  static RowScore Score(std::span<const float> logits, const ScoredRow& row);

 private:
  void EditLogits(const SampleRow& row);
  void Penalise(const SampleRow& row);
  static void Constrain(std::span<const uint32_t> mask, std::span<float> scores);
  // Sets candidates_ to the tokens that pass the filters, ascending.
  void Filter(const SamplingParams& params, float max);
  void SortCandidates(size_t n);
  TokenId Draw(const SamplingParams& params, uint32_t position, float max) const;

  std::vector<float> scores_;        // edited logits, then divided by the temperature
  std::vector<float> weights_;       // exp(score - max)
  std::vector<int32_t> candidates_;  // token ids
  std::vector<int32_t> counts_;      // of each token in `generated`; all zero between calls
  std::vector<uint8_t> seen_;        // in prompt or `generated`; all zero between calls
};

}  // namespace aisp
