// Executor: runs planned steps on one device. The engine plans and keeps the books; the executor computes. Implementations:
// ModelExecutor (a real model over Ops) and, in tests, provenance and scripted ones.
//
// Launch starts a step and returns at once where the device is asynchronous (the CPU computes inside Launch). At most
// max_depth() steps may be launched and not collected; they are collected in order. Token ids stay on the device between
// steps: a row with kTokenOnDevice reads what the step before drew for its slot.
// Forward and sampling are apart: SampleRow names rows of the forward's logits, so that masks may arrive between the two.
// One engine thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/result.h"
#include "engine/layer_sink.h"
#include "engine/request.h"
#include "kvcache/layout.h"
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
};

struct StepInput {
  uint64_t step = 0;
  ForwardBatch batch;
  std::span<const SampleRow> samples;
  std::span<const LayerSlice> slices;  // handed to `sink` after each layer; empty: no sink call
  LayerSink* sink = nullptr;
};

struct SampledToken {
  TokenId token = -1;
  std::optional<TokenLogprob> logprob;
  Status status;  // e.g. NaN in this row's logits: this request fails, the batch goes on
};

struct StepResult {
  std::vector<SampledToken> tokens;  // one per SampleRow
  Duration forward{};
  Duration sample{};
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
  // An error here is the device's, not a request's: the engine turns unready and fails its sequences as retryable.
  virtual Result<Ticket> Launch(const StepInput& input) = 0;
  virtual Result<StepResult> Collect(Ticket ticket) = 0;
};

}  // namespace aisp
