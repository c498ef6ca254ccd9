#include "speculation/speculator.h"

#include <algorithm>
#include <utility>

#include "common/log.h"

namespace aisp {
namespace {

// Without drafts for so many steps, one is verified all the same, to see what it costs now.
constexpr int32_t kProbeSteps = 64;
constexpr int32_t kProbeRows = 4;

}  // namespace

Speculator::Speculator(const SpeculatorOptions& options, std::unique_ptr<Proposer> proposer,
                       const Clock* clock)
    : options_(options), proposer_(std::move(proposer)), clock_(clock) {}

int32_t Speculator::LengthFor(const StepShape& shape) {
  if (!options_.adaptive || !proposer_->costly()) return options_.num_tokens;
  std::vector<double> stands;
  for (int32_t i = 0; i < options_.num_tokens; ++i) {
    const size_t at = std::min<size_t>(static_cast<size_t>(i), AcceptanceRecord::kPositions - 1);
    stands.push_back(
        std::min(0.99, (everybody_.hits[at] + 2.0 * 0.7) / (everybody_.expected[at] + 2.0)));
  }
  const int32_t length = ChooseLength(shape, stands, token_seconds_, cost_);
  return length == 0 && idle_steps_ >= kProbeSteps ? 1 : length;
}

void Speculator::Computed(std::span<const ComputedRows> rows) {
  computed_.clear();
  contexts_.clear();
  for (const ComputedRows& each : rows) {
    const auto it = states_.find(each.context.sequence);
    if (it != states_.end() && it->second.off) continue;
    computed_.push_back(each);
    contexts_.push_back(each.context);
  }
  if (computed_.empty()) return;
  const Status taken = proposer_->Computed(computed_);
  if (taken) return;
  LogWarning("a proposer failed; its sequences go on without",
             {{"method", proposer_->name()}, {"error", taken.error().message}});
  SwitchOff(contexts_, &stats_.failed);
}

void Speculator::Propose(std::span<SpeculativeSequence> sequences, const StepShape& shape) {
  const int32_t length = LengthFor(shape);
  contexts_.clear();
  asked_.clear();
  for (size_t i = 0; i < sequences.size(); ++i) {
    sequences[i].draft.Clear();
    sequences[i].rows = 0;
    DraftContext context = sequences[i].context;
    context.limit = std::min(context.limit, length);
    if (context.limit <= 0 || states_[context.sequence].off) continue;
    contexts_.push_back(context);
    asked_.push_back(i);
  }
  if (contexts_.empty()) return;
  if (drafts_.size() < contexts_.size()) drafts_.resize(contexts_.size());
  for (size_t i = 0; i < contexts_.size(); ++i) drafts_[i].Clear();
  const Instant begin = clock_->Now();
  const Status proposed =
      proposer_->Propose(contexts_, std::span<TokenDraft>(drafts_).first(contexts_.size()));
  const Duration took = clock_->Now() - begin;
  if (!proposed) {
    LogWarning("a proposer failed; its sequences go on without",
               {{"method", proposer_->name()}, {"error", proposed.error().message}});
    return SwitchOff(contexts_, &stats_.failed);
  }
  slow_in_row_ = took > options_.slow ? slow_in_row_ + 1 : 0;
  if (slow_in_row_ >= options_.slow_calls) {
    slow_in_row_ = 0;
    return SwitchOff(contexts_, &stats_.slow);
  }
  int32_t longest = 0;
  for (size_t i = 0; i < asked_.size(); ++i) {
    TokenDraft& draft = sequences[asked_[i]].draft;
    std::swap(draft, drafts_[i]);
    const auto limit = static_cast<size_t>(contexts_[i].limit);
    if (draft.tokens.size() > limit) draft.tokens.resize(limit);
    draft.confidence.resize(draft.tokens.size(), 0.5f);
    stats_.proposals += draft.tokens.empty() ? 0 : 1;
    longest = std::max(longest, static_cast<int32_t>(draft.tokens.size()));
  }
  if (longest > 0 && proposer_->timed()) {
    const double each = std::max(0.0, ToSeconds(took - proposer_->catch_up())) / longest;
    token_seconds_ = token_seconds_ == 0 ? each : token_seconds_ + 0.1 * (each - token_seconds_);
  }
}

void Speculator::SwitchOff(std::span<const DraftContext> contexts, uint64_t* count) {
  for (const DraftContext& context : contexts) states_[context.sequence].off = true;
  *count += contexts.size();
}

void Speculator::ChooseAll(std::span<SpeculativeSequence> sequences) {
  for (SpeculativeSequence& s : sequences) s.rows = static_cast<int32_t>(s.draft.tokens.size());
}

void Speculator::Choose(std::span<SpeculativeSequence> sequences, const StepShape& shape) {
  candidates_.clear();
  for (size_t i = 0; i < sequences.size(); ++i) {
    const TokenDraft& draft = sequences[i].draft;
    State& state = states_[sequences[i].context.sequence];
    state.confidence.assign(draft.confidence.begin(),
                            draft.confidence.begin() + static_cast<ptrdiff_t>(draft.tokens.size()));
    double together = 1;
    for (size_t at = 0; at < draft.tokens.size(); ++at) {
      together *=
          static_cast<double>(acceptance_.Probability(state.acceptance, at, draft.confidence[at]));
      candidates_.push_back({static_cast<int32_t>(i), static_cast<int32_t>(at), together});
    }
  }
  if (!options_.adaptive) return ChooseAll(sequences);
  std::sort(candidates_.begin(), candidates_.end(),
            [](const DraftCandidate& a, const DraftCandidate& b) {
              if (a.probability != b.probability) return a.probability > b.probability;
              if (a.position != b.position) return a.position < b.position;
              return a.sequence < b.sequence;
            });
  int32_t chosen = ChooseDrafts(candidates_, shape, cost_);
  // A costly proposer that was not asked has no candidates: its idle steps count all the same, or
  // it would never be asked again.
  const bool idle = chosen == 0 && (!candidates_.empty() || proposer_->costly());
  if (idle && ++idle_steps_ > kProbeSteps)
    chosen = std::min({kProbeRows, static_cast<int32_t>(candidates_.size()), shape.max_drafts});
  if (chosen > 0) idle_steps_ = 0;
  for (int32_t i = 0; i < chosen; ++i)
    ++sequences[static_cast<size_t>(candidates_[static_cast<size_t>(i)].sequence)].rows;
}

void Speculator::Verified(SequenceId sequence, int32_t drafted, int32_t accepted, bool next_stood) {
  const auto it = states_.find(sequence);
  if (it == states_.end()) return;
  State& state = it->second;
  const auto known = static_cast<int32_t>(state.confidence.size());
  const auto learn = [&](int32_t at, bool stood) {
    const auto position = static_cast<size_t>(at);
    acceptance_.Learn(&state.acceptance, position, state.confidence[position], stood);
    const size_t slot = std::min(position, AcceptanceRecord::kPositions - 1);
    everybody_.hits[slot] = 0.98f * everybody_.hits[slot] + (stood ? 1.0f : 0.0f);
    everybody_.expected[slot] = 0.98f * everybody_.expected[slot] + 1.0f;
  };
  for (int32_t i = 0; i < std::min(accepted, known); ++i) learn(i, true);
  if (accepted < known) learn(accepted, accepted == drafted && next_stood);
  state.confidence.clear();
}

void Speculator::StepTook(int32_t rows, int64_t context_tokens, Duration took) {
  cost_.Add(rows, context_tokens, took);
}

void Speculator::Ended(const DraftContext& context) {
  states_.erase(context.sequence);
  proposer_->Ended(context);
}

}  // namespace aisp
