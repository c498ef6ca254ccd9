// MedusaProposer: Medusa's heads (Cai et al., arXiv:2401.10774) name what may follow: one reads of
// the newest computed position the token behind the next, another the one behind that. Of the
// sequence it keeps no more than that position's features, and takes what it drafts from no KV. So
// what comes first with a sequence, whatever computed its prompt, is all that a draft needs; where
// the newest position's are missing, nothing is proposed.
//
// A head does not know which token the draft has in front of its own, so all of a draft's heads are
// computed at once. It draws as the target will (engine/drafting.h). On the CPU; engine thread
// only.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/drafting.h"
#include "engine/sampler.h"
#include "model/parallel_heads.h"
#include "speculation/proposer.h"

namespace aisp {

struct MedusaProposerOptions {
  // A draft ends behind the token with which all of it became less likely than this.
  float min_probability = 0.1f;
  bool wants_prompts_end = true;  // else it begins with the first drawn token
};

class MedusaProposer final : public Proposer {
 public:
  // `heads`: for as many rows as sequences are ever asked for at once.
  MedusaProposer(const MedusaProposerOptions& options, std::unique_ptr<ParallelHeads> heads);

  std::string_view name() const override { return "medusa"; }
  bool costly() const override { return true; }
  int32_t feature_size() const override { return heads_->feature_size(); }
  int32_t feature_window() const override { return options_.wants_prompts_end ? 1 : 0; }
  Status Computed(std::span<const ComputedRows> rows) override;
  // Errors are the heads'.
  Status Propose(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) override;
  void Ended(const DraftContext& context) override { states_.erase(context.sequence); }

  size_t sequences() const { return states_.size(); }

 private:
  struct State {
    int32_t position = -1;  // whose features these are, the newest that is known
    std::vector<float> features;
    SamplingParams sampling;
  };

  std::vector<Drafting> Begin(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts);
  void Draw(Drafting& d, int32_t row);

  const MedusaProposerOptions options_;
  const std::unique_ptr<ParallelHeads> heads_;
  Sampler sampler_;
  std::vector<float>
      logits_;  // of the target's vocabulary; those that no head has stay as they are
  std::unordered_map<SequenceId, State> states_;
  std::vector<const float*> rows_;  // of the drafts that are being made
};

}  // namespace aisp
