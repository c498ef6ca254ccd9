// ProvingMedusa: a MedusaProposer whose heads know what they must be given. Each row has to be the
// state that the target has at the newest computed position of the very sequence that is asked for;
// then they say what the target will draw, if nothing but its seed bears on that. One thread.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "engine/medusa.h"
#include "tests/support/provenance_executor.h"

namespace aisp {

class ProvingHeads final : public ParallelHeads {
 public:
  static constexpr int32_t kHeads = 3;
  explicit ProvingHeads(const ProvenanceOptions& target)
      : target_(target), tokens_(static_cast<size_t>(target.vocabulary)) {
    std::iota(tokens_.begin(), tokens_.end(), 0);
  }
  int32_t heads() const override { return kHeads; }
  int32_t feature_size() const override { return kProvenanceFeatures; }
  int32_t vocabulary() const override { return target_.vocabulary; }
  int32_t max_rows() const override { return target_.max_slots; }
  std::span<const TokenId> target_tokens() const override { return tokens_; }
  Status Run(std::span<const float* const> rows, int32_t heads) override;
  std::span<const float> Logits(int32_t head, int32_t row) const override {
    return logits_[static_cast<size_t>(row)][static_cast<size_t>(head)];
  }

  std::span<const DraftContext> asked;  // of whom rows may be, in order
  bool fail = false;
  uint64_t rows_run = 0;

 private:
  const ProvenanceOptions target_;
  std::vector<TokenId> tokens_;
  std::vector<std::vector<std::vector<float>>> logits_;  // of each row, by head
};

inline Status ProvingHeads::Run(std::span<const float* const> rows, int32_t heads) {
  if (fail) return Internal("heads that fail");
  logits_.clear();
  auto context = asked.begin();
  for (const float* const row : rows) {
    const uint64_t state = StateOf({row, kProvenanceFeatures});
    const auto knows = [&](const DraftContext& c) {
      const auto known = c.tokens.first(c.tokens.size() - 1);
      return ExpectedStates(target_, {known.begin(), known.end()}).back() == state;
    };
    while (context != asked.end() && !knows(*context)) ++context;
    if (context == asked.end()) {
      ADD_FAILURE() << "features of another position, or of another sequence";
      return Internal("wrong features");
    }
    const std::vector<TokenId> text(context->tokens.begin(), context->tokens.end());
    const std::vector<TokenId> next = ExpectedTokens(target_, text, heads, context->sampling->seed);
    auto& own = logits_.emplace_back();
    for (const TokenId token : next) {
      auto& logits = own.emplace_back(tokens_.size(), 0.0f);
      logits[static_cast<size_t>(token)] = 50;
    }
    ++rows_run;
    ++context;
  }
  return {};
}

class ProvingMedusa final : public Proposer {
 public:
  explicit ProvingMedusa(const ProvenanceOptions& target) {
    auto made = std::make_unique<ProvingHeads>(target);
    heads = made.get();
    proposer = std::make_unique<MedusaProposer>(MedusaProposerOptions{.min_probability = 0},
                                                std::move(made));
  }
  std::string_view name() const override { return proposer->name(); }
  bool costly() const override { return proposer->costly(); }
  int32_t feature_size() const override { return proposer->feature_size(); }
  Status Computed(std::span<const ComputedRows> rows) override { return proposer->Computed(rows); }
  Status Propose(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) override {
    heads->asked = contexts;
    return proposer->Propose(contexts, drafts);
  }
  void Ended(const DraftContext& context) override { proposer->Ended(context); }

  ProvingHeads* heads = nullptr;
  std::unique_ptr<MedusaProposer> proposer;
};

}  // namespace aisp
