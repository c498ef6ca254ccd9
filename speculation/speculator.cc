#include "speculation/speculator.h"

#include <algorithm>
#include <utility>

#include "common/log.h"

namespace aisp {
namespace {

// Without drafts for so many steps, one is verified all the same, to see what it costs now.
constexpr int32_t kProbeSteps = 64;
constexpr int32_t kProbeRows = 4;

// Of positions of drafts, all sequences together.
constexpr double kFirstStands = 0.7;
constexpr double kPrior = 4.0;  // drafts that a guess counts for
constexpr float kForget = 0.995f;

// What became of forced runs is told apart for the last token, which stands where the text behind
// the run is spelled apart from it.
constexpr size_t kInside = 0, kLast = 1;

}  // namespace

Speculator::Speculator(const SpeculatorOptions& options, std::unique_ptr<Proposer> proposer,
                       const Clock* clock)
    : options_(options), proposer_(std::move(proposer)), clock_(clock) {}

int32_t Speculator::LengthFor(const StepShape& shape) {
  if (!options_.adaptive || !proposer_->costly()) return options_.num_tokens;
  std::vector<double> stands;
  double before = kFirstStands;
  for (int32_t i = 0; i < options_.num_tokens; ++i) {
    const size_t at = std::min<size_t>(static_cast<size_t>(i), AcceptanceRecord::kPositions - 1);
    // A position of which little is known stands as often as the one in front of it.
    before = (everybody_.hits[at] + kPrior * before) / (everybody_.expected[at] + kPrior);
    stands.push_back(std::min(0.99, before));
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

void Speculator::ListAsked(std::span<const SpeculativeSequence> sequences, int32_t length) {
  contexts_.clear();
  asked_.clear();
  for (size_t i = 0; i < sequences.size(); ++i) {
    const SpeculativeSequence& s = sequences[i];
    // Tokens that cost time are not bought where the constraint names some for nothing.
    if (!s.proposes || (s.forced > 0 && proposer_->costly())) continue;
    DraftContext context = s.context;
    context.limit = std::min(context.limit, s.forced + length);
    if (context.limit <= 0 || states_[context.sequence].off) continue;
    contexts_.push_back(context);
    asked_.push_back(i);
  }
}

bool Speculator::Join(TokenDraft* proposed, SpeculativeSequence* sequence) {
  TokenDraft& draft = sequence->draft;
  const auto forced = static_cast<ptrdiff_t>(draft.tokens.size());
  if (std::ssize(proposed->tokens) <= forced ||
      !std::equal(draft.tokens.begin(), draft.tokens.end(), proposed->tokens.begin()))
    return false;
  std::copy(draft.confidence.begin(), draft.confidence.end(), proposed->confidence.begin());
  std::swap(draft, *proposed);
  return true;
}

void Speculator::Propose(std::span<SpeculativeSequence> sequences, const StepShape& shape) {
  for (SpeculativeSequence& s : sequences) {
    s.rows = 0;
    if (s.forced == 0) s.draft.Clear();
  }
  spent_seconds_ = 0;
  if (!has_proposer()) return;
  ListAsked(sequences, LengthFor(shape));
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
  spent_seconds_ = std::max(0.0, ToSeconds(took - proposer_->catch_up()));
  int32_t longest = 0;
  for (size_t i = 0; i < asked_.size(); ++i) {
    TokenDraft& draft = drafts_[i];
    const auto limit = static_cast<size_t>(contexts_[i].limit);
    if (draft.tokens.size() > limit) draft.tokens.resize(limit);
    draft.confidence.resize(draft.tokens.size(), 0.5f);
    longest = std::max(longest, static_cast<int32_t>(draft.tokens.size()));
    stats_.proposals += Join(&draft, &sequences[asked_[i]]) ? 1 : 0;
  }
  if (longest > 0 && proposer_->timed()) {
    const double each = spent_seconds_ / longest;
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

double Speculator::StandsAt(const State& state, int32_t at, float confidence) const {
  const auto position = static_cast<size_t>(std::max(0, at - state.forced));
  const float stands =
      at < state.forced ? run_acceptance_.Probability(
                              state.of_runs, at + 1 == state.forced ? kLast : kInside, confidence)
                        : acceptance_.Probability(state.acceptance, position, confidence);
  return static_cast<double>(stands);
}

void Speculator::Choose(std::span<SpeculativeSequence> sequences, const StepShape& step) {
  StepShape shape = step;
  shape.spent_seconds = spent_seconds_;
  candidates_.clear();
  for (size_t i = 0; i < sequences.size(); ++i) {
    const TokenDraft& draft = sequences[i].draft;
    State& state = states_[sequences[i].context.sequence];
    const auto tokens = std::ssize(draft.tokens);
    state.confidence.assign(draft.confidence.begin(), draft.confidence.begin() + tokens);
    state.forced = std::min(sequences[i].forced, static_cast<int32_t>(tokens));
    double together = 1;
    for (int32_t at = 0; at < tokens; ++at) {
      together *= StandsAt(state, at, state.confidence[static_cast<size_t>(at)]);
      candidates_.push_back({static_cast<int32_t>(i), at, together});
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
  const bool costly = has_proposer() && proposer_->costly();
  const bool idle = chosen == 0 && (!candidates_.empty() || costly);
  if (idle && ++idle_steps_ > kProbeSteps && costly)
    chosen = std::min({kProbeRows, static_cast<int32_t>(candidates_.size()), shape.max_drafts});
  if (chosen > 0) idle_steps_ = 0;
  for (int32_t i = 0; i < chosen; ++i)
    ++sequences[static_cast<size_t>(candidates_[static_cast<size_t>(i)].sequence)].rows;
}

void Speculator::Learn(State* state, int32_t at, bool stood) {
  const float confidence = state->confidence[static_cast<size_t>(at)];
  if (at < state->forced) {
    const size_t place = at + 1 == state->forced ? kLast : kInside;
    return run_acceptance_.Learn(&state->of_runs, place, confidence, stood);
  }
  const auto position = static_cast<size_t>(at - state->forced);
  acceptance_.Learn(&state->acceptance, position, confidence, stood);
  const size_t slot = std::min(position, AcceptanceRecord::kPositions - 1);
  everybody_.hits[slot] = kForget * everybody_.hits[slot] + (stood ? 1.0f : 0.0f);
  everybody_.expected[slot] = kForget * everybody_.expected[slot] + 1.0f;
}

void Speculator::Verified(SequenceId sequence, int32_t drafted, int32_t accepted, bool next_stood) {
  const auto it = states_.find(sequence);
  if (it == states_.end()) return;
  State& state = it->second;
  const auto known = static_cast<int32_t>(state.confidence.size());
  for (int32_t i = 0; i < std::min(accepted, known); ++i) Learn(&state, i, true);
  if (accepted < known) Learn(&state, accepted, accepted == drafted && next_stood);
  state.confidence.clear();
}

void Speculator::StepTook(int32_t rows, int64_t context_tokens, Duration took) {
  cost_.Add(rows, context_tokens, took);
}

void Speculator::Ended(const DraftContext& context) {
  states_.erase(context.sequence);
  if (has_proposer()) proposer_->Ended(context);
}

}  // namespace aisp
