// Speculator: what an engine asks before each step. It has a proposer name tokens, decides how many
// of them the step verifies, and learns from what became of them and from how long steps take. The
// runs of tokens that constraints leave one text for come with the sequences and need no proposer.
//
// A proposer that fails, or is slow several times running, is not asked again for the sequences it
// was asked for then; they go on without. Engine thread only; statistics too.
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
  // A call of the proposer that takes longer is slow; so many in a row end it.
  Duration slow = std::chrono::milliseconds(100);
  int32_t slow_calls = 3;
  bool forced_runs = true;  // the engine asks constraints for theirs (DrawGuide::Forced)
};

// How a device takes steps.
struct DeviceSteps {
  std::vector<int32_t> sizes;  // that they are padded to, ascending; empty: they are not
  bool ahead = false;          // plain ones are launched before the tokens of the last are known
  bool operator==(const DeviceSteps&) const = default;
};

// A running sequence for the next step.
struct SpeculativeSequence {
  DraftContext context;
  TokenDraft draft;
  int32_t rows = 0;      // leading tokens of the draft to verify
  int32_t forced = 0;    // leading tokens of it that a constraint named; there before Propose
  bool proposes = true;  // the proposer is asked
};

struct SpeculatorStats {
  uint64_t failed = 0;     // sequences that lost their proposer because it failed
  uint64_t slow = 0;       // or because it was slow
  uint64_t proposals = 0;  // drafts with at least one token, verified or not
};

class Speculator {
 public:
  // `proposer` may be null: then only forced runs are verified.
  Speculator(const SpeculatorOptions& options, std::unique_ptr<Proposer> proposer,
             const Clock* clock);

  // Before the first step; what was learnt of steps on another device is forgotten.
  void RunsOn(const DeviceSteps& device);
  bool forced_runs() const { return options_.forced_runs; }
  bool has_proposer() const { return proposer_ != nullptr; }
  // Elements of the features that Computed wants; 0: it need not be called.
  int32_t feature_size() const { return has_proposer() ? proposer_->feature_size() : 0; }
  // Of a prompt.
  int32_t feature_window() const { return has_proposer() ? proposer_->feature_window() : 0; }
  void Computed(std::span<const ComputedRows> rows);
  // Fills the drafts; one that holds a forced run goes on where the proposer names all of the run
  // and more. What an owner then cuts off them is not proposed.
  void Propose(std::span<SpeculativeSequence> sequences, const VerifyStep& shape);
  // Fills `rows`.
  void Choose(std::span<SpeculativeSequence> sequences, const VerifyStep& shape);
  // Behind Choose: so many steps may run before it is worth asking again. The longer nothing was
  // worth a row, the more, where waiting for tokens costs something.
  int32_t plain_steps() const { return plain_steps_; }
  // Of the draft of the last Choose, `drafted` tokens had rows and `accepted` stood; `next_stood`:
  // the token drawn behind them is that which the draft has there.
  void Verified(SequenceId sequence, int32_t drafted, int32_t accepted, bool next_stood);
  // A step without prompts, `drafts` of whose rows verified a proposed token.
  void StepTook(int32_t rows, int32_t drafts, int64_t context_tokens, Duration took);
  void Ended(const DraftContext& context);

  const SpeculatorStats& stats() const { return stats_; }
  const VerifyCost& cost() const { return cost_; }
  std::string_view method() const { return has_proposer() ? proposer_->name() : "none"; }
  // Those that it remembers something of.
  size_t sequences() const { return states_.size(); }

 private:
  // Without drafts for so many steps, a costly proposer is asked for one token all the same, to see
  // whether it stands now; then behind twice as many, and so on.
  static constexpr int32_t kFirstProbe = 16;
  struct State {
    AcceptanceRecord acceptance, of_runs;
    AcceptanceRecord stood;  // whatever the proposer thought of them
    // Of the draft that is being verified, and how many of its tokens are a forced run.
    std::vector<float> confidence;
    int32_t forced = 0;
    bool off = false;
  };

  void SwitchOff(std::span<const DraftContext> contexts, uint64_t* count);
  void NoteDraftTime(int32_t length, double seconds);
  // What drafts of 1, 2, ... tokens of all sequences may take.
  std::vector<double> DraftSeconds() const;
  int32_t LengthFor(std::span<const SpeculativeSequence> sequences, const VerifyStep& shape);
  // What drafts of `sequences` may be worth, before they are made, in `candidates_`.
  void ListExpected(std::span<const SpeculativeSequence> sequences);
  // Whom to ask: `contexts_` of the sequences `asked_`.
  void ListAsked(std::span<const SpeculativeSequence> sequences, int32_t length);
  bool Asks(const SpeculativeSequence& sequence);
  // A proposed draft becomes the sequence's, or goes on where its forced run ends. False: neither.
  static bool Join(TokenDraft* proposed, SpeculativeSequence* sequence);
  double StandsAt(const State& state, int32_t at, float confidence) const;
  void Learn(State* state, int32_t at, bool stood);

  const SpeculatorOptions options_;
  const std::unique_ptr<Proposer> proposer_;
  const Clock* const clock_;
  VerifyCost cost_;
  Acceptance acceptance_, run_acceptance_;
  AcceptanceRecord everybody_;         // of all sequences together, for costly proposers
  double spent_seconds_ = 0;           // by the last Propose
  std::vector<double> draft_seconds_;  // of a costly proposer, by length; 0: none was made
  int32_t slow_in_row_ = 0;
  DeviceSteps device_;
  int32_t plain_steps_ = 0;
  int32_t idle_steps_ = 0;             // since a costly proposer was asked
  int32_t probe_steps_ = kFirstProbe;  // behind which it is asked all the same
  std::unordered_map<SequenceId, State> states_;
  SpeculatorStats stats_;

  std::vector<ComputedRows> computed_;
  std::vector<DraftContext> contexts_;
  std::vector<TokenDraft> drafts_;
  std::vector<size_t> asked_;
  std::vector<DraftCandidate> candidates_;
};

}  // namespace aisp
