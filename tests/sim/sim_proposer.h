// SimProposer: drafts the provenance model's tokens, with mistakes, and sometimes none.
#pragma once

#include <string_view>
#include <vector>

#include "engine/request.h"
#include "speculation/proposer.h"
#include "tests/sim/coverage.h"
#include "tests/support/provenance_executor.h"
#include "tests/support/sim_world.h"

namespace aisp {

class SimProposer final : public Proposer {
 public:
  SimProposer(SimWorld* world, const ProvenanceOptions& model, SimCoverage* coverage)
      : world_(world), model_(model), coverage_(coverage) {}

  std::string_view name() const override { return "sim"; }
  Status Propose(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) override {
    if (world_->Chance(0.001)) return Internal("this proposer fails");
    for (size_t i = 0; i < contexts.size(); ++i) {
      if (world_->Chance(0.4)) continue;
      const DraftContext& c = contexts[i];
      const auto right = ExpectedTokens(
          model_, c.tokens, static_cast<int32_t>(world_->Between(1, 5)), c.sampling->seed);
      for (const TokenId token : right) {
        const bool wrong = world_->Chance(0.15);
        drafts[i].Add(wrong ? (token + 1) % model_.vocabulary : token, 0.8f);
      }
      coverage_->Count("draft", 1);
    }
    return {};
  }
  void Ended(const DraftContext&) override {}

 private:
  SimWorld* const world_;
  const ProvenanceOptions model_;
  SimCoverage* const coverage_;
};

}  // namespace aisp
