#include "speculation/speculator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "common/log.h"

namespace aisp {
namespace {

// Maximum number of steps launched ahead after useless drafts; the number doubles each time.
constexpr int32_t kMostPlainSteps = 16;

// First guess of the acceptance rate at a position, for all sequences together.
constexpr double kFirstAcceptance = 0.7;
constexpr double kPrior = 4.0;  // weight of the guess, in drafts
constexpr float kForget = 0.995f;
// Weight of all sequences' acceptance rate in that of one sequence, in drafts.
constexpr double kOthers = 24.0;
constexpr float kForgetOwn = 0.98f;
// Optimism about acceptance of one sequence, in standard deviations.
constexpr double kUnsure = 0.4;
// A probe of few sequences tells little, so those are probed more often: the longest interval is
// kProbeSteps for each sequence, up to kMostProbed of them.
constexpr int32_t kMostProbed = 4, kProbeSteps = 64;

// Bound on the relative growth of a draft's measured time; weight of a new measurement.
constexpr double kMostLonger = 2.0, kForgetTime = 0.1;

void Count(AcceptanceRecord* record, size_t slot, float forget, bool accepted) {
  record->hits[slot] = forget * record->hits[slot] + (accepted ? 1.0f : 0.0f);
  record->expected[slot] = forget * record->expected[slot] + 1.0f;
}

// Acceptance of forced runs, with the last token apart: it is rejected if the text after the run is
// tokenised differently.
constexpr size_t kInside = 0, kLast = 1;

}  // namespace

Speculator::Speculator(const SpeculatorOptions& options, std::unique_ptr<Proposer> proposer,
                       const Clock* clock)
    : options_(options), proposer_(std::move(proposer)), clock_(clock) {}

void Speculator::RunsOn(const DeviceSteps& device) {
  if (device == device_) return;
  device_ = device;
  cost_.PadTo(device.sizes);
}

void Speculator::ListExpected(std::span<const SpeculativeSequence> sequences) {
  std::array<double, AcceptanceRecord::kPositions> of_all;
  double before = kFirstAcceptance;
  for (size_t at = 0; at < of_all.size(); ++at) {
    // A position with few observations gets the acceptance rate of the one before it.
    before = (everybody_.hits[at] + kPrior * before) / (everybody_.expected[at] + kPrior);
    of_all[at] = before;
  }
  candidates_.clear();
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (!Asks(sequences[i])) continue;
    const AcceptanceRecord& own = states_[sequences[i].context.sequence].by_position;
    const int32_t limit = std::min(options_.num_tokens, sequences[i].context.limit);
    double together = 1;
    for (int32_t position = 0; position < limit; ++position) {
      const size_t at = std::min(static_cast<size_t>(position), of_all.size() - 1);
      const double probability =
          (own.hits[at] + kOthers * of_all[at]) / (own.expected[at] + kOthers);
      const double deviation =
          std::sqrt(probability * (1 - probability) / (own.expected[at] + kOthers));
      together *= std::min(0.99, probability + kUnsure * deviation);
      candidates_.push_back({static_cast<int32_t>(i), position, together});
    }
  }
  std::sort(candidates_.begin(), candidates_.end(), GoesBefore);
}

int32_t Speculator::LengthFor(std::span<const SpeculativeSequence> sequences,
                              const VerifyStep& shape) {
  if (!options_.adaptive || !proposer_->costly()) return options_.num_tokens;
  ListExpected(sequences);
  const int32_t length = ChooseLength(candidates_, shape, DraftSeconds(), cost_);
  if (length > 0) {
    probe_steps_ = kFirstProbe;
    if (proposer_->at_once()) return options_.num_tokens;
  } else if (idle_steps_ >= probe_steps_) {
    probe_steps_ =
        std::min(2 * probe_steps_, kProbeSteps * std::clamp(shape.sequences, 1, kMostProbed));
    idle_steps_ = 0;
    return proposer_->at_once() ? options_.num_tokens : 1;
  }
  return length;
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

// A costly proposer is not used where the constraint gives draft tokens for free.
bool Speculator::Asks(const SpeculativeSequence& sequence) {
  if (!sequence.proposes || (sequence.forced > 0 && proposer_->costly())) return false;
  return !states_[sequence.context.sequence].off;
}

void Speculator::ListAsked(std::span<const SpeculativeSequence> sequences, int32_t length) {
  contexts_.clear();
  asked_.clear();
  for (size_t i = 0; i < sequences.size(); ++i) {
    const SpeculativeSequence& s = sequences[i];
    DraftContext context = s.context;
    context.limit = std::min(context.limit, s.forced + length);
    if (context.limit <= 0 || !Asks(s)) continue;
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

void Speculator::Propose(std::span<SpeculativeSequence> sequences, const VerifyStep& shape) {
  for (SpeculativeSequence& s : sequences) {
    s.rows = 0;
    if (s.forced == 0) s.draft.Clear();
  }
  spent_seconds_ = 0;
  if (!has_proposer()) return;
  ListAsked(sequences, LengthFor(sequences, shape));
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
  if (longest > 0 && proposer_->timed()) NoteDraftTime(longest, spent_seconds_);
}

void Speculator::NoteDraftTime(int32_t length, double seconds) {
  if (draft_seconds_.empty()) draft_seconds_.resize(static_cast<size_t>(options_.num_tokens), 0);
  // At-once drafts cost the same at any length.
  const int32_t slot = proposer_->at_once() ? 1 : std::min(length, options_.num_tokens);
  double& mean = draft_seconds_[static_cast<size_t>(slot) - 1];
  mean += mean == 0 ? seconds : kForgetTime * (std::min(seconds, kMostLonger * mean) - mean);
  // No shorter draft bounds the mean here, so a much shorter call proves that it included a delay.
  if (proposer_->at_once() && mean > kMostLonger * seconds) mean = seconds;
}

// A draft costs at most as much per token as a shorter one: its own measurement may include a
// delay. A length without measurements is assumed to cost no more per token than a longer one.
std::vector<double> Speculator::DraftSeconds() const {
  std::vector<double> seconds(static_cast<size_t>(options_.num_tokens), 0);
  if (draft_seconds_.empty()) return seconds;
  if (proposer_->at_once()) {
    std::fill(seconds.begin(), seconds.end(), draft_seconds_[0]);
    return seconds;
  }
  for (size_t i = 0; i < seconds.size(); ++i) {
    double each = 0;
    for (size_t k = 0; k < seconds.size(); ++k) {
      if (draft_seconds_[k] == 0 || (k > i && draft_seconds_[i] > 0)) continue;
      const double other = draft_seconds_[k] / static_cast<double>(k + 1);
      each = each == 0 ? other : std::min(each, other);
    }
    seconds[i] = each * static_cast<double>(i + 1);
  }
  return seconds;
}

void Speculator::SwitchOff(std::span<const DraftContext> contexts, uint64_t* count) {
  for (const DraftContext& context : contexts) states_[context.sequence].off = true;
  *count += contexts.size();
}

double Speculator::AcceptanceAt(const State& state, int32_t at, float confidence) const {
  const auto position = static_cast<size_t>(std::max(0, at - state.forced));
  const float probability =
      at < state.forced ? run_acceptance_.Probability(
                              state.of_runs, at + 1 == state.forced ? kLast : kInside, confidence)
                        : acceptance_.Probability(state.acceptance, position, confidence);
  return static_cast<double>(probability);
}

void Speculator::Choose(std::span<SpeculativeSequence> sequences, const VerifyStep& step) {
  VerifyStep shape = step;
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
      together *= AcceptanceAt(state, at, state.confidence[static_cast<size_t>(at)]);
      candidates_.push_back({static_cast<int32_t>(i), at, together});
    }
  }
  std::sort(candidates_.begin(), candidates_.end(), GoesBefore);
  const int32_t chosen = options_.adaptive ? ChooseDrafts(candidates_, shape, cost_)
                                           : static_cast<int32_t>(candidates_.size());
  for (int32_t i = 0; i < chosen; ++i)
    ++sequences[static_cast<size_t>(candidates_[static_cast<size_t>(i)].sequence)].rows;
  const int32_t most = device_.ahead ? kMostPlainSteps : 1;
  plain_steps_ = chosen > 0 ? 0 : std::clamp(2 * plain_steps_, 1, most);
  idle_steps_ = chosen > 0 ? 0 : idle_steps_ + plain_steps_;
}

void Speculator::Learn(State* state, int32_t at, bool accepted) {
  const float confidence = state->confidence[static_cast<size_t>(at)];
  if (at < state->forced) {
    const size_t place = at + 1 == state->forced ? kLast : kInside;
    return run_acceptance_.Learn(&state->of_runs, place, confidence, accepted);
  }
  const auto position = static_cast<size_t>(at - state->forced);
  acceptance_.Learn(&state->acceptance, position, confidence, accepted);
  const size_t slot = std::min(position, AcceptanceRecord::kPositions - 1);
  Count(&everybody_, slot, kForget, accepted);
  Count(&state->by_position, slot, kForgetOwn, accepted);
}

void Speculator::Verified(SequenceId sequence, int32_t drafted, int32_t accepted,
                          bool next_matched) {
  const auto it = states_.find(sequence);
  if (it == states_.end()) return;
  State& state = it->second;
  const auto known = static_cast<int32_t>(state.confidence.size());
  for (int32_t i = 0; i < std::min(accepted, known); ++i) Learn(&state, i, true);
  if (accepted < known) Learn(&state, accepted, accepted == drafted && next_matched);
  state.confidence.clear();
}

void Speculator::StepTook(int32_t rows, int32_t drafts, int64_t context_tokens, Duration took) {
  cost_.Add(rows, drafts, context_tokens, took);
}

void Speculator::Ended(const DraftContext& context) {
  states_.erase(context.sequence);
  if (has_proposer()) proposer_->Ended(context);
}

}  // namespace aisp
