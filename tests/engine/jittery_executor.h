// JitteryExecutor: a model over few tokens whose rows differ in their last bits with the number of
// rows of the sequence in a step, as with bf16 kernels. The tokens' distribution must not change
// beyond what those bits change.
//
// It can also draw by rules that accept draft tokens which the target would not have drawn, to show
// that the test detects them.
#pragma once

#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/random.h"
#include "engine/executor.h"
#include "engine/sampler.h"

namespace aisp {

constexpr int32_t kJitteryVocabulary = 6;

// Logits of the token after `last`, for model `weights`; within 2 of zero.
inline std::vector<float> JitteryLogits(uint64_t weights, TokenId last) {
  SplitMix64 random(weights * 1000 + static_cast<uint64_t>(last));
  std::vector<float> logits;
  for (int32_t t = 0; t < kJitteryVocabulary; ++t)
    logits.push_back(static_cast<float>(4 * random.Uniform() - 2));
  return logits;
}

// A row that verifies nothing has no draft token.
struct JitteryDraw {
  const SampleRow* row = nullptr;
  std::vector<float> logits;
  TokenId proposed = -1;
  TokenId last = -1;           // the row's own token
  int32_t first_position = 0;  // of the tokens that the step draws for this sequence
};
using DrawRule = std::function<SampledToken(Sampler&, const JitteryDraw&)>;

inline SampledToken DrawOfTarget(Sampler& sampler, const JitteryDraw& draw) {
  return sampler.Sample(draw.logits, *draw.row);
}

class JitteryExecutor final : public Executor {
 public:
  // `jitter`: relative difference of logits between rows; bf16 has 2^-8.
  JitteryExecutor(uint64_t weights, float jitter, DrawRule rule)
      : weights_(weights), jitter_(jitter), rule_(std::move(rule)), sampler_(kJitteryVocabulary) {
    layout_.num_layers = layout_.num_kv_heads = 1;
    layout_.head_dim = 2;
    layout_.block_tokens = 16;
    layout_.num_blocks = 2 * kSlots;
  }

  static constexpr int32_t kSlots = 32;
  int max_depth() const override { return 1; }
  const KvLayout& kv_layout() const override { return layout_; }
  int32_t max_context() const override { return 64; }
  int32_t max_batch_tokens() const override { return 8 * kSlots; }
  int32_t max_slots() const override { return kSlots; }
  int32_t max_draws() const override { return 8 * kSlots; }
  int32_t vocabulary() const override { return kJitteryVocabulary; }

  Result<Ticket> Launch(const StepInput& input) override {
    result_ = {};
    size_t at = 0;
    for (const SequenceRows& s : input.batch.sequences) {
      const size_t first = at;
      for (; at < input.samples.size() && RowOf(input, at) < s.row_begin + s.num_rows; ++at)
        result_.tokens.push_back(Draw(input, s, first, at));
    }
    AISP_CHECK(at == input.samples.size());
    if (input.before_draw) input.before_draw();
    return Ticket(++ticket_);
  }
  Result<StepResult> Collect(Ticket) override { return std::move(result_); }

 private:
  static int32_t RowOf(const StepInput& input, size_t sample) {
    const auto index = static_cast<size_t>(input.samples[sample].logit_index);
    return input.batch.logit_rows[index];
  }
  SampledToken Draw(const StepInput& input, const SequenceRows& s, size_t first, size_t at) {
    const int32_t row = RowOf(input, at);
    const TokenId last = input.batch.tokens[static_cast<size_t>(row)];
    JitteryDraw draw;
    draw.row = &input.samples[at];
    draw.last = last;
    draw.logits = JitteryLogits(weights_, last);
    SplitMix64 bits(static_cast<uint64_t>((last * 64 + s.num_rows) * 64 + row - s.row_begin));
    for (float& logit : draw.logits)
      logit *= 1 + (s.num_rows > 1 ? jitter_ * static_cast<float>(2 * bits.Uniform() - 1) : 0);
    draw.first_position = static_cast<int32_t>(input.samples[first].position);
    if (row + 1 < s.row_begin + s.num_rows)
      draw.proposed = input.batch.tokens[static_cast<size_t>(row) + 1];
    return rule_(sampler_, draw);
  }

  const uint64_t weights_;
  const float jitter_;
  const DrawRule rule_;
  Sampler sampler_;
  KvLayout layout_;
  StepResult result_;
  uint64_t ticket_ = 0;
};

}  // namespace aisp
