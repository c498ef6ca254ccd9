#include "engine/medusa.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "model/feature_head.h"

namespace aisp {

MedusaProposer::MedusaProposer(const MedusaProposerOptions& options,
                               std::unique_ptr<ParallelHeads> heads)
    : options_(options),
      heads_(std::move(heads)),
      sampler_(heads_->vocabulary()),
      logits_(static_cast<size_t>(heads_->vocabulary()), FeatureHead::kNoLogit) {
  AISP_CHECK(heads_->heads() > 0 && heads_->feature_size() > 0);
}

// Positions may come again, after preemption; the newest stays.
Status MedusaProposer::Computed(std::span<const ComputedRows> rows) {
  const auto size = static_cast<size_t>(heads_->feature_size());
  for (const ComputedRows& each : rows) {
    const size_t bytes = size * sizeof(float), count = each.features.size() / bytes;
    AISP_CHECK_MSG(count > 0 && count * bytes == each.features.size(),
                   "features that are not f32 rows: medusa heads run on the CPU");
    const int32_t last = each.begin + static_cast<int32_t>(count) - 1;
    const auto [it, added] = states_.try_emplace(each.context.sequence);
    State& state = it->second;
    if (added) {
      state.sampling = *each.context.sampling;
      state.sampling.num_logprobs = -1;  // the heads say them anyway
    }
    if (last <= state.position) continue;
    state.position = last;
    state.features.resize(size);
    std::memcpy(state.features.data(), each.features.last(bytes).data(), bytes);
  }
  return {};
}

// Those whose last token but one is the newest position that it knows.
std::vector<Drafting> MedusaProposer::Begin(std::span<const DraftContext> contexts,
                                            std::span<TokenDraft> drafts) {
  std::vector<Drafting> begun;
  rows_.clear();
  for (size_t i = 0; i < contexts.size(); ++i) {
    const DraftContext& context = contexts[i];
    const auto it = states_.find(context.sequence);
    const int32_t newest = static_cast<int32_t>(context.tokens.size()) - 2;
    if (it == states_.end() || it->second.position != newest || context.limit <= 0) continue;
    Drafting& d = begun.emplace_back();
    d.context = &context;
    d.sampling = &it->second.sampling;
    d.draft = &drafts[i];
    d.limit = std::min(context.limit, heads_->heads());
    d.Begin();
    rows_.push_back(it->second.features.data());
  }
  return begun;
}

Status MedusaProposer::Propose(std::span<const DraftContext> contexts,
                               std::span<TokenDraft> drafts) {
  std::vector<Drafting> drafting = Begin(contexts, drafts);
  if (drafting.empty()) return {};
  AISP_CHECK(static_cast<int32_t>(drafting.size()) <= heads_->max_rows());
  int32_t longest = 0;
  for (const Drafting& d : drafting) longest = std::max(longest, d.limit);
  AISP_RETURN_IF_ERROR(heads_->Run(rows_, longest));
  for (size_t row = 0; row < drafting.size(); ++row) Draw(drafting[row], static_cast<int32_t>(row));
  return {};
}

void MedusaProposer::Draw(Drafting& d, int32_t row) {
  const std::span<const TokenId> tokens = heads_->target_tokens();
  while (!d.done) {
    const auto head = static_cast<int32_t>(d.draft->tokens.size());
    const std::span<const float> own = heads_->Logits(head, row);
    for (size_t i = 0; i < own.size(); ++i) logits_[static_cast<size_t>(tokens[i])] = own[i];
    d.Take(DrawDrafted(sampler_, own, logits_, d.Draw(0, 0)), options_.min_probability);
  }
  d.End();
}

}  // namespace aisp
