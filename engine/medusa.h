// MedusaProposer: drafts with Medusa heads (Cai et al., arXiv:2401.10774). Each head predicts, from
// the newest computed position, the token at its own distance. Per sequence it keeps only that
// position's features and no KV, so features of a prompt that another worker computed suffice. If
// the newest position's features are missing, it drafts nothing.
//
// A head does not see the preceding draft tokens, so all heads of a draft are computed at once.
// Tokens are drawn by the target's rules (engine/drafting.h). Engine thread only.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/drafting.h"
#include "engine/medusa_draws.h"
#include "speculation/proposer.h"

namespace aisp {

struct MedusaProposerOptions {
  // A draft ends after the token at which its joint probability falls below this.
  float min_probability = 0.1f;
  bool wants_prompts_end = true;  // else drafts begin after the first drawn token
};

class MedusaProposer final : public Proposer {
 public:
  // Both handle as many rows as sequences are drafted at once.
  MedusaProposer(const MedusaProposerOptions& options, std::unique_ptr<MedusaDraws> draws);
  MedusaProposer(const MedusaProposerOptions& options, std::unique_ptr<ParallelHeads> heads)
      : MedusaProposer(options, std::make_unique<HostMedusaDraws>(std::move(heads))) {}

  std::string_view name() const override { return "medusa"; }
  bool costly() const override { return true; }
  bool at_once() const override { return draws_->draws_together(); }
  int32_t feature_size() const override { return draws_->feature_size(); }
  int32_t feature_window() const override { return options_.wants_prompts_end ? 1 : 0; }
  Status Computed(std::span<const ComputedRows> rows) override;
  // Errors come from the heads.
  Status Propose(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) override;
  void Ended(const DraftContext& context) override { Forget(context.sequence); }

  size_t sequences() const { return states_.size(); }

 private:
  struct State {
    int32_t position = -1;   // the newest position with known features
    int32_t place = -1;      // index of those features in draws_
    uint64_t delivered = 0;  // the last call that delivered features
    SamplingParams sampling;
  };
  // A draft in progress and its row.
  struct Running : Drafting {
    int32_t row = 0;
  };

  void Forget(SequenceId id);
  bool TakePlace(State& state);
  Status Keep(std::span<const ComputedRows> rows);
  std::vector<Running> Begin(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts);
  Status DraftAll(std::span<Running> drafting);
  void Ask(const Running& d, int32_t head);
  Status Take(std::span<Running> drafting);

  const MedusaProposerOptions options_;
  const std::unique_ptr<MedusaDraws> draws_;
  std::unordered_map<SequenceId, State> states_;
  std::vector<int32_t> free_places_;
  int32_t used_places_ = 0;
  uint64_t delivery_ = 0;
  // Of the drafts in progress, and of the requested draws: their drafts' indices.
  std::vector<int32_t> places_;
  std::vector<SampleRow> samples_;
  std::vector<int32_t> asked_;
  std::vector<FeatureRow> kept_;
  std::vector<SequenceId> kept_of_;
};

}  // namespace aisp
