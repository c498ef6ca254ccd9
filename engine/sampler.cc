#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/check.h"
#include "common/random.h"
#include "engine/logits_row.h"

namespace aisp {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();
// u = (word >> 9 + 0.5) * 2^-23 differs from 1 by at least this (common/random.h).
constexpr float kSmallestGap = 0x1.0p-24f;

bool Filters(const SamplingParams& p, int32_t vocabulary) {
  return (p.top_k > 0 && p.top_k < vocabulary) || p.top_p < 1.0f || p.min_p > 0.0f;
}

}  // namespace

Error NotFiniteError(uint32_t position) {
  return {Code::kInternal,
          fmt::format("the model's logits for position {} are not finite; the request cannot go on",
                      position)};
}

Error NothingLeftError() {
  return {Code::kInvalidArgument,
          "bans, biases and masks leave no token to draw; loosen logit_bias or the stop tokens"};
}

bool EditsLogits(const SampleRow& row) {
  const SamplingParams& p = *row.params;
  return p.presence_penalty != 0 || p.frequency_penalty != 0 ||
         (p.repetition_penalty != 1 && p.repetition_penalty > 0) || !p.logit_bias.empty() ||
         !row.banned.empty() || !row.mask.empty();
}

Sampler::Sampler(int32_t vocabulary)
    : scores_(static_cast<size_t>(vocabulary)),
      weights_(static_cast<size_t>(vocabulary)),
      counts_(static_cast<size_t>(vocabulary)),
      seen_(static_cast<size_t>(vocabulary)) {
  candidates_.reserve(static_cast<size_t>(vocabulary));
}

void Sampler::Penalise(const SampleRow& row) {
  const SamplingParams& p = *row.params;
  const auto known = [&](TokenId t) { return t >= 0 && static_cast<size_t>(t) < scores_.size(); };
  const auto repeat = [&](TokenId t) {
    if (!known(t) || seen_[static_cast<size_t>(t)] != 0) return;
    seen_[static_cast<size_t>(t)] = 1;
    float& score = scores_[static_cast<size_t>(t)];
    score = score > 0 ? score / p.repetition_penalty : score * p.repetition_penalty;
  };
  if (p.repetition_penalty != 1 && p.repetition_penalty > 0) {
    for (TokenId t : row.prompt) repeat(t);
    for (TokenId t : row.generated) repeat(t);
    for (TokenId t : row.prompt) {
      if (known(t)) seen_[static_cast<size_t>(t)] = 0;
    }
    for (TokenId t : row.generated) {
      if (known(t)) seen_[static_cast<size_t>(t)] = 0;
    }
  }
  if (p.presence_penalty == 0 && p.frequency_penalty == 0) return;
  for (TokenId t : row.generated) {
    if (known(t)) ++counts_[static_cast<size_t>(t)];
  }
  for (TokenId t : row.generated) {
    if (!known(t) || counts_[static_cast<size_t>(t)] == 0) continue;
    scores_[static_cast<size_t>(t)] -=
        p.presence_penalty +
        p.frequency_penalty * static_cast<float>(counts_[static_cast<size_t>(t)]);
    counts_[static_cast<size_t>(t)] = 0;
  }
}

void Sampler::EditLogits(const SampleRow& row) {
  Penalise(row);
  for (const auto& [token, bias] : row.params->logit_bias) {
    if (token >= 0 && static_cast<size_t>(token) < scores_.size())
      scores_[static_cast<size_t>(token)] += bias;
  }
  for (TokenId t : row.banned) {
    if (t >= 0 && static_cast<size_t>(t) < scores_.size())
      scores_[static_cast<size_t>(t)] = kBanned;
  }
  if (row.mask.empty()) return;
  AISP_CHECK(row.mask.size() * 32 >= scores_.size());
  Constrain(row.mask, scores_);
}

void Sampler::Constrain(std::span<const uint32_t> mask, std::span<float> scores) {
  for (size_t t = 0; t < scores.size(); ++t) {
    if ((mask[t / 32] >> (t % 32) & 1) == 0) scores[t] = kBanned;
  }
}

// Moves the `n` heaviest candidates to the front, descending; ties by id.
void Sampler::SortCandidates(size_t n) {
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<ptrdiff_t>(n),
                    candidates_.end(), [this](int32_t a, int32_t b) {
                      const float wa = scores_[static_cast<size_t>(a)],
                                  wb = scores_[static_cast<size_t>(b)];
                      return wa > wb || (wa == wb && a < b);
                    });
}

void Sampler::Filter(const SamplingParams& p, float max) {
  candidates_.resize(scores_.size());
  std::iota(candidates_.begin(), candidates_.end(), 0);
  for (size_t i = 0; i < scores_.size(); ++i) weights_[i] = std::exp(scores_[i] - max);
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < candidates_.size()) {
    SortCandidates(static_cast<size_t>(p.top_k));
    candidates_.resize(static_cast<size_t>(p.top_k));
  }
  if (p.top_p < 1.0f) {
    double total = 0;
    for (int32_t t : candidates_) total += weights_[static_cast<size_t>(t)];
    // The smallest set of heaviest tokens whose probability reaches top_p; usually few, so few are
    // sorted first.
    size_t sorted = 0, kept = 0;
    double sum = 0;
    while (kept < candidates_.size() && (kept == 0 || sum < static_cast<double>(p.top_p) * total)) {
      if (kept == sorted) {
        sorted = std::min(candidates_.size(), std::max<size_t>(64, sorted * 8));
        SortCandidates(sorted);
      }
      sum += weights_[static_cast<size_t>(candidates_[kept++])];
    }
    candidates_.resize(kept);
  }
  std::erase_if(candidates_, [&](int32_t t) {
    const float w = weights_[static_cast<size_t>(t)];
    return w == 0.0f || w < p.min_p;  // weights are relative to the greatest probability
  });
  std::sort(candidates_.begin(), candidates_.end());
}

// Only few tokens can win, so noise is computed for few: with g = -log(-log u), a token beats
// `best` iff -log u < exp(score - best), and -log u >= 1 - u, which is at least 2^-24.
TokenId Sampler::Draw(const SamplingParams& p, uint32_t position, float max) const {
  TokenId best_token = -1;
  float best = kBanned;
  const auto consider = [&](TokenId t) {
    const float score = scores_[static_cast<size_t>(t)] +
                        GumbelNoise(p.seed, p.choice, position, static_cast<uint32_t>(t));
    if (score > best || (score == best && t < best_token) || best_token < 0) {
      best = score;
      best_token = t;
    }
  };
  // The heaviest candidate comes first: its bound spares most of the others.
  TokenId heaviest = candidates_.front();
  for (int32_t t : candidates_) {
    if (scores_[static_cast<size_t>(t)] > scores_[static_cast<size_t>(heaviest)]) heaviest = t;
  }
  consider(heaviest);
  constexpr float kSlack = 1.001f;  // for rounding in the compared values
  uint32_t group = UINT32_MAX;
  std::array<uint32_t, 4> words{};
  for (int32_t t : candidates_) {
    const float reach = weights_[static_cast<size_t>(t)] * std::exp(max - best) * kSlack;
    if (t == heaviest || reach < kSmallestGap) continue;
    const auto token = static_cast<uint32_t>(t);
    if (token / 4 != group) {
      group = token / 4;
      words = Philox4x32(p.seed, {group, position, p.choice, 0});
    }
    const float gap = 1.0f - (static_cast<float>(words[token % 4] >> 9) + 0.5f) * 0x1.0p-23f;
    if (gap <= reach) consider(t);
  }
  return best_token;
}

TokenLogprob Sampler::Logprobs(std::span<const float> logits, TokenId token, int32_t count) {
  return Logprobs(logits, LogSumExp(logits), token, count);
}

TokenLogprob Sampler::Logprobs(std::span<const float> logits, double log_sum, TokenId token,
                               int32_t count) {
  const auto logprob = [&](TokenId t) {
    return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(t)]) - log_sum);
  };
  TokenLogprob out;
  out.logprob = logprob(token);
  for (const TokenId t : Greatest(logits, static_cast<size_t>(std::max(count, 0))))
    out.top.emplace_back(t, logprob(t));
  return out;
}

RowScore Sampler::Score(std::span<const float> logits, const ScoredRow& row) {
  if (!AllFinite(logits)) return {{}, tl::unexpected(NotFiniteError(row.position))};
  RowScore out{Logprobs(logits, row.token, row.num_top), {}};
  const float own = logits[static_cast<size_t>(row.token)];
  out.logprob.rank = 1 + CountGreater(logits, own);
  return out;
}

SampledToken Sampler::Sample(std::span<const float> logits, const SampleRow& row) {
  AISP_CHECK(logits.size() == scores_.size() && row.params != nullptr);
  const SamplingParams& p = *row.params;
  SampledToken out;
  if (!AllFinite(logits)) {
    out.status = tl::unexpected(NotFiniteError(row.position));
    return out;
  }
  const bool greedy = p.temperature <= 0.0f;
  std::span<const float> scores = logits;
  if (!greedy || EditsLogits(row)) {
    std::copy(logits.begin(), logits.end(), scores_.begin());
    EditLogits(row);
    scores = scores_;
  }
  const TokenId best = ArgMax(scores);
  if (scores[static_cast<size_t>(best)] == kBanned) {
    out.status = tl::unexpected(NothingLeftError());
    return out;
  }
  if (greedy) {
    out.token = best;
  } else {
    for (float& s : scores_) s /= p.temperature;
    const float max = scores_[static_cast<size_t>(best)];
    if (Filters(p, static_cast<int32_t>(logits.size()))) {
      Filter(p, max);
    } else {
      candidates_.clear();
      for (size_t i = 0; i < scores_.size(); ++i) {
        weights_[i] = std::exp(scores_[i] - max);
        if (weights_[i] > 0.0f) candidates_.push_back(static_cast<int32_t>(i));
      }
    }
    // With a tiny temperature scores overflow: the greatest is drawn.
    const bool drawable = std::isfinite(max) && !candidates_.empty();
    out.token = drawable ? Draw(p, row.position, max) : best;
  }
  if (p.num_logprobs >= 0) out.logprob = LogprobsUnder(row.mask, logits, out.token, p.num_logprobs);
  return out;
}

TokenLogprob Sampler::LogprobsUnder(std::span<const uint32_t> mask, std::span<const float> logits,
                                    TokenId token, int32_t count) {
  if (mask.empty()) return Logprobs(logits, token, count);
  std::vector<float> constrained(logits.begin(), logits.end());
  Constrain(mask, constrained);
  TokenLogprob out = Logprobs(constrained, token, count);
  std::erase_if(out.top, [](const auto& t) { return std::isinf(t.second); });
  return out;
}

}  // namespace aisp
