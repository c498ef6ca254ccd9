// DraftModelProposer: a second, smaller model with the same vocabulary drafts tokens.
//
// It draws by the target's rules (engine/sampler.h): same parameters, penalties, bans and masks,
// same noise keyed by seed, choice, position and token. So both models choose the same token
// wherever they nearly agree, sampled as well as greedy. All sequences of a call are drafted
// together, one step of the draft model's executor per position.
//
// It owns the executor and its KV pool, and tracks which tokens of each sequence the pool holds. A
// sequence that lags by more than one draft (new, or not drafted for a while) is prefilled in
// bounded chunks, and gets no draft until that is complete. If the pool is full, the least recently
// drafted sequence gives up its blocks. Engine thread only.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "engine/drafting.h"
#include "engine/executor.h"
#include "engine/request.h"
#include "speculation/proposer.h"

namespace aisp {

struct DraftModelOptions {
  // Most tokens prefilled per call, beyond those after the last draft; at most the executor's rows.
  int32_t catch_up_tokens = 256;
  // A draft ends after the token at which its joint probability falls below this.
  float min_probability = 0.1f;
};

class DraftModelProposer final : public Proposer {
 public:
  // Most rows of one sequence in the first step of a draft.
  static constexpr int32_t kTailRows = 4;

  // `executor` needs a slot for every sequence drafted at once and kTailRows rows for each. Its
  // vocabulary is the target's.
  DraftModelProposer(const DraftModelOptions& options, std::unique_ptr<Executor> executor,
                     const Clock* clock);

  std::string_view name() const override { return "draft_model"; }
  bool costly() const override { return true; }
  Duration catch_up() const override { return catch_up_; }
  // Errors come from the executor; all sequences' KV in the pool is then forgotten.
  Status Propose(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) override;
  void Ended(const DraftContext& context) override { Forget(context.sequence); }

  size_t sequences() const { return states_.size(); }
  int32_t free_blocks() const { return static_cast<int32_t>(free_.size()); }

 private:
  struct State {
    std::vector<BlockId> blocks;
    // The pool holds KV of the first `computed` tokens, followed by that of `ahead`, the last
    // draft, whose tokens may have been rejected.
    int32_t computed = 0;
    std::vector<TokenId> ahead;
    uint64_t call = 0;  // the last one that drafted it
    SamplingParams sampling;
  };
  struct Running : Drafting {
    State* state = nullptr;
  };

  void Forget(SequenceId id);
  State& Confirm(const DraftContext& context);
  // False: the pool has no room that this call's sequences do not hold.
  bool Reserve(State& state, int32_t tokens);
  bool ReclaimOldest();
  Status CatchUp(std::span<const DraftContext> contexts);
  void Begin(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts);
  Status DraftAll();
  void AppendRows(const Running& d);
  void AppendSequence(const State& state, int32_t slot, int32_t begin,
                      std::span<const TokenId> tokens);
  Result<StepResult> Run();

  const DraftModelOptions options_;
  const std::unique_ptr<Executor> executor_;
  const Clock* const clock_;
  std::vector<BlockId> free_;
  std::unordered_map<SequenceId, State> states_;
  uint64_t call_ = 0, step_ = 0;
  Duration catch_up_{};
  std::vector<Running> drafting_;

  // Inputs of the step being built.
  std::vector<TokenId> tokens_;
  std::vector<int32_t> positions_, slots_, tables_, logit_rows_;
  std::vector<SequenceRows> sequences_;
  std::vector<SampleRow> samples_;
};

}  // namespace aisp
