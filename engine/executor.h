// Executor: runs planned steps on one device. The engine plans and keeps the books; the executor
// computes. Implementations: ModelExecutor (a real model over Ops) and, in tests, provenance and
// scripted ones.
//
// Launch starts a step and returns at once where the device is asynchronous (the CPU computes
// inside Launch). At most max_depth() steps may be launched and not collected; they are collected
// in order. Token ids stay on the device between steps: a row with kTokenOnDevice reads what the
// step before drew for its slot. Forward and sampling are apart: SampleRow names rows of the
// forward's logits, so that masks may arrive between the two. One engine thread.
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
  // A bit for each token of the vocabulary, 1: may be drawn. Empty: every token may.
  std::span<const uint32_t> mask;
};

// A row whose logits say how likely the token behind it is, which is known.
struct ScoredRow {
  int32_t logit_index = 0;  // index into ForwardBatch::logit_rows
  TokenId token = 0;
  int32_t num_top = 0;    // so many likeliest tokens beside it
  uint32_t position = 0;  // of `token`
};

// The KV of block `from`, at all layers, is copied into block `to`.
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
  // Of those, ascending, at most max_kept_features: whose features come to the host's memory too.
  std::span<const int32_t> kept_rows;
  std::span<const SampleRow> samples;
  std::span<const LayerSlice> slices;  // handed to `sink` after each layer; empty: no sink call
  LayerSink* sink = nullptr;
  // The cut between forward and draw: called once when the forward pass is enqueued and nothing has
  // been drawn (on a GPU it computes meanwhile); masks may be written until it returns. It may
  // collect the steps before. Optional.
  std::function<void()> before_draw;
  // Where the device computes inside Launch: called after each layer, so that the owner can do what
  // cannot wait for the end of the step. As if it came between Launch and Collect. Optional.
  std::function<void()> between_layers;
};

struct SampledToken {
  TokenId token = -1;
  std::optional<TokenLogprob> logprob;
  Status status;  // e.g. NaN in this row's logits: this request fails, the batch goes on
};

struct RowScore {
  TokenLogprob logprob;
  Status status;  // as of SampledToken
};

struct StepResult {
  std::vector<SampledToken> tokens;  // one per SampleRow
  std::vector<RowScore> scores;      // one per ScoredRow
  // f32 [hidden_rows, hidden_size], after the model's final norm.
  std::vector<float> hidden;
  // [feature_rows, feature_size]: f32, or where a device keeps them to itself, in its memory and
  // its own format, until max_depth() more steps have been launched.
  std::vector<float> features;
  std::span<const std::byte> device_features;
  // f32 [kept_rows, feature_size] where a device keeps `features` to itself, in the host's memory
  // for as long; else empty, and they are in `features`.
  std::span<const float> kept_features;
  std::span<const std::byte> feature_bytes() const {
    return device_features.empty() ? std::as_bytes(std::span(features)) : device_features;
  }
  // A graph was made for the step: how long it took says nothing of others.
  bool captured = false;
  // By the device's own clock: from the step's begin to its end, and the device's idle time before
  // it where the step before was in flight at its launch. 0: not measured.
  Duration device_time{};
};

using Ticket = StrongId<struct TicketTag, uint64_t>;

class Executor {
 public:
  virtual ~Executor() = default;
  virtual int max_depth() const = 0;
  virtual const KvLayout& kv_layout() const = 0;
  virtual int32_t max_context() const = 0;  // positions the model knows
  virtual int32_t max_batch_tokens()
      const = 0;  // rows a step may have; workspaces are sized for it
  virtual int32_t max_slots() const = 0;
  // Tokens that a step may draw; several of one sequence where proposed tokens are verified.
  virtual int32_t max_draws() const { return max_slots(); }
  // Nodes of the model that run in something slower than what is meant for them.
  virtual std::vector<SlowPathCount> slow_paths() const { return {}; }
  // Makes StepInput::copies; else there are none, and prefixes come from the cache in whole blocks.
  virtual bool copies_blocks() const { return false; }
  // SampleRow::mask is honoured; else constrained sequences are refused.
  virtual bool applies_masks() const { return false; }
  virtual int32_t vocabulary() const = 0;  // ids below it have an embedding
  // Rows that a step may score; 0: prompt logprobs are refused.
  virtual int32_t max_scored_rows() const { return 0; }
  // Elements of a hidden state; 0: none is given out, and embeddings are refused.
  virtual int32_t hidden_size() const { return 0; }
  // Elements of a row's features, the residual streams of chosen layers; 0: none are given out.
  virtual int32_t feature_size() const { return 0; }
  // They come in StepResult::features and are of no device's own: to keep them costs no transfer.
  virtual bool features_on_host() const { return feature_size() > 0; }
  // Rows whose features a step may bring to the host, from where they may go to another process.
  virtual int32_t max_kept_features() const { return feature_size() > 0 ? max_batch_tokens() : 0; }
  // That steps are padded to, ascending; empty: a row more costs what a row costs.
  virtual std::vector<int32_t> step_sizes() const { return {}; }
  // Places for LoRA adapters (ForwardBatch::adapter_of_row); the place of the one with this digest,
  // -1: it has none such.
  virtual int32_t adapter_slots() const { return 0; }
  virtual int32_t FindAdapter(std::string_view /*digest*/) const { return -1; }
  // The digest of the one in this place; "": none.
  virtual std::string_view AdapterIn(int32_t /*slot*/) const { return ""; }
  // Puts one into a place, or with an empty one empties it: Model::SetPackedAdapter.
  virtual Status SetAdapter(int32_t /*slot*/, PackedAdapter /*adapter*/) {  // NOLINT: it is moved
    return Unimplemented("this executor has no places for LoRA adapters");
  }
  // FaultOfStep (common/fault.h) says by the code whose fault an error is. A step's: nothing of it
  // was or will be computed, the engine finds the sequence that does it and goes on. The device's:
  // the engine turns unready and fails its sequences as retryable.
  virtual Result<Ticket> Launch(const StepInput& input) = 0;
  virtual Result<StepResult> Collect(Ticket ticket) = 0;
  // Whether Collect of the oldest step would return without waiting. Layers that are finished are
  // handed to the step's sink here too. An error shows in Collect.
  virtual bool Done(Ticket /*ticket*/) { return true; }
};

}  // namespace aisp
