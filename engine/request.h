// Requests to an engine for one sequence, and its outputs. Plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/fair_share.h"
#include "common/fault.h"
#include "common/ids.h"
#include "common/result.h"
#include "common/token_limits.h"
#include "engine/draw_guide.h"

namespace aisp {

// Penalties and bias apply to logits first, then temperature, top_k, top_p, min_p; then the argmax
// of log p + Gumbel noise keyed by (seed, choice, position, token) over the rest (common/random.h).
struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy, the filters below have no effect
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  uint64_t seed = 0;
  uint32_t choice = 0;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  std::vector<std::pair<TokenId, float>> logit_bias;
  int32_t num_logprobs = -1;  // -1: none, 0: the chosen token's only
};

// Who computes the KV of a sequence's prompt.
enum class KvSource : uint8_t {
  kLocal,        // this engine computes it in chunks
  kPrefillOnly,  // this engine computes KV of [match, tokens - 1) for a remote reader; gated (see
                 // Engine). With `draws_first` also the last token's, and draws the first token
  kRemote,  // a remote writer fills granted blocks, and may send the first token; else the engine
            // runs the last token as the first decode row
};

// How the hidden states of a prompt's positions, after the model's final norm, become an embedding.
enum class Pooling : uint8_t { kNone, kMean, kLast, kFirst };

struct SequenceRequest {
  std::vector<TokenId> tokens;  // prompt, then tokens already emitted (takeover); never empty
  int32_t prompt_tokens = 0;    // how many of `tokens` are prompt
  KvSource kv_source = KvSource::kLocal;
  bool draws_first = false;  // of kPrefillOnly; it has no guide
  // Of kPrefillOnly: features of so many last positions with KV are kept for the reader, as far as
  // they are computed here.
  int32_t feature_window = 0;
  SamplingParams sampling;
  int32_t max_new_tokens = 16;  // counted from prompt_tokens
  int32_t min_new_tokens = 0;   // stop tokens are masked before it
  std::vector<TokenId> stop_token_ids;
  std::string cache_scope;  // part of the prefix root
  std::string adapter;      // digest of its LoRA adapter; "": none
  TenantShare tenant;
  int32_t priority = 0;  // greater runs first, within a tenant
  Instant deadline = kNever;
  std::shared_ptr<DrawGuide> guide;   // null: unconstrained
  TokenLimits limits;                 // choose the steps in which prefill runs beside decodes
  std::optional<StepCost> step_cost;  // of this engine's steps, as a router has learnt it
  // Most draft tokens of a proposer per step; 0: none, -1: as many as pay off. Forced runs
  // (DrawGuide) are not counted.
  int32_t max_draft_tokens = -1;
  // Not kNone: nothing is drawn; the sequence ends with kStop and an embedding.
  Pooling pooling = Pooling::kNone;
  // -1: none. Else logprobs of each prompt token but the first, with so many alternatives; those
  // before position `prompt_logprobs_from` are already known.
  int32_t prompt_logprobs = -1;
  int32_t prompt_logprobs_from = 1;
};

enum class FinishReason : uint8_t { kNone, kStop, kLength, kCancelled, kError };

struct TokenLogprob {
  float logprob = 0;
  std::vector<std::pair<TokenId, float>> top;
  int32_t rank = 0;  // of prompt tokens: 1: no token is likelier; 0: unknown
};

// Counts of draft tokens from proposers.
struct DraftCounts {
  int32_t steps = 0;     // that verified any
  int32_t drafted = 0;   // tokens that were verified
  int32_t accepted = 0;  // of them
};

// A token of a sequence, or its end, or both.
struct TokenOutput {
  SequenceId sequence;
  int32_t position = 0;  // index of `token` in the sequence
  TokenId token = -1;    // -1: no token, only the end
  std::optional<TokenLogprob> logprob;
  FinishReason finish = FinishReason::kNone;
  Error error;                    // with kError
  Fault fault = Fault::kRequest;  // whose fault, with kError
  int32_t preemptions = 0;        // of the sequence so far
  DraftCounts drafts;             // of the sequence so far
  // Logprobs of prompt tokens from this position on; each position is returned once.
  int32_t prompt_logprobs_from = 0;
  std::vector<TokenLogprob> prompt_logprobs;
  std::vector<float> embedding;  // [hidden], of norm 1; at the end of a pooled sequence
};

}  // namespace aisp
