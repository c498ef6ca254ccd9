#include "engine/eagle.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace aisp {

EagleProposer::EagleProposer(const EagleOptions& options, std::unique_ptr<DraftHead> head)
    : options_(options), head_(std::move(head)) {
  AISP_CHECK(head_->feature_size() > 0);
  AISP_CHECK(head_->max_rows() >= kWaiting * head_->max_sequences());
  for (int32_t i = head_->kv_layout().num_blocks; i > 0; --i) free_.emplace_back(i - 1);
}

int32_t EagleProposer::Waiting(const State& state) const {
  return static_cast<int32_t>(state.waiting.size()) / head_->feature_size();
}

void EagleProposer::Forget(SequenceId id) {
  const auto it = states_.find(id);
  if (it == states_.end()) return;
  free_.insert(free_.end(), it->second.blocks.begin(), it->second.blocks.end());
  states_.erase(it);
}

// The run goes on with what waits, as if nothing had been known before.
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

// Takes up the features that continue what it has; after a gap, a new run begins.
EagleProposer::State& EagleProposer::Note(const ComputedRows& rows) {
  const auto [it, added] = states_.try_emplace(rows.context.sequence);
  State& state = it->second;
  const auto size = static_cast<size_t>(head_->feature_size());
  const auto count = static_cast<int32_t>(rows.features.size() / size);
  if (added) {
    state.sampling = *rows.context.sampling;
    state.sampling.num_logprobs = -1;  // the head says them anyway
    state.first = rows.begin;
  }
  if (rows.begin > End(state)) {
    GiveUpBlocks(state);
    state.waiting.clear();
    state.first = rows.begin;
  }
  const int32_t known = End(state) - rows.begin;
  if (known >= count) return state;
  const std::span<const float> fresh = rows.features.subspan(static_cast<size_t>(known) * size);
  if (std::exchange(state.begun, false)) {
    state.waiting.clear();
    ++state.computed;
  }
  state.waiting.insert(state.waiting.end(), fresh.begin(), fresh.end());
  return state;
}

Status EagleProposer::Computed(std::span<const ComputedRows> rows) {
  std::vector<std::pair<State*, std::span<const TokenId>>> late;
  for (const ComputedRows& each : rows) {
    State& state = Note(each);
    if (Waiting(state) > kWaiting) late.emplace_back(&state, each.context.tokens);
  }
  Status taken = TakeUp(std::move(late));
  if (!taken) {
    for (const ComputedRows& each : rows) Forget(each.context.sequence);
  }
  return taken;
}

Status EagleProposer::TakeUp(std::vector<std::pair<State*, std::span<const TokenId>>> late) {
  const auto size = static_cast<ptrdiff_t>(head_->feature_size());
  while (!late.empty()) {
    int32_t left = head_->max_rows();
    std::vector<std::pair<State*, int32_t>> taken;
    for (const auto& [state, tokens] : late) {
      if (left == 0 || static_cast<int32_t>(taken.size()) == head_->max_sequences()) break;
      // What does not fit is left out: the run begins behind it.
      const int32_t wanted = Waiting(*state) - 1;
      const int32_t rows = std::min(wanted, left);
      const bool fits = state->computed + wanted < head_->max_context();
      if (!fits || !Reserve(*state, state->computed + wanted)) {
        GiveUpBlocks(*state);
        state->waiting.erase(state->waiting.begin(), state->waiting.begin() + wanted * size);
        state->first += wanted;
        continue;
      }
      state->call = call_;  // whoever comes next in this step must not have its blocks
      AppendWaiting(*state, tokens, rows);
      taken.emplace_back(state, rows);
      left -= rows;
    }
    if (!taken.empty()) AISP_RETURN_IF_ERROR(Run());
    for (const auto& [state, rows] : taken) {
      state->waiting.erase(state->waiting.begin(), state->waiting.begin() + rows * size);
      state->computed += rows;
    }
    std::erase_if(late, [this](const auto& each) { return Waiting(*each.first) <= 1; });
  }
  return {};
}

void EagleProposer::AppendWaiting(const State& state, std::span<const TokenId> tokens,
                                  int32_t count) {
  const auto behind = static_cast<size_t>(state.first + state.computed) + 1;
  AppendSequence(state, state.computed, tokens.subspan(behind, static_cast<size_t>(count)));
  features_.insert(features_.end(), state.waiting.begin(),
                   state.waiting.begin() + ptrdiff_t{count} * head_->feature_size());
}

void EagleProposer::AppendSequence(const State& state, int32_t begin,
                                   std::span<const TokenId> tokens) {
  SequenceRows rows;
  rows.row_begin = static_cast<int32_t>(tokens_.size());
  rows.num_rows = static_cast<int32_t>(tokens.size());
  rows.context_len = begin + rows.num_rows;
  rows.table_begin = static_cast<int32_t>(tables_.size());
  sequences_.push_back(rows);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  for (int32_t i = begin; i < rows.context_len; ++i) positions_.push_back(i);
  const int32_t blocks = head_->kv_layout().BlocksFor(rows.context_len);
  AISP_CHECK(blocks <= static_cast<int32_t>(state.blocks.size()));
  for (int32_t i = 0; i < blocks; ++i)
    tables_.push_back(state.blocks[static_cast<size_t>(i)].value);
}

Result<std::vector<SampledToken>> EagleProposer::Run() {
  HeadStep step;
  step.batch = ForwardBatch{tokens_, positions_, {}, sequences_, tables_, logit_rows_};
  step.features = features_;
  step.goes_on = goes_on_;
  step.samples = samples_;
  auto drawn = head_->Run(step);
  tokens_.clear(), positions_.clear(), tables_.clear(), logit_rows_.clear(), goes_on_.clear();
  sequences_.clear();
  features_.clear();
  samples_.clear();
  return drawn;
}

// Those of which it has the features of every position but the last one's, which draws.
void EagleProposer::Begin(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) {
  drafting_.clear();
  for (size_t i = 0; i < contexts.size(); ++i) {
    const DraftContext& context = contexts[i];
    const auto it = states_.find(context.sequence);
    if (it == states_.end()) continue;
    State& state = it->second;
    const int32_t known = End(state), rows = known - state.first;
    if (known != static_cast<int32_t>(context.tokens.size()) - 1) continue;
    const int32_t limit = std::min(context.limit, head_->max_context() - rows + 1);
    if (limit <= 0 || !Reserve(state, rows + limit - 1)) continue;
    Running& d = drafting_.emplace_back();
    d.context = &context;
    d.sampling = &state.sampling;
    d.draft = &drafts[i];
    d.limit = limit;
    d.state = &state;
    d.Drafting::Begin();
  }
}

void EagleProposer::AppendNext(const Running& d) {
  const State& state = *d.state;
  const auto drafted = static_cast<int32_t>(d.draft->tokens.size());
  AppendSequence(state, state.computed + Waiting(state) + drafted - 1,
                 std::span<const TokenId>(d.draft->tokens).last(1));
  goes_on_.push_back(d.output);
}

Status EagleProposer::DraftAll() {
  std::vector<Running*> going;
  for (bool first = true;; first = false) {
    going.clear();
    for (Running& d : drafting_) {
      if (d.done) continue;
      if (first) {
        AppendWaiting(*d.state, d.context->tokens, Waiting(*d.state));
      } else {
        AppendNext(d);
      }
      d.output = static_cast<int32_t>(logit_rows_.size());
      samples_.push_back(d.Draw(d.output, 0));
      logit_rows_.push_back(static_cast<int32_t>(tokens_.size()) - 1);
      going.push_back(&d);
    }
    if (going.empty()) return {};
    AISP_ASSIGN_OR_RETURN(const std::vector<SampledToken> drawn, Run());
    AISP_CHECK(drawn.size() == going.size());
    for (size_t i = 0; i < going.size(); ++i) going[i]->Take(drawn[i], options_.min_probability);
    if (!first) continue;
    // All but the last position's features have done their work.
    for (Running* d : going) {
      State& state = *d->state;
      const int32_t done = Waiting(state) - 1;
      state.waiting.erase(state.waiting.begin(),
                          state.waiting.begin() + ptrdiff_t{done} * head_->feature_size());
      state.computed += done;
      state.begun = true;
    }
  }
}

Status EagleProposer::Propose(std::span<const DraftContext> contexts,
                              std::span<TokenDraft> drafts) {
  AISP_CHECK(static_cast<int32_t>(contexts.size()) <= head_->max_sequences());
  ++call_;
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
