// DraftModelProposer: a second, smaller model with the same tokens names what may follow.
//
// It draws as the target will (engine/sampler.h): same parameters, penalties, bans and masks, same
// noise keyed by seed, choice, position and token. So both models choose the same token wherever
// they nearly agree, sampled as well as greedy. All sequences of a call are drafted together, one
// step of the draft's executor for each position.
//
// It owns the executor and its KV pool. Of each sequence it knows which tokens the pool holds. One
// that is behind by more than a draft leaves (it is new, or nobody asked for it for a while) takes
// up its tokens in bounded chunks, and nothing is proposed for it before it has them all. Where the
// pool is full, the sequence that was longest not asked for gives its blocks up. Engine thread
// only.
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
  // Tokens that a call takes up beside those behind the last draft; at most the executor's rows.
  int32_t catch_up_tokens = 256;
  // A draft ends behind the token with which all of it became less likely than this.
  float min_probability = 0.1f;
};

class DraftModelProposer final : public Proposer {
 public:
  // Rows of one sequence in the first step of a draft, at most.
  static constexpr int32_t kTailRows = 4;

  // `executor`: for as many slots as sequences are ever asked for at once, and kTailRows rows for
  // each. Its vocabulary is the target's.
  DraftModelProposer(const DraftModelOptions& options, std::unique_ptr<Executor> executor,
                     const Clock* clock);

  std::string_view name() const override { return "draft_model"; }
  bool costly() const override { return true; }
  Duration catch_up() const override { return catch_up_; }
  // An error is the executor's. What the sequences have in the pool is forgotten then.
  Status Propose(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) override;
  void Ended(const DraftContext& context) override { Forget(context.sequence); }

  size_t sequences() const { return states_.size(); }
  int32_t free_blocks() const { return static_cast<int32_t>(free_.size()); }

 private:
  struct State {
    std::vector<BlockId> blocks;
    // KV of so many of the sequence's own tokens is in the pool, and behind it that of `ahead`,
    // which were proposed last and may not have stood.
    int32_t computed = 0;
    std::vector<TokenId> ahead;
    uint64_t call = 0;  // the last one that asked for it
    SamplingParams sampling;
  };
  struct Running : Drafting {
    State* state = nullptr;
  };

  void Forget(SequenceId id);
  State& Confirm(const DraftContext& context);
  // False: the pool has no room that another sequence of this call does not hold.
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

  // Of the step that is being built.
  std::vector<TokenId> tokens_;
  std::vector<int32_t> positions_, slots_, tables_, logit_rows_;
  std::vector<SequenceRows> sequences_;
  std::vector<SampleRow> samples_;
};

}  // namespace aisp
