// MedusaProposer: Medusa's heads (Cai et al., arXiv:2401.10774) name what may follow: one reads of
// the newest computed position the token behind the next, another the one behind that. Of the
// sequence it keeps no more than that position's features, and takes what it drafts from no KV. So
// what comes first with a sequence, whatever computed its prompt, is all that a draft needs; where
// the newest position's are missing, nothing is proposed.
//
// A head does not know which token the draft has in front of its own, so all of a draft's heads are
// computed at once. It draws as the target will (engine/drafting.h). Engine thread only.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/drafting.h"
#include "engine/medusa_draws.h"
#include "speculation/proposer.h"

namespace aisp {

struct MedusaProposerOptions {
  // A draft ends behind the token with which all of it became less likely than this.
  float min_probability = 0.1f;
  bool wants_prompts_end = true;  // else it begins with the first drawn token
};

class MedusaProposer final : public Proposer {
 public:
  // Both for as many rows as sequences are ever asked for at once.
  MedusaProposer(const MedusaProposerOptions& options, std::unique_ptr<MedusaDraws> draws);
  MedusaProposer(const MedusaProposerOptions& options, std::unique_ptr<ParallelHeads> heads)
      : MedusaProposer(options, std::make_unique<HostMedusaDraws>(std::move(heads))) {}

  std::string_view name() const override { return "medusa"; }
  bool costly() const override { return true; }
  bool at_once() const override { return draws_->draws_together(); }
  int32_t feature_size() const override { return draws_->feature_size(); }
  int32_t feature_window() const override { return options_.wants_prompts_end ? 1 : 0; }
  Status Computed(std::span<const ComputedRows> rows) override;
  // Errors are the heads'.
  Status Propose(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) override;
  void Ended(const DraftContext& context) override { Forget(context.sequence); }

  size_t sequences() const { return states_.size(); }

 private:
  struct State {
    int32_t position = -1;  // whose features these are, the newest that is known
    int32_t place = -1;     // where they are kept
    uint64_t told = 0;      // last
    SamplingParams sampling;
  };
  // A draft that is being made, and its row.
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
  uint64_t told_ = 0;
  // Of the drafts that are being made, and of the draws that are asked for: whose they are.
  std::vector<int32_t> places_;
  std::vector<SampleRow> samples_;
  std::vector<int32_t> asked_;
  std::vector<FeatureRow> kept_;
  std::vector<SequenceId> kept_of_;
};

}  // namespace aisp
