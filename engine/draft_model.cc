#include "engine/draft_model.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace aisp {
namespace {

// Tokens whose KV the draft model lacks; at least the last one, whose row draws.
int32_t Behind(const DraftContext& context, int32_t computed) {
  return static_cast<int32_t>(context.tokens.size()) - computed;
}

}  // namespace

DraftModelProposer::DraftModelProposer(const DraftModelOptions& options,
                                       std::unique_ptr<Executor> executor, const Clock* clock)
    : options_(options), executor_(std::move(executor)), clock_(clock) {
  AISP_CHECK(options_.catch_up_tokens > 0);
  AISP_CHECK(executor_->max_batch_tokens() >= kTailRows * executor_->max_slots());
  for (int32_t i = executor_->kv_layout().num_blocks; i > 0; --i) free_.emplace_back(i - 1);
}

void DraftModelProposer::Forget(SequenceId id) {
  const auto it = states_.find(id);
  if (it == states_.end()) return;
  free_.insert(free_.end(), it->second.blocks.begin(), it->second.blocks.end());
  states_.erase(it);
}

// Updates its state after the last verify step: KV of accepted draft tokens is kept.
DraftModelProposer::State& DraftModelProposer::Confirm(const DraftContext& context) {
  const auto [it, added] = states_.try_emplace(context.sequence);
  State& state = it->second;
  if (added) {
    state.sampling = DraftSampling(*context.sampling);
  }
  const auto size = static_cast<int32_t>(context.tokens.size());
  for (const TokenId token : state.ahead) {
    if (state.computed >= size || context.tokens[static_cast<size_t>(state.computed)] != token)
      break;
    ++state.computed;
  }
  state.ahead.clear();
  state.computed = std::min(state.computed, size - 1);
  state.call = call_;
  return state;
}

bool DraftModelProposer::ReclaimOldest() {
  State* oldest = nullptr;
  for (auto& [id, state] : states_) {
    if (state.call == call_ || state.blocks.empty()) continue;
    if (oldest == nullptr || state.call < oldest->call) oldest = &state;
  }
  if (oldest == nullptr) return false;
  free_.insert(free_.end(), oldest->blocks.begin(), oldest->blocks.end());
  oldest->blocks.clear();
  oldest->ahead.clear();
  oldest->computed = 0;
  return true;
}

bool DraftModelProposer::Reserve(State& state, int32_t tokens) {
  const auto wanted = static_cast<size_t>(executor_->kv_layout().BlocksFor(tokens));
  while (state.blocks.size() + free_.size() < wanted) {
    if (!ReclaimOldest()) return false;
  }
  while (state.blocks.size() < wanted) {
    state.blocks.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

void DraftModelProposer::AppendSequence(const State& state, int32_t slot, int32_t begin,
                                        std::span<const TokenId> tokens) {
  SequenceRows rows;
  rows.row_begin = static_cast<int32_t>(tokens_.size());
  rows.num_rows = static_cast<int32_t>(tokens.size());
  rows.context_len = begin + rows.num_rows;
  rows.table_begin = static_cast<int32_t>(tables_.size());
  sequences_.push_back(rows);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  for (int32_t i = begin; i < rows.context_len; ++i) positions_.push_back(i);
  slots_.insert(slots_.end(), tokens.size(), slot);
  const int32_t blocks = executor_->kv_layout().BlocksFor(rows.context_len);
  AISP_CHECK(blocks <= static_cast<int32_t>(state.blocks.size()));
  for (int32_t i = 0; i < blocks; ++i)
    tables_.push_back(state.blocks[static_cast<size_t>(i)].value);
}

Result<StepResult> DraftModelProposer::Run() {
  StepInput input;
  input.step = ++step_;
  input.batch = ForwardBatch{tokens_, positions_, slots_, sequences_, tables_, logit_rows_};
  input.samples = samples_;
  const Result<Ticket> ticket = executor_->Launch(input);
  Result<StepResult> result =
      ticket ? executor_->Collect(*ticket) : Result<StepResult>(tl::unexpected(ticket.error()));
  tokens_.clear(), positions_.clear(), slots_.clear(), tables_.clear(), logit_rows_.clear();
  sequences_.clear();
  samples_.clear();
  return result;
}

// One step over known tokens, without a draw. The shortest come first, so that a long prompt does
// not keep others from drafting.
Status DraftModelProposer::CatchUp(std::span<const DraftContext> contexts) {
  std::vector<std::pair<int32_t, const DraftContext*>> late;
  for (const DraftContext& context : contexts) {
    const int32_t behind = Behind(context, Confirm(context).computed);
    if (behind > kTailRows) late.emplace_back(behind, &context);
  }
  if (late.empty()) return {};
  std::sort(late.begin(), late.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  const Instant begin = clock_->Now();
  int32_t left = std::min(options_.catch_up_tokens, executor_->max_batch_tokens());
  std::vector<std::pair<State*, int32_t>> taken;
  for (const auto& [behind, context] : late) {
    State& state = states_.at(context->sequence);
    const int32_t rows = std::min(behind - 1, left);
    if (rows == 0) break;
    if (!Reserve(state, state.computed + rows)) continue;
    AppendSequence(
        state, static_cast<int32_t>(taken.size()), state.computed,
        context->tokens.subspan(static_cast<size_t>(state.computed), static_cast<size_t>(rows)));
    taken.emplace_back(&state, rows);
    left -= rows;
  }
  if (taken.empty()) return {};
  AISP_RETURN_IF_ERROR(Run());
  for (const auto& [state, rows] : taken) state->computed += rows;
  catch_up_ = clock_->Now() - begin;
  return {};
}

// Starts drafts of the sequences that are fully prefilled and have room.
void DraftModelProposer::Begin(std::span<const DraftContext> contexts,
                               std::span<TokenDraft> drafts) {
  drafting_.clear();
  for (size_t i = 0; i < contexts.size(); ++i) {
    const DraftContext& context = contexts[i];
    State& state = states_.at(context.sequence);
    if (Behind(context, state.computed) > kTailRows) continue;
    const auto size = static_cast<int32_t>(context.tokens.size());
    const int32_t limit = std::min(context.limit, executor_->max_context() - size);
    if (limit <= 0 || !Reserve(state, size + limit - 1)) continue;
    Running& d = drafting_.emplace_back();
    d.context = &context;
    d.sampling = &state.sampling;
    d.draft = &drafts[i];
    d.limit = limit;
    d.state = &state;
    d.Begin();
  }
}

void DraftModelProposer::AppendRows(const Running& d) {
  State& state = *d.state;
  const auto slot = static_cast<int32_t>(samples_.size());
  if (d.draft->tokens.empty()) {
    AppendSequence(state, slot, state.computed,
                   d.context->tokens.subspan(static_cast<size_t>(state.computed)));
    state.computed = static_cast<int32_t>(d.context->tokens.size());
  } else {
    const int32_t begin = state.computed + static_cast<int32_t>(state.ahead.size());
    state.ahead.push_back(d.draft->tokens.back());
    AppendSequence(state, slot, begin, std::span<const TokenId>(state.ahead).last(1));
  }
  samples_.push_back(d.Draw(static_cast<int32_t>(logit_rows_.size()), slot));
  logit_rows_.push_back(static_cast<int32_t>(tokens_.size()) - 1);
}

Status DraftModelProposer::DraftAll() {
  std::vector<Running*> going;
  for (;;) {
    going.clear();
    for (Running& d : drafting_) {
      if (d.done) continue;
      AppendRows(d);
      going.push_back(&d);
    }
    if (going.empty()) return {};
    AISP_ASSIGN_OR_RETURN(const StepResult result, Run());
    AISP_CHECK(result.tokens.size() == going.size());
    for (size_t i = 0; i < going.size(); ++i)
      going[i]->Take(result.tokens[i], options_.min_probability);
  }
}

Status DraftModelProposer::Propose(std::span<const DraftContext> contexts,
                                   std::span<TokenDraft> drafts) {
  AISP_CHECK(static_cast<int32_t>(contexts.size()) <= executor_->max_slots());
  ++call_;
  catch_up_ = {};
  Status done = CatchUp(contexts);
  if (done) {
    Begin(contexts, drafts);
    done = DraftAll();
    for (Running& d : drafting_) d.End();
  }
  if (!done) {
    for (const DraftContext& context : contexts) Forget(context.sequence);
  }
  drafting_.clear();
  return done;
}

}  // namespace aisp
