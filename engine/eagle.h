// EagleProposer: an EAGLE-3 head (Li et al., arXiv:2503.01840) names what may follow. It reads what
// the target knows: the features of each computed position, which come with every step (Computed).
//
// It draws as the target will (engine/drafting.h). The first row of a draft has the target's
// features of the last position, the others go on with the head's own output; all sequences of a
// call are drafted together.
//
// It owns the head and its KV pool. Of each sequence the pool holds a run of positions, each
// computed from the target's features: rows of a draft lie behind them and are written over by the
// next ones, so nothing that was rejected is ever read. The run begins where features begin: behind
// a prefix whose KV came from a cache or from another worker, or behind what was given up when the
// pool was full. What is missing in front of it is not in the sequence that the head sees, and
// never read. Positions that come again (after preemption) are known already. Engine thread only.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/draft_head.h"
#include "engine/drafting.h"
#include "speculation/proposer.h"

namespace aisp {

struct EagleOptions {
  // A draft ends behind the token with which all of it became less likely than this.
  float min_probability = 0.1f;
};

class EagleProposer final : public Proposer {
 public:
  // Features of so many positions wait for the next draft; more are taken up as they come.
  static constexpr int32_t kWaiting = 9;

  // `head`: for as many sequences as are ever asked for at once, and kWaiting rows for each.
  EagleProposer(const EagleOptions& options, std::unique_ptr<DraftHead> head);

  std::string_view name() const override { return "eagle3"; }
  bool costly() const override { return true; }
  int32_t feature_size() const override { return head_->feature_size(); }
  // Errors are the head's. What the sequences have in the pool is forgotten then.
  Status Computed(std::span<const ComputedRows> rows) override;
  Status Propose(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) override;
  void Ended(const DraftContext& context) override { Forget(context.sequence); }

  size_t sequences() const { return states_.size(); }
  int32_t free_blocks() const { return static_cast<int32_t>(free_.size()); }

 private:
  struct State {
    std::vector<BlockId> blocks;
    int32_t first = 0;     // position of the run's first row
    int32_t computed = 0;  // rows of the run whose KV is in the pool
    // Features of the positions behind those, in order. KV of the first of them is there too where
    // it began the last draft: features are kept, for the next draft may begin there again.
    std::vector<float> waiting;
    bool begun = false;
    uint64_t call = 0;  // the last one that asked for it, or behind which it was taken up
    SamplingParams sampling;
  };
  struct Running : Drafting {
    State* state = nullptr;
    int32_t output = -1;  // its row among those that the last step drew from
  };

  int32_t Waiting(const State& state) const;
  int32_t End(const State& state) const { return state.first + state.computed + Waiting(state); }
  void Forget(SequenceId id);
  void GiveUpBlocks(State& state);
  // False: the pool has no room that another sequence of the last call does not hold.
  bool Reserve(State& state, int32_t rows);
  bool ReclaimOldest(const State& keep);
  State& Note(const ComputedRows& rows);
  // Rows of waiting positions but the last one, without a draw.
  Status TakeUp(std::vector<std::pair<State*, std::span<const TokenId>>> late);
  void Begin(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts);
  Status DraftAll();
  void AppendNext(const Running& d);
  // The first `count` rows of what waits.
  void AppendWaiting(const State& state, std::span<const TokenId> tokens, int32_t count);
  void AppendSequence(const State& state, int32_t begin, std::span<const TokenId> tokens);
  Result<std::vector<SampledToken>> Run();

  const EagleOptions options_;
  const std::unique_ptr<DraftHead> head_;
  std::vector<BlockId> free_;
  std::unordered_map<SequenceId, State> states_;
  uint64_t call_ = 1;
  std::vector<Running> drafting_;

  // Of the step that is being built.
  std::vector<TokenId> tokens_;
  std::vector<int32_t> positions_, tables_, logit_rows_, goes_on_;
  std::vector<SequenceRows> sequences_;
  std::vector<float> features_;
  std::vector<SampleRow> samples_;
};

}  // namespace aisp
