// EagleProposer: drafts with an EAGLE-3 head (Li et al., arXiv:2503.01840) or a checkpoint's
// multi-token prediction layer, which reads different features. It reads the target's features of
// each computed position, delivered with every step (Computed).
//
// It draws by the target's rules (engine/drafting.h). The first row of a draft reads the target's
// features of the last position; later rows read the head's own output. All sequences of a call are
// drafted together. On an asynchronous head, the next step is launched while one runs, if no draw
// depends on a preceding token other than through the head.
//
// It owns the head and its KV pool. The pool holds a contiguous run of positions per sequence, each
// computed from the target's features. Rows of a draft lie after the run and are overwritten by the
// next draft, so rejected KV is never read. The run begins where features begin: after a prefix
// whose KV came from a cache or another worker, or after what was evicted when the pool was full.
// Earlier positions are not part of the sequence that the head sees. Positions that are computed
// again (after preemption) are already known and skipped.
//
// Features stay in device memory: rows waiting for the next draft use a fixed number of buffers of
// the head. Engine thread only.
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
  // A draft ends after the token at which its joint probability falls below this.
  float min_probability = 0.1f;
  std::string_view method = "eagle3";
  int32_t feature_window = Proposer::kWholePrompt;
};

class EagleProposer final : public Proposer {
 public:
  // So many positions per sequence may wait for the next draft, if the head's steps have that many
  // rows per sequence; more are computed at once.
  static constexpr int32_t kWaiting = 9;

  // `head` handles every sequence drafted at once, with at least two rows each.
  EagleProposer(const EagleOptions& options, std::unique_ptr<DraftHead> head);

  std::string_view name() const override { return options_.method; }
  bool costly() const override { return true; }
  bool timed() const override { return timed_; }
  int32_t feature_size() const override { return head_->feature_size(); }
  int32_t feature_window() const override { return options_.feature_window; }
  // Errors come from the head; all sequences' KV in the pool is then forgotten.
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
    // Features of the positions after those, in order. The first may have KV already, if it began
    // the last draft; the next draft may begin there again. Between calls each is in a feature
    // buffer of the head.
    std::vector<const std::byte*> waiting;
    bool begun = false;
    uint64_t call = 0;       // the last one that drafted it or computed its waiting rows
    uint64_t delivered = 0;  // the last one that delivered features
    SamplingParams sampling;
  };
  struct Running : Drafting {
    State* state = nullptr;
    int32_t slot = 0;
    int32_t output = -1;   // its row among those the last step drew from
    int32_t launched = 0;  // tokens for which steps were launched
  };

  static int32_t Waiting(const State& state) { return static_cast<int32_t>(state.waiting.size()); }
  static int32_t End(const State& state) { return state.first + state.computed + Waiting(state); }
  void Forget(SequenceId id);
  // The same rows in the head's memory; rows without room are left out.
  Result<std::span<const ComputedRows>> Placed(std::span<const ComputedRows> rows);
  // Drops the first `count` waiting rows.
  void DropWaiting(State& state, int32_t count);
  // Copies rows that are valid only during this call to the head's buffers.
  Status KeepWaiting(std::span<const ComputedRows> rows);
  std::byte* TakePlace();
  void GiveUpBlocks(State& state);
  // False: the pool has no room that sequences of the last call do not hold.
  bool Reserve(State& state, int32_t rows);
  bool ReclaimOldest(const State& keep);
  State& Note(const ComputedRows& rows);
  // Computes all waiting positions but the last, without a draw.
  Status CatchUp(std::vector<std::pair<State*, std::span<const TokenId>>> late);
  void Begin(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts);
  Status DraftAll();
  Status LaunchDraws(bool first);
  Status CollectDraws();
  void AppendNext(const Running& d);
  // Appends the first `count` waiting rows.
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
  uint64_t call_ = 1, delivery_ = 0;
  bool took_up_ = false;  // rows were computed asynchronously since the last draft
  bool timed_ = true;
  std::vector<Running> drafting_;
  std::deque<std::vector<Running*>> flights_;  // the sequences that each step in flight draws for

  // Inputs of the step being built.
  std::vector<TokenId> tokens_;
  std::vector<int32_t> positions_, slots_, tables_, logit_rows_, goes_on_;
  std::vector<SequenceRows> sequences_;
  std::vector<const std::byte*> features_;
  std::vector<SampleRow> samples_;
  std::vector<FeatureCopy> copies_;
  std::vector<ComputedRows> placed_rows_;  // rows from host memory, during Computed
  std::vector<std::span<const float>> runs_;
  std::vector<std::span<const std::byte>> placed_;
};

}  // namespace aisp
