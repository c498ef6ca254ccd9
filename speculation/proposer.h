// Proposer: proposes draft tokens. It cannot change an answer: the target draws every token itself,
// and a draft token is accepted only if the target draws it.
//
// A proposer owns its state, which follows the tokens of a sequence: they only grow, whatever
// happens to the sequence's KV. State per sequence is bounded by its length, shared state by
// options. Engine thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/result.h"

namespace aisp {

struct SamplingParams;   // engine/request.h
struct SequenceRequest;  // engine/request.h

// A sequence that is about to draw its next token.
struct DraftContext {
  SequenceId sequence;
  std::span<const TokenId> tokens;  // prompt, then drawn tokens; valid during the call
  int32_t prompt_tokens = 0;
  int32_t limit = 0;                         // maximum draft length
  std::string_view scope;                    // only sequences of one scope may share learnt tokens
  const SamplingParams* sampling = nullptr;  // null in tests
  const SequenceRequest* request = nullptr;  // all parameters of its draws; null in tests
};

struct TokenDraft {
  std::vector<TokenId> tokens;
  // Confidence of each token given those before it, in [0, 1]; as many as tokens.
  std::vector<float> confidence;

  void Clear() {
    tokens.clear();
    confidence.clear();
  }
  void Add(TokenId token, float sure) {
    tokens.push_back(token);
    confidence.push_back(sure);
  }
};

// New features (engine/executor.h) of a sequence after a step, at positions of accepted tokens. The
// token after the last position is known.
struct ComputedRows {
  DraftContext context;
  int32_t begin = 0;  // first position
  // [positions, feature_size] in the target device's memory and format. Valid until the call
  // returns, and for work that the call enqueues after the target's steps.
  std::span<const std::byte> features;
  // `features` are f32 in host memory, valid during the call, for positions that no step here
  // computed: they came from a cache or from another worker.
  bool on_host = false;
};

class Proposer {
 public:
  virtual ~Proposer() = default;
  virtual std::string_view name() const = 0;
  // Whether drafting costs so much that the draft length must be chosen beforehand.
  virtual bool costly() const { return false; }
  // Whether all tokens of a draft are made at once, so that a longer draft costs hardly more.
  virtual bool at_once() const { return false; }
  // One draft per context, initially empty. An error applies to all contexts.
  virtual Status Propose(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) = 0;
  // Size of the features that it needs per computed position, in elements; 0: none.
  virtual int32_t feature_size() const { return 0; }
  // Number of a prompt's last positions whose features it can use, wherever they are computed.
  static constexpr int32_t kWholePrompt = std::numeric_limits<int32_t>::max();
  virtual int32_t feature_window() const { return kWholePrompt; }
  // Called after every step if feature_size() > 0. Positions may repeat, and some never come: those
  // before the window, or whose KV came from a cache or another worker. An error applies to all
  // sequences.
  virtual Status Computed(std::span<const ComputedRows> /*rows*/) { return {}; }
  // Time that the last Propose spent on unseen tokens, mainly prompts, and not on drafting.
  virtual Duration catch_up() const { return {}; }
  // False: the last Propose waited for such work for an unknown time, so its duration must not be
  // used.
  virtual bool timed() const { return true; }
  // The sequence has ended with these tokens; no further calls for it.
  virtual void Ended(const DraftContext& context) = 0;
};

}  // namespace aisp
