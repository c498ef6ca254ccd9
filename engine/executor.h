// Executor: runs planned steps on one device. The engine plans and tracks state; the executor
// computes. Implementations: ModelExecutor (a real model over Ops) and, in tests, provenance and
// scripted ones.
//
// Launch starts a step and returns at once on an asynchronous device (the CPU computes inside
// Launch). At most max_depth() steps may be in flight; they are collected in order. Token ids stay
// on the device between steps: a row with kTokenOnDevice reads what the previous step drew for its
// slot. Forward and sampling are separate: SampleRow names rows of the forward's logits, so masks
// may arrive in between. One engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "common/ids.h"
#include "common/result.h"
#include "engine/layer_sink.h"
#include "engine/request.h"
#include "kernels/slow_paths.h"
#include "kvcache/layout.h"
#include "model/adapter_table.h"
#include "model/forward.h"

namespace aisp {

struct SampleRow {
  int32_t logit_index = 0;  // index into ForwardBatch::logit_rows
  int32_t slot = 0;         // where the drawn token is kept on the device
  uint32_t position = 0;    // position of the token being drawn
  const SamplingParams* params = nullptr;
  std::span<const TokenId> prompt;     // for repetition penalties
  std::span<const TokenId> generated;  // for presence/frequency penalties
  std::span<const TokenId> banned;     // masked: stop tokens before min_new_tokens
  // One bit per token of the vocabulary, 1: may be drawn. Empty: every token may.
  std::span<const uint32_t> mask;
};

// A row whose logits score the next token, which is known.
struct ScoredRow {
  int32_t logit_index = 0;  // index into ForwardBatch::logit_rows
  TokenId token = 0;
  int32_t num_top = 0;    // number of top tokens to list besides it
  uint32_t position = 0;  // of `token`
};

// Copies the KV of block `from`, all layers, into block `to`.
struct CopiedBlock {
  BlockId from;
  BlockId to;
};

struct StepInput {
  uint64_t step = 0;
  ForwardBatch batch;
  std::span<const CopiedBlock> copies;    // made before any row is computed
  std::span<const ScoredRow> scored;      // at most max_scored_rows
  std::span<const int32_t> hidden_rows;   // of the batch, ascending: whose hidden states are wanted
  std::span<const int32_t> feature_rows;  // of the batch, ascending: whose features are wanted
  // Of those, ascending, at most max_kept_features: whose features also go to host memory.
  std::span<const int32_t> kept_rows;
  std::span<const SampleRow> samples;
  std::span<const LayerSlice> slices;  // handed to `sink` after each layer; empty: no sink call
  LayerSink* sink = nullptr;
  // Optional. Called once when the forward pass is enqueued (on a GPU it still computes) and
  // nothing has been drawn; masks may be written until it returns. It may collect earlier steps.
  std::function<void()> before_draw;
  // Optional. Called after each layer if the device computes inside Launch, so that the owner can
  // do urgent work, as if it came between Launch and Collect.
  std::function<void()> between_layers;
};

struct SampledToken {
  TokenId token = -1;
  std::optional<TokenLogprob> logprob;
  Status status;  // e.g. NaN in this row's logits: this request fails, the batch continues
};

struct RowScore {
  TokenLogprob logprob;
  Status status;  // as in SampledToken
};

struct StepResult {
  std::vector<SampledToken> tokens;  // one per SampleRow
  std::vector<RowScore> scores;      // one per ScoredRow
  // f32 [hidden_rows, hidden_size], after the model's final norm.
  std::vector<float> hidden;
  // [feature_rows, feature_size]: f32 in host memory, or in device memory and the device's format,
  // valid until max_depth() more steps have been launched.
  std::vector<float> features;
  std::span<const std::byte> device_features;
  // f32 [kept_rows, feature_size] in host memory, equally long valid, if features stay on the
  // device; else empty, and they are in `features`.
  std::span<const float> kept_features;
  std::span<const std::byte> feature_bytes() const {
    return device_features.empty() ? std::as_bytes(std::span(features)) : device_features;
  }
  // A graph was captured for the step, so its duration is not typical.
  bool captured = false;
  // By the device's clock: from the step's begin to its end, plus the idle time before it if the
  // previous step was in flight at its launch. 0: not measured.
  Duration device_time{};
};

using Ticket = StrongId<struct TicketTag, uint64_t>;

class Executor {
 public:
  virtual ~Executor() = default;
  virtual int max_depth() const = 0;
  virtual const KvLayout& kv_layout() const = 0;
  virtual int32_t max_context() const = 0;  // most positions of a sequence
  virtual int32_t max_batch_tokens()
      const = 0;  // rows a step may have; workspaces are sized for it
  virtual int32_t max_slots() const = 0;
  // Tokens that a step may draw; several per sequence in verify steps.
  virtual int32_t max_draws() const { return max_slots(); }
  // Nodes of the model that run slower than intended.
  virtual std::vector<SlowPathCount> slow_paths() const { return {}; }
  // Supports StepInput::copies; else prefix hits are whole blocks.
  virtual bool copies_blocks() const { return false; }
  // Supports SampleRow::mask; else constrained sequences are refused.
  virtual bool applies_masks() const { return false; }
  virtual int32_t vocabulary() const = 0;  // ids below it have an embedding
  // Rows that a step may score; 0: prompt logprobs are refused.
  virtual int32_t max_scored_rows() const { return 0; }
  // Elements of a hidden state; 0: none, and embeddings are refused.
  virtual int32_t hidden_size() const { return 0; }
  // Elements of a row's features (residuals of chosen layers); 0: none.
  virtual int32_t feature_size() const { return 0; }
  // Features come in StepResult::features, in host memory: keeping them costs no transfer.
  virtual bool features_on_host() const { return feature_size() > 0; }
  // Most rows whose features a step may copy to the host, for other processes.
  virtual int32_t max_kept_features() const { return feature_size() > 0 ? max_batch_tokens() : 0; }
  // Row counts that steps are padded to, ascending; empty: cost grows with each row.
  virtual std::vector<int32_t> step_sizes() const { return {}; }
  // Slots for LoRA adapters (ForwardBatch::adapter_of_row), and the slot of the one with this
  // digest; -1: not loaded.
  virtual int32_t adapter_slots() const { return 0; }
  virtual int32_t FindAdapter(std::string_view /*digest*/) const { return -1; }
  // The digest of the adapter in this slot; "": none.
  virtual std::string_view AdapterIn(int32_t /*slot*/) const { return ""; }
  // Loads an adapter into a slot; an empty one empties it: Model::SetPackedAdapter.
  virtual Status SetAdapter(int32_t /*slot*/, PackedAdapter /*adapter*/) {  // NOLINT: it is moved
    return Unimplemented("this executor has no places for LoRA adapters");
  }
  // FaultOfStep (common/fault.h) maps the code to whose fault an error is. A step's: none of it
  // was or will be computed; the engine finds the sequence at fault and continues. The device's:
  // the engine becomes unready and fails its sequences as retryable.
  virtual Result<Ticket> Launch(const StepInput& input) = 0;
  virtual Result<StepResult> Collect(Ticket ticket) = 0;
  // Whether Collect of the oldest step would return without waiting. Also reports finished layers
  // to the step's sink. Errors are returned by Collect.
  virtual bool Done(Ticket /*ticket*/) { return true; }
};

}  // namespace aisp
