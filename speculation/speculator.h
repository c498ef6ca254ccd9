// Speculator: called by the engine before each step. It gets drafts from a proposer, decides how
// many tokens the step verifies, and learns from acceptance and step times. Forced runs (tokens
// that a constraint leaves no choice for) come with the sequences and need no proposer.
//
// A proposer that fails, or is slow several times in a row, is no longer asked for the sequences of
// that call; they continue without drafts. Engine thread only; statistics too.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "speculation/draft_chooser.h"
#include "speculation/proposer.h"
#include "speculation/verify_cost.h"

namespace aisp {

struct SpeculatorOptions {
  int32_t num_tokens = 8;  // longest draft
  bool adaptive = true;    // false: whole drafts are verified
  // A proposer call that takes longer is slow; after so many in a row it is dropped.
  Duration slow = std::chrono::milliseconds(100);
  int32_t slow_calls = 3;
  bool forced_runs = true;  // the engine asks constraints for forced runs (DrawGuide::Forced)
};

// How a device runs steps.
struct DeviceSteps {
  std::vector<int32_t> sizes;  // sizes that steps are padded to, ascending; empty: no padding
  bool ahead = false;  // steps without drafts are launched before the last step's tokens are known
  bool operator==(const DeviceSteps&) const = default;
};

// A running sequence for the next step.
struct SpeculativeSequence {
  DraftContext context;
  TokenDraft draft;
  int32_t rows = 0;      // leading draft tokens to verify
  int32_t forced = 0;    // leading draft tokens forced by a constraint; set before Propose
  bool proposes = true;  // whether the proposer is asked
};

struct SpeculatorStats {
  uint64_t failed = 0;     // sequences that lost their proposer because it failed
  uint64_t slow = 0;       // because it was slow
  uint64_t proposals = 0;  // non-empty drafts, verified or not
};

class Speculator {
 public:
  // `proposer` null: only forced runs are verified.
  Speculator(const SpeculatorOptions& options, std::unique_ptr<Proposer> proposer,
             const Clock* clock);

  // Call before the first step; forgets step times of another device.
  void RunsOn(const DeviceSteps& device);
  bool forced_runs() const { return options_.forced_runs; }
  bool has_proposer() const { return proposer_ != nullptr; }
  // Size in elements of the features that Computed needs; 0: Computed need not be called.
  int32_t feature_size() const { return has_proposer() ? proposer_->feature_size() : 0; }
  // Proposer::feature_window.
  int32_t feature_window() const { return has_proposer() ? proposer_->feature_window() : 0; }
  void Computed(std::span<const ComputedRows> rows);
  // Fills the drafts. A forced run is extended if the proposer's draft starts with all of it and is
  // longer. Tokens that the owner then cuts off do not count as proposed.
  void Propose(std::span<SpeculativeSequence> sequences, const VerifyStep& shape);
  // Sets `rows`.
  void Choose(std::span<SpeculativeSequence> sequences, const VerifyStep& shape);
  // After Choose: the number of steps to run before asking again. It grows while no draft token is
  // worth a row, if waiting for the last step's tokens costs time.
  int32_t plain_steps() const { return plain_steps_; }
  // Result for the last Choose's draft: `drafted` tokens had rows, `accepted` were accepted.
  // `next_matched`: the token drawn after them equals the draft's next token.
  void Verified(SequenceId sequence, int32_t drafted, int32_t accepted, bool next_matched);
  // Time of a step without prefill rows; `drafts` of its rows verified a draft token.
  void StepTook(int32_t rows, int32_t drafts, int64_t context_tokens, Duration took);
  void Ended(const DraftContext& context);

  const SpeculatorStats& stats() const { return stats_; }
  const VerifyCost& cost() const { return cost_; }
  std::string_view method() const { return has_proposer() ? proposer_->name() : "none"; }
  // Number of sequences with state.
  size_t sequences() const { return states_.size(); }

 private:
  // After so many steps without drafts a costly proposer is asked for one token (for a whole draft
  // if made at once), to probe the acceptance rate; then after twice as many, and so on.
  static constexpr int32_t kFirstProbe = 16;
  struct State {
    AcceptanceRecord acceptance, of_runs;
    AcceptanceRecord by_position;  // acceptance by position, ignoring confidence
    // Of the draft being verified, and its number of forced tokens.
    std::vector<float> confidence;
    int32_t forced = 0;
    bool off = false;
  };

  void SwitchOff(std::span<const DraftContext> contexts, uint64_t* count);
  void NoteDraftTime(int32_t length, double seconds);
  // Expected seconds to draft 1, 2, ... tokens for all sequences.
  std::vector<double> DraftSeconds() const;
  int32_t LengthFor(std::span<const SpeculativeSequence> sequences, const VerifyStep& shape);
  // Expected values of drafts before they are made, into `candidates_`.
  void ListExpected(std::span<const SpeculativeSequence> sequences);
  // Selects the sequences to ask: `contexts_` of `asked_`.
  void ListAsked(std::span<const SpeculativeSequence> sequences, int32_t length);
  bool Asks(const SpeculativeSequence& sequence);
  // Makes the proposed draft the sequence's, or appends it to its forced run. False: neither.
  static bool Join(TokenDraft* proposed, SpeculativeSequence* sequence);
  double AcceptanceAt(const State& state, int32_t at, float confidence) const;
  void Learn(State* state, int32_t at, bool accepted);

  const SpeculatorOptions options_;
  const std::unique_ptr<Proposer> proposer_;
  const Clock* const clock_;
  VerifyCost cost_;
  Acceptance acceptance_, run_acceptance_;
  AcceptanceRecord everybody_;         // of all sequences, for costly proposers
  double spent_seconds_ = 0;           // by the last Propose
  std::vector<double> draft_seconds_;  // of a costly proposer, by length; 0: not measured
  int32_t slow_in_row_ = 0;
  DeviceSteps device_;
  int32_t plain_steps_ = 0;
  int32_t idle_steps_ = 0;             // since a costly proposer was asked
  int32_t probe_steps_ = kFirstProbe;  // steps until the next probe
  std::unordered_map<SequenceId, State> states_;
  SpeculatorStats stats_;

  std::vector<ComputedRows> computed_;
  std::vector<DraftContext> contexts_;
  std::vector<TokenDraft> drafts_;
  std::vector<size_t> asked_;
  std::vector<DraftCandidate> candidates_;
};

}  // namespace aisp
