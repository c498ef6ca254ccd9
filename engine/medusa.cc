#include "engine/medusa.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace aisp {

MedusaProposer::MedusaProposer(const MedusaProposerOptions& options,
                               std::unique_ptr<MedusaDraws> draws)
    : options_(options), draws_(std::move(draws)) {
  AISP_CHECK(draws_->heads() > 0 && draws_->feature_size() > 0 && draws_->places() > 0);
}

void MedusaProposer::Forget(SequenceId id) {
  const auto it = states_.find(id);
  if (it == states_.end()) return;
  if (it->second.place >= 0) free_places_.push_back(it->second.place);
  states_.erase(it);
}

// If all are taken, evicts the least recently updated sequence that is not in this call.
bool MedusaProposer::TakePlace(State& state) {
  if (state.place >= 0) return true;
  if (free_places_.empty() && used_places_ < draws_->places())
    free_places_.push_back(used_places_++);
  if (free_places_.empty()) {
    State* oldest = nullptr;
    for (auto& [id, other] : states_) {
      if (other.place < 0 || other.delivered == delivery_) continue;
      if (oldest == nullptr || other.delivered < oldest->delivered) oldest = &other;
    }
    if (oldest == nullptr) return false;
    free_places_.push_back(std::exchange(oldest->place, -1));
    oldest->position = -1;
  }
  state.place = free_places_.back();
  free_places_.pop_back();
  return true;
}

// Positions may be computed again after preemption; the newest is kept.
Status MedusaProposer::Keep(std::span<const ComputedRows> rows) {
  kept_.clear();
  kept_of_.clear();
  for (const ComputedRows& each : rows) {
    const size_t bytes = each.on_host ? static_cast<size_t>(feature_size()) * sizeof(float)
                                      : draws_->feature_bytes();
    const size_t count = each.features.size() / bytes;
    AISP_CHECK(count > 0 && count * bytes == each.features.size());
    const int32_t last = each.begin + static_cast<int32_t>(count) - 1;
    const auto [it, added] = states_.try_emplace(each.context.sequence);
    State& state = it->second;
    if (added) {
      state.sampling = *each.context.sampling;
      state.sampling.num_logprobs = -1;  // the heads always return them
    }
    state.delivered = delivery_;
    if (last <= state.position) continue;
    state.position = -1;
    if (!TakePlace(state)) continue;
    state.position = last;
    kept_.push_back({each.features.last(bytes).data(), each.on_host, state.place});
    kept_of_.push_back(each.context.sequence);
  }
  if (kept_.empty()) return {};
  AISP_RETURN_IF_ERROR(draws_->Keep(kept_));
  for (size_t i = 0; i < kept_.size(); ++i) {
    if (!kept_[i].kept) states_.at(kept_of_[i]).position = -1;
  }
  return {};
}

Status MedusaProposer::Computed(std::span<const ComputedRows> rows) {
  ++delivery_;
  Status kept = Keep(rows);
  if (!kept) {
    for (const ComputedRows& each : rows) Forget(each.context.sequence);
  }
  return kept;
}

// Starts drafts of sequences whose second-to-last token is the newest known position.
std::vector<MedusaProposer::Running> MedusaProposer::Begin(std::span<const DraftContext> contexts,
                                                           std::span<TokenDraft> drafts) {
  std::vector<Running> begun;
  places_.clear();
  for (size_t i = 0; i < contexts.size(); ++i) {
    const DraftContext& context = contexts[i];
    const auto it = states_.find(context.sequence);
    const int32_t newest = static_cast<int32_t>(context.tokens.size()) - 2;
    if (it == states_.end() || it->second.position != newest || context.limit <= 0) continue;
    Running& d = begun.emplace_back();
    d.context = &context;
    d.sampling = &it->second.sampling;
    d.draft = &drafts[i];
    d.limit = std::min(context.limit, draws_->heads());
    d.row = static_cast<int32_t>(places_.size());
    d.Drafting::Begin();
    places_.push_back(it->second.place);
  }
  return begun;
}

// Requests the draw of `head`, after the draft's tokens and the draws of the heads before it.
void MedusaProposer::Ask(const Running& d, int32_t head) {
  const auto collected = static_cast<int32_t>(d.draft->tokens.size());
  samples_.push_back(d.Draw(draws_->LogitIndex(head, d.row), d.row, head - collected));
  asked_.push_back(d.row);
}

Status MedusaProposer::Take(std::span<Running> drafting) {
  AISP_ASSIGN_OR_RETURN(const std::vector<SampledToken> drawn, draws_->Collect());
  AISP_CHECK(drawn.size() == asked_.size());
  for (size_t i = 0; i < drawn.size(); ++i) {
    Running& d = drafting[static_cast<size_t>(asked_[i])];
    if (!d.done) d.Take(drawn[i], options_.min_probability);
  }
  samples_.clear();
  asked_.clear();
  return {};
}

// Draws from all heads at once if no draw depends on another and that costs no more; else head by
// head, until all drafts end.
Status MedusaProposer::DraftAll(std::span<Running> drafting) {
  int32_t longest = 0;
  for (const Running& d : drafting) longest = std::max(longest, d.limit);
  const bool together =
      draws_->draws_together() && std::all_of(drafting.begin(), drafting.end(),
                                              [](const Running& d) { return d.DrawsAhead(); });
  samples_.clear();
  asked_.clear();
  for (int32_t head = 0; head < (together ? longest : 1); ++head) {
    for (const Running& d : drafting) {
      if (head < d.limit) Ask(d, head);
    }
  }
  AISP_RETURN_IF_ERROR(draws_->Run(places_, longest, samples_));
  AISP_RETURN_IF_ERROR(Take(drafting));
  for (int32_t head = 1; !together && head < longest; ++head) {
    for (const Running& d : drafting) {
      if (!d.done) Ask(d, head);
    }
    if (samples_.empty()) break;
    AISP_RETURN_IF_ERROR(draws_->Draw(samples_));
    AISP_RETURN_IF_ERROR(Take(drafting));
  }
  return {};
}

Status MedusaProposer::Propose(std::span<const DraftContext> contexts,
                               std::span<TokenDraft> drafts) {
  std::vector<Running> drafting = Begin(contexts, drafts);
  if (drafting.empty()) return {};
  AISP_CHECK(static_cast<int32_t>(drafting.size()) <= draws_->max_rows());
  Status done = DraftAll(drafting);
  for (Running& d : drafting) d.End();
  return done;
}

}  // namespace aisp
