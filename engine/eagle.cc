#include "engine/eagle.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace aisp {

EagleProposer::EagleProposer(const EagleOptions& options, std::unique_ptr<DraftHead> head)
    : options_(options),
      head_(std::move(head)),
      most_waiting_(std::min(kWaiting, head_->max_rows() / head_->max_sequences())) {
  AISP_CHECK(head_->feature_size() > 0 && most_waiting_ >= 2);
  AISP_CHECK(head_->num_feature_places() >= most_waiting_ * head_->max_sequences());
  for (int32_t i = head_->kv_layout().num_blocks; i > 0; --i) free_.emplace_back(i - 1);
  for (int32_t i = head_->num_feature_places(); i > 0; --i) {
    free_places_.push_back(head_->feature_places() +
                           static_cast<size_t>(i - 1) * head_->feature_bytes());
  }
}

void EagleProposer::Forget(SequenceId id) {
  const auto it = states_.find(id);
  if (it == states_.end()) return;
  free_.insert(free_.end(), it->second.blocks.begin(), it->second.blocks.end());
  DropWaiting(it->second, Waiting(it->second));
  states_.erase(it);
}

// Freed buffers may be reused at once: their readers are enqueued before the next writer.
void EagleProposer::DropWaiting(State& state, int32_t count) {
  std::byte* const places = head_->feature_places();
  const size_t bytes = static_cast<size_t>(head_->num_feature_places()) * head_->feature_bytes();
  for (int32_t i = 0; i < count; ++i) {
    const auto offset = reinterpret_cast<uintptr_t>(state.waiting[static_cast<size_t>(i)]) -
                        reinterpret_cast<uintptr_t>(places);
    if (offset < bytes) free_places_.push_back(places + offset);
  }
  state.waiting.erase(state.waiting.begin(), state.waiting.begin() + count);
}

// If none is free, takes one of a sequence that this call is not about, whose run then begins
// later.
std::byte* EagleProposer::TakePlace() {
  while (free_places_.empty()) {
    State* oldest = nullptr;
    for (auto& [id, state] : states_) {
      if (state.delivered == delivery_ || state.waiting.empty()) continue;
      if (oldest == nullptr || state.delivered < oldest->delivered) oldest = &state;
    }
    AISP_CHECK(oldest != nullptr);
    GiveUpBlocks(*oldest);
    const int32_t lost = Waiting(*oldest);
    DropWaiting(*oldest, lost);
    oldest->first += lost;
  }
  std::byte* const place = free_places_.back();
  free_places_.pop_back();
  return place;
}

Status EagleProposer::KeepWaiting(std::span<const ComputedRows> rows) {
  copies_.clear();
  for (const ComputedRows& each : rows) {
    const auto begin = reinterpret_cast<uintptr_t>(each.features.data());
    for (const std::byte*& row : states_.at(each.context.sequence).waiting) {
      if (reinterpret_cast<uintptr_t>(row) - begin >= each.features.size()) continue;
      std::byte* const place = TakePlace();
      copies_.push_back({row, place});
      row = place;
    }
  }
  return copies_.empty() ? Status{} : head_->KeepFeatures(copies_);
}

// The run restarts at the waiting features, as if nothing were known before.
void EagleProposer::GiveUpBlocks(State& state) {
  free_.insert(free_.end(), state.blocks.begin(), state.blocks.end());
  state.blocks.clear();
  state.first += state.computed;
  state.computed = 0;
  state.begun = false;
}

bool EagleProposer::ReclaimOldest(const State& keep) {
  State* oldest = nullptr;
  for (auto& [id, state] : states_) {
    if (&state == &keep || state.call == call_ || state.blocks.empty()) continue;
    if (oldest == nullptr || state.call < oldest->call) oldest = &state;
  }
  if (oldest == nullptr) return false;
  GiveUpBlocks(*oldest);
  return true;
}

bool EagleProposer::Reserve(State& state, int32_t rows) {
  const auto wanted = static_cast<size_t>(head_->kv_layout().BlocksFor(rows));
  while (state.blocks.size() + free_.size() < wanted) {
    if (!ReclaimOldest(state)) return false;
  }
  while (state.blocks.size() < wanted) {
    state.blocks.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

// Appends features that continue the run; after a gap, starts a new run.
EagleProposer::State& EagleProposer::Note(const ComputedRows& rows) {
  const auto [it, added] = states_.try_emplace(rows.context.sequence);
  State& state = it->second;
  const size_t size = head_->feature_bytes();
  const auto count = static_cast<int32_t>(rows.features.size() / size);
  state.delivered = delivery_;
  if (added) {
    state.sampling = *rows.context.sampling;
    state.sampling.num_logprobs = -1;  // the head always returns them
    state.first = rows.begin;
  }
  if (rows.begin > End(state)) {
    GiveUpBlocks(state);
    DropWaiting(state, Waiting(state));
    state.first = rows.begin;
  }
  const int32_t known = End(state) - rows.begin;
  if (known >= count) return state;
  if (std::exchange(state.begun, false)) {
    DropWaiting(state, Waiting(state));
    ++state.computed;
  }
  for (int32_t i = known; i < count; ++i)
    state.waiting.push_back(rows.features.data() + static_cast<size_t>(i) * size);
  return state;
}

Result<std::span<const ComputedRows>> EagleProposer::Placed(std::span<const ComputedRows> rows) {
  runs_.clear();
  for (const ComputedRows& each : rows) {
    if (!each.on_host) continue;
    runs_.emplace_back(reinterpret_cast<const float*>(each.features.data()),
                       each.features.size() / sizeof(float));
  }
  if (runs_.empty()) return rows;
  AISP_RETURN_IF_ERROR(head_->PlaceFeatures(runs_, &placed_));
  placed_rows_.clear();
  size_t at = 0;
  for (const ComputedRows& each : rows) {
    ComputedRows placed = each;
    if (each.on_host) {
      const size_t came = runs_[at].size() / static_cast<size_t>(feature_size());
      placed.features = placed_[at++];
      placed.begin += static_cast<int32_t>(came - placed.features.size() / head_->feature_bytes());
    }
    if (!placed.features.empty()) placed_rows_.push_back(placed);
  }
  return std::span<const ComputedRows>(placed_rows_);
}

Status EagleProposer::Computed(std::span<const ComputedRows> rows) {
  std::vector<std::pair<State*, std::span<const TokenId>>> late;
  ++delivery_;
  Result<std::span<const ComputedRows>> there = Placed(rows);
  Status taken = there ? Status{} : Status(tl::unexpected(there.error()));
  if (there) {
    for (const ComputedRows& each : *there) {
      State& state = Note(each);
      if (Waiting(state) > most_waiting_) late.emplace_back(&state, each.context.tokens);
    }
    taken = CatchUp(std::move(late));
    if (taken) taken = KeepWaiting(*there);
  }
  if (!taken) {
    for (const ComputedRows& each : rows) Forget(each.context.sequence);
  }
  return taken;
}

Status EagleProposer::CatchUp(std::vector<std::pair<State*, std::span<const TokenId>>> late) {
  while (!late.empty()) {
    int32_t left = head_->max_rows();
    std::vector<std::pair<State*, int32_t>> taken;
    for (const auto& [state, tokens] : late) {
      if (left == 0 || static_cast<int32_t>(taken.size()) == head_->max_sequences()) break;
      // What does not fit is dropped: the run begins after it.
      const int32_t wanted = Waiting(*state) - 1;
      const int32_t rows = std::min(wanted, left);
      const bool fits = state->computed + wanted < head_->max_context();
      if (!fits || !Reserve(*state, state->computed + wanted)) {
        GiveUpBlocks(*state);
        DropWaiting(*state, wanted);
        state->first += wanted;
        continue;
      }
      state->call = call_;  // sequences later in this step must not take its blocks
      AppendWaiting(*state, tokens, rows);
      taken.emplace_back(state, rows);
      left -= rows;
    }
    if (!taken.empty()) AISP_RETURN_IF_ERROR(Launch());
    took_up_ |= head_->max_depth() > 1;
    for (const auto& [state, rows] : taken) {
      DropWaiting(*state, rows);
      state->computed += rows;
    }
    std::erase_if(late, [](const auto& each) { return Waiting(*each.first) <= 1; });
  }
  return {};
}

void EagleProposer::AppendWaiting(const State& state, std::span<const TokenId> tokens,
                                  int32_t count) {
  const auto behind = static_cast<size_t>(state.first + state.computed) + 1;
  AppendSequence(state, state.computed, tokens.subspan(behind, static_cast<size_t>(count)), 0);
  features_.insert(features_.end(), state.waiting.begin(), state.waiting.begin() + count);
}

void EagleProposer::AppendSequence(const State& state, int32_t begin,
                                   std::span<const TokenId> tokens, int32_t slot) {
  SequenceRows rows;
  rows.row_begin = static_cast<int32_t>(tokens_.size());
  rows.num_rows = static_cast<int32_t>(tokens.size());
  rows.context_len = begin + rows.num_rows;
  rows.table_begin = static_cast<int32_t>(tables_.size());
  sequences_.push_back(rows);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  slots_.insert(slots_.end(), tokens.size(), slot);
  for (int32_t i = begin; i < rows.context_len; ++i) positions_.push_back(i);
  const int32_t blocks = head_->kv_layout().BlocksFor(rows.context_len);
  AISP_CHECK(blocks <= static_cast<int32_t>(state.blocks.size()));
  for (int32_t i = 0; i < blocks; ++i)
    tables_.push_back(state.blocks[static_cast<size_t>(i)].value);
}

Status EagleProposer::Launch() {
  HeadStep step;
  step.batch = ForwardBatch{tokens_, positions_, slots_, sequences_, tables_, logit_rows_};
  step.features = features_;
  step.goes_on = goes_on_;
  step.samples = samples_;
  Status launched = head_->Launch(step);
  tokens_.clear(), positions_.clear(), slots_.clear(), tables_.clear(), logit_rows_.clear();
  goes_on_.clear();
  sequences_.clear();
  features_.clear();
  samples_.clear();
  return launched;
}

// Starts drafts of sequences with features of every position but the last one's, which draws.
void EagleProposer::Begin(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) {
  drafting_.clear();
  for (size_t i = 0; i < contexts.size(); ++i) {
    const DraftContext& context = contexts[i];
    const auto it = states_.find(context.sequence);
    if (it == states_.end()) continue;
    State& state = it->second;
    const int32_t known = End(state), rows = known - state.first;
    if (known != static_cast<int32_t>(context.tokens.size()) - 1 || state.waiting.empty()) continue;
    const int32_t limit = std::min(context.limit, head_->max_context() - rows + 1);
    if (limit <= 0 || !Reserve(state, rows + limit - 1)) continue;
    Running& d = drafting_.emplace_back();
    d.context = &context;
    d.sampling = &state.sampling;
    d.draft = &drafts[i];
    d.limit = limit;
    d.state = &state;
    d.slot = static_cast<int32_t>(drafting_.size()) - 1;
    d.Drafting::Begin();
  }
}

void EagleProposer::AppendNext(const Running& d) {
  const State& state = *d.state;
  const std::vector<TokenId>& drafted = d.draft->tokens;
  const bool known = static_cast<int32_t>(drafted.size()) == d.launched;
  const TokenId last = known ? drafted.back() : kTokenOnDevice;
  AppendSequence(state, state.computed + Waiting(state) + d.launched - 1, {&last, 1}, d.slot);
  goes_on_.push_back(d.output);
}

// One step for every draft not known to have ended. The first step consumes all waiting features
// but the last position's.
Status EagleProposer::LaunchDraws(bool first) {
  std::vector<Running*> going;
  for (Running& d : drafting_) {
    if (d.done || d.launched == d.limit) continue;
    if (first) {
      AppendWaiting(*d.state, d.context->tokens, Waiting(*d.state));
    } else {
      AppendNext(d);
    }
    d.output = static_cast<int32_t>(logit_rows_.size());
    const auto collected = static_cast<int32_t>(d.draft->tokens.size());
    samples_.push_back(d.Draw(d.output, d.slot, d.launched - collected));
    logit_rows_.push_back(static_cast<int32_t>(tokens_.size()) - 1);
    ++d.launched;
    going.push_back(&d);
  }
  if (going.empty()) return {};
  AISP_RETURN_IF_ERROR(Launch());
  flights_.push_back(std::move(going));
  if (!first) return {};
  for (Running* d : flights_.back()) {
    State& state = *d->state;
    const int32_t done = Waiting(state) - 1;
    DropWaiting(state, done);
    state.computed += done;
    state.begun = true;
  }
  return {};
}

Status EagleProposer::CollectDraws() {
  const std::vector<Running*> going = std::move(flights_.front());
  flights_.pop_front();
  AISP_ASSIGN_OR_RETURN(const std::vector<SampledToken> drawn, head_->Collect());
  AISP_CHECK(drawn.size() == going.size());
  for (size_t i = 0; i < going.size(); ++i) {
    if (!going[i]->done) going[i]->Take(drawn[i], options_.min_probability);
  }
  return {};
}

Status EagleProposer::DraftAll() {
  const bool ahead =
      head_->max_depth() > 1 && std::all_of(drafting_.begin(), drafting_.end(),
                                            [](const Running& d) { return d.DrawsAhead(); });
  const size_t depth = ahead ? static_cast<size_t>(head_->max_depth()) : 1;
  flights_.clear();
  AISP_RETURN_IF_ERROR(LaunchDraws(true));
  while (!flights_.empty()) {
    for (size_t before = 0; flights_.size() < depth && before != flights_.size();) {
      before = flights_.size();
      AISP_RETURN_IF_ERROR(LaunchDraws(false));
    }
    AISP_RETURN_IF_ERROR(CollectDraws());
    if (flights_.empty()) AISP_RETURN_IF_ERROR(LaunchDraws(false));
  }
  return {};
}

Status EagleProposer::Propose(std::span<const DraftContext> contexts,
                              std::span<TokenDraft> drafts) {
  AISP_CHECK(static_cast<int32_t>(contexts.size()) <= head_->max_sequences());
  ++call_;
  timed_ = !std::exchange(took_up_, false);
  for (const DraftContext& context : contexts) {
    const auto it = states_.find(context.sequence);
    if (it != states_.end()) it->second.call = call_;
  }
  Begin(contexts, drafts);
  Status done = DraftAll();
  for (Running& d : drafting_) d.End();
  if (!done) {
    for (const DraftContext& context : contexts) Forget(context.sequence);
  }
  drafting_.clear();
  return done;
}

}  // namespace aisp
