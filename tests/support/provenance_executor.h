// ProvenanceExecutor: a deterministic model whose every token proves where its KV came from.
//
// Each KV slot (layer, head, position) holds a 64-bit hash of its token, position and layer and,
// through the layer below, of all preceding KV. It is in a real paged pool and is read and written
// through the engine's block tables when the step executes. A drawn token is a hash over all slots
// of positions [0, context) as read. So a stale, foreign, missing or misplaced slot changes the
// tokens. The values do not depend on chunks, batches or blocks; ExpectedOutput computes them
// without any.
//
// The executor also checks the engine's input (rows, positions, slots, tables, hazards inside one
// step) and aborts on a violation. With depth 2 a step executes when it is collected, so that
// blocks freed or moved too early are detected. Used by the engine's tests and by the simulation. A
// masked draw takes the next allowed token. One thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/executor.h"
#include "engine/request.h"

namespace aisp {

struct ProvenanceOptions {
  int32_t num_layers = 2;
  int32_t num_kv_heads = 1;
  int32_t block_tokens = 16;
  int32_t num_blocks = 64;
  int32_t max_context = 4096;
  int32_t max_batch_tokens = 512;
  int32_t max_slots = 64;
  int32_t max_draws = 0;  // of a step; 0: one per slot
  int32_t max_scored_rows = 16;
  int32_t max_depth = 1;
  int32_t vocabulary = 1000;
  uint64_t weights = 1;  // another value is another model
  bool copies_blocks = true;
  bool gives_features = false;
  // Features stay on a device, in its own format; a step copies at most so many rows to the host.
  // Negative: they are in host memory.
  int32_t most_kept_features = -1;
  // Each word is sixteen 4-bit numbers in this format, which every KV format represents exactly, so
  // it survives conversions. Empty: stored unchanged in the space of two f32.
  std::optional<DType> spelled;
};

struct ExpectedEnd {
  std::vector<TokenId> tokens;  // those drawn, in order
  std::vector<float> logprobs;  // one each, if requested
  FinishReason finish = FinishReason::kNone;
};

// The expected output of a request under any schedule; pool size and depth do not matter.
ExpectedEnd ExpectedOutput(const ProvenanceOptions& options, const SequenceRequest& request);
// The first `count` tokens after `prompt` without any stop token.
std::vector<TokenId> ExpectedTokens(const ProvenanceOptions& options,
                                    std::span<const TokenId> prompt, int32_t count, uint64_t seed);

// The expected embedding of the request's pooling, and the logprobs of its prompt's tokens from the
// second on.
std::vector<float> ExpectedEmbedding(const ProvenanceOptions& options,
                                     const SequenceRequest& request);
std::vector<float> ExpectedPromptLogprobs(const ProvenanceOptions& options,
                                          const SequenceRequest& request);

// The features expected at a position: the state above the last layer, in pieces that a float
// holds.
constexpr int32_t kProvenanceFeatures = 4;
inline std::array<float, kProvenanceFeatures> FeaturesOf(uint64_t state) {
  std::array<float, kProvenanceFeatures> out{};
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(state >> (16 * i) & 0xffffu);
  return out;
}
inline uint64_t StateOf(std::span<const float> features) {
  uint64_t state = 0;
  for (size_t i = 0; i < kProvenanceFeatures; ++i)
    state |= static_cast<uint64_t>(features[i]) << (16 * i);
  return state;
}
// The states after each of `tokens`.
std::vector<uint64_t> ExpectedStates(const ProvenanceOptions& options,
                                     std::span<const TokenId> tokens);
// The token that the row must draw from this state.
SampledToken ExpectedDraw(const ProvenanceOptions& options, uint64_t state, const SampleRow& row);

class ProvenanceExecutor final : public Executor {
 public:
  // `pool`: external memory of layout.PoolBytes() (shared with a transport); empty: the executor's
  // own.
  explicit ProvenanceExecutor(const ProvenanceOptions& options, std::span<std::byte> pool = {});

  int max_depth() const override { return options_.max_depth; }
  const KvLayout& kv_layout() const override { return layout_; }
  int32_t max_context() const override { return options_.max_context; }
  int32_t max_batch_tokens() const override { return options_.max_batch_tokens; }
  int32_t max_slots() const override { return options_.max_slots; }
  int32_t max_draws() const override {
    return options_.max_draws > 0 ? options_.max_draws : options_.max_slots;
  }
  int32_t vocabulary() const override { return options_.vocabulary; }
  bool applies_masks() const override { return true; }
  bool copies_blocks() const override { return options_.copies_blocks; }
  int32_t max_scored_rows() const override { return options_.max_scored_rows; }
  int32_t hidden_size() const override { return kHidden; }
  static constexpr int32_t kHidden = 4;
  int32_t feature_size() const override {
    return options_.gives_features ? kProvenanceFeatures : 0;
  }
  bool features_on_host() const override {
    return options_.gives_features && options_.most_kept_features < 0;
  }
  int32_t max_kept_features() const override {
    return features_on_host() ? options_.max_batch_tokens
                              : std::max(0, options_.most_kept_features);
  }
  Result<Ticket> Launch(const StepInput& input) override;
  Result<StepResult> Collect(Ticket ticket) override;

  static KvLayout LayoutOf(const ProvenanceOptions& options);
  std::byte* pool_base() { return pool_.data(); }
  size_t pool_bytes() const { return pool_.size(); }
  // Whether the pool holds the right values, at every layer and head, of positions [begin, end) of
  // `tokens`.
  bool Holds(std::span<const TokenId> tokens, std::span<const BlockId> blocks, int32_t begin,
             int32_t end) const;

  // Returned by slow_paths().
  std::vector<SlowPathCount> slow;
  std::vector<SlowPathCount> slow_paths() const override { return slow; }

  // Faults. The next call fails with this error; a row fails with the status from row_fault.
  std::optional<Error> fail_next_launch;
  std::optional<Error> fail_every_launch;
  std::optional<Error> fail_next_collect;
  std::function<Status(const SampleRow&)> row_fault;
  // A launch with this token fails with INVALID_ARGUMENT, as a poisoned one would.
  std::optional<TokenId> poison;

  uint64_t steps() const { return steps_; }
  uint64_t rows_computed() const { return rows_computed_; }
  uint64_t rows_from_device() const { return rows_from_device_; }
  uint64_t blocks_copied() const { return blocks_copied_; }
  uint64_t features_kept() const { return features_kept_; }  // rows copied from the device

 private:
  struct Pending {
    Ticket ticket;
    StepInput input;
    // A copy of each sample's mask when Launch returned; empty: none.
    std::vector<std::vector<uint32_t>> masks;
    std::optional<StepResult> result;
  };

  void CheckInput(const StepInput& input);
  StepResult Execute(const Pending& pending);
  void Copy(const CopiedBlock& copy) {
    ++blocks_copied_;
    for (int32_t layer = 0; layer < options_.num_layers; ++layer)
      std::copy_n(pool_.data() + layout_.Offset(layer, copy.from), layout_.LayerBlockBytes(),
                  pool_.data() + layout_.Offset(layer, copy.to));
  }
  // Outputs of rows besides draws. `states`: [rows], above the last layer.
  void ReadRows(const StepInput& input, std::span<const uint64_t> states, StepResult* result);
  void ReadFeatures(const StepInput& input, std::span<const uint64_t> states, StepResult* result);
  TokenId TokenOfRow(const StepInput& input, int32_t row);
  uint64_t Load(int32_t layer, int32_t block, int32_t head, int32_t part, int32_t slot) const;
  void Store(int32_t layer, int32_t block, int32_t head, int32_t part, int32_t slot, uint64_t word);
  size_t WordOffset(int32_t layer, int32_t block, int32_t head, int32_t part, int32_t slot) const;
  uint64_t Attend(int32_t layer, const SequenceRows& rows, const StepInput& input,
                  int32_t position) const;

  const ProvenanceOptions options_;
  const KvLayout layout_;
  std::vector<std::byte> own_pool_;
  std::span<std::byte> pool_;
  struct SlotToken {
    TokenId token = -1;
    uint64_t step = 0;
  };
  std::vector<SlotToken> slots_;
  std::deque<Pending> pending_;
  uint64_t next_ticket_ = 1;
  uint64_t steps_ = 0;
  uint64_t last_step_ = 0;
  uint64_t rows_computed_ = 0;
  uint64_t rows_from_device_ = 0;
  uint64_t features_kept_ = 0;
  uint64_t blocks_copied_ = 0;
  // Features of the last max_depth steps.
  struct KeptRows {
    std::vector<uint16_t> on_device;
    std::vector<float> on_host;
  };
  std::vector<KeptRows> kept_;
  size_t executed_ = 0;
};

}  // namespace aisp
