// EagleProposer: an EAGLE-3 head (Li et al., arXiv:2503.01840), or a checkpoint's next-token layer,
// which differs in what features it reads, names what may follow. It reads what the target knows:
// the features of each computed position, which come with every step (Computed).
//
// It draws as the target will (engine/drafting.h). The first row of a draft has the target's
// features of the last position, the others go on with the head's own output; all sequences of a
// call are drafted together. Where the head runs beside the host, and no draw depends on a token in
// front of it but by the head, a step is launched while the one before it runs.
//
// It owns the head and its KV pool. Of each sequence the pool holds a run of positions, each
// computed from the target's features: rows of a draft lie behind them and are written over by the
// next ones, so nothing that was rejected is ever read. The run begins where features begin: behind
// a prefix whose KV came from a cache or from another worker, or behind what was given up when the
// pool was full. What is missing in front of it is not in the sequence that the head sees, and
// never read. Positions that come again (after preemption) are known already.
//
// Features stay in the device's memory: those that wait for the next draft have places there, of
// which the head has a fixed number. Engine thread only.
#pragma once

#include <deque>
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
  std::string_view method = "eagle3";
  int32_t feature_window = Proposer::kWholePrompt;
};

class EagleProposer final : public Proposer {
 public:
  // Features of so many positions wait for the next draft, if the head's steps have as many rows
  // for each sequence; more are taken up as they come.
  static constexpr int32_t kWaiting = 9;

  // `head`: for as many sequences as are ever asked for at once, and two rows at least for each.
  EagleProposer(const EagleOptions& options, std::unique_ptr<DraftHead> head);

  std::string_view name() const override { return options_.method; }
  bool costly() const override { return true; }
  bool timed() const override { return timed_; }
  int32_t feature_size() const override { return head_->feature_size(); }
  int32_t feature_window() const override { return options_.feature_window; }
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
    // it began the last draft: features are kept, for the next draft may begin there again. Each is
    // where the row lies: between calls one of the head's places.
    std::vector<const std::byte*> waiting;
    bool begun = false;
    uint64_t call = 0;   // the last one that asked for it, or behind which it was taken up
    uint64_t noted = 0;  // the last one that told of it
    SamplingParams sampling;
  };
  struct Running : Drafting {
    State* state = nullptr;
    int32_t slot = 0;
    int32_t output = -1;   // its row among those that the last step drew from
    int32_t launched = 0;  // tokens that steps were launched for
  };

  static int32_t Waiting(const State& state) { return static_cast<int32_t>(state.waiting.size()); }
  static int32_t End(const State& state) { return state.first + state.computed + Waiting(state); }
  void Forget(SequenceId id);
  // The same rows where the head reads them; those that found no place are left out.
  Result<std::span<const ComputedRows>> Placed(std::span<const ComputedRows> rows);
  // The first `count` rows of what waits.
  void DropWaiting(State& state, int32_t count);
  // What waits for this call's sequences alone is brought to places.
  Status KeepWaiting(std::span<const ComputedRows> rows);
  std::byte* TakePlace();
  void GiveUpBlocks(State& state);
  // False: the pool has no room that another sequence of the last call does not hold.
  bool Reserve(State& state, int32_t rows);
  bool ReclaimOldest(const State& keep);
  State& Note(const ComputedRows& rows);
  // Rows of waiting positions but the last one, without a draw.
  Status CatchUp(std::vector<std::pair<State*, std::span<const TokenId>>> late);
  void Begin(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts);
  Status DraftAll();
  Status LaunchDraws(bool first);
  Status CollectDraws();
  void AppendNext(const Running& d);
  // The first `count` rows of what waits.
  void AppendWaiting(const State& state, std::span<const TokenId> tokens, int32_t count);
  void AppendSequence(const State& state, int32_t begin, std::span<const TokenId> tokens,
                      int32_t slot);
  Status Launch();

  const EagleOptions options_;
  const std::unique_ptr<DraftHead> head_;
  const int32_t most_waiting_;
  std::vector<BlockId> free_;
  std::vector<std::byte*> free_places_;
  std::unordered_map<SequenceId, State> states_;
  uint64_t call_ = 1, told_ = 0;
  bool took_up_ = false;  // since the last draft, beside the host
  bool timed_ = true;
  std::vector<Running> drafting_;
  std::deque<std::vector<Running*>> flights_;  // whom the steps in flight draw for

  // Of the step that is being built.
  std::vector<TokenId> tokens_;
  std::vector<int32_t> positions_, slots_, tables_, logit_rows_, goes_on_;
  std::vector<SequenceRows> sequences_;
  std::vector<const std::byte*> features_;
  std::vector<SampleRow> samples_;
  std::vector<FeatureCopy> copies_;
  std::vector<ComputedRows> told_rows_;  // while it is told of rows that lie in the host's memory
  std::vector<std::span<const float>> runs_;
  std::vector<std::span<const std::byte>> placed_;
};

}  // namespace aisp
