// ProvingMedusa: a MedusaProposer whose heads check their input. Each row must be the target's
// hidden state at the newest computed position of the sequence that is asked for; then the heads
// draft what the target will draw, if only its seed affects that. One thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
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

  std::span<const DraftContext> asked;  // whose rows may come, in order
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

// As on a device: steps' features come in its format, few of them are kept, some that come from the
// host find no room, and all tokens of a draft are drawn at once.
class DeviceMedusaDraws final : public MedusaDraws {
 public:
  DeviceMedusaDraws(std::unique_ptr<ParallelHeads> heads, int32_t places, size_t landings)
      : host_(std::move(heads)), places_(places), landings_(landings) {}

  int32_t heads() const override { return host_.heads(); }
  int32_t feature_size() const override { return host_.feature_size(); }
  size_t feature_bytes() const override { return kProvenanceFeatures * sizeof(uint16_t); }
  int32_t max_rows() const override { return host_.max_rows(); }
  int32_t places() const override { return places_; }
  Status Keep(std::span<FeatureRow> rows) override {
    size_t landed = 0;
    for (FeatureRow& row : rows) {
      EXPECT_LT(row.place, places_);
      std::array<float, kProvenanceFeatures> values{};
      if (row.on_host) {
        row.kept = landed++ < landings_;
        std::memcpy(values.data(), row.from, sizeof(values));
      } else {
        const auto* from = reinterpret_cast<const uint16_t*>(row.from);
        std::copy_n(from, values.size(), values.begin());
      }
      FeatureRow there{reinterpret_cast<const std::byte*>(values.data()), true, row.place};
      if (row.kept) AISP_RETURN_IF_ERROR(host_.Keep({&there, 1}));
    }
    return {};
  }
  bool draws_together() const override { return true; }
  Status Run(std::span<const int32_t> places, int32_t heads,
             std::span<const SampleRow> samples) override {
    return host_.Run(places, heads, samples);
  }
  Status Draw(std::span<const SampleRow> samples) override { return host_.Draw(samples); }
  Result<std::vector<SampledToken>> Collect() override { return host_.Collect(); }
  int32_t LogitIndex(int32_t head, int32_t row) const override {
    return host_.LogitIndex(head, row);
  }

 private:
  HostMedusaDraws host_;
  const int32_t places_;
  const size_t landings_;
};

// On a device if the target is on one, with `places` rows there; 0: one for each slot.
class ProvingMedusa final : public Proposer {
 public:
  explicit ProvingMedusa(const ProvenanceOptions& target, int32_t places = 0, size_t landings = 2) {
    auto made = std::make_unique<ProvingHeads>(target);
    heads = made.get();
    std::unique_ptr<MedusaDraws> draws;
    if (target.most_kept_features >= 0) {
      draws = std::make_unique<DeviceMedusaDraws>(std::move(made),
                                                  places > 0 ? places : target.max_slots, landings);
    } else {
      draws = std::make_unique<HostMedusaDraws>(std::move(made));
    }
    proposer = std::make_unique<MedusaProposer>(MedusaProposerOptions{.min_probability = 0},
                                                std::move(draws));
  }
  std::string_view name() const override { return proposer->name(); }
  bool costly() const override { return proposer->costly(); }
  bool at_once() const override { return proposer->at_once(); }
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
