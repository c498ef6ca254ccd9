// Proposer: names tokens that are likely to follow a sequence. It cannot change an answer: the
// target draws every token itself, and a proposed one only stands where it is the one drawn.
//
// A proposer owns its state, which follows the tokens of a sequence: they only grow, whatever
// becomes of the sequence's KV. State of a sequence is bounded by its length, what is shared by
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
  std::span<const TokenId> tokens;  // prompt, then what was drawn; valid during the call
  int32_t prompt_tokens = 0;
  int32_t limit = 0;       // most tokens that are of use
  std::string_view scope;  // only sequences of one scope may learn from each other
  const SamplingParams* sampling = nullptr;  // null in tests
  const SequenceRequest* request = nullptr;  // all that its draws depend on; null in tests
};

struct TokenDraft {
  std::vector<TokenId> tokens;
  // Of each token, given those before it: how sure the proposer is, in [0, 1]. As many as tokens.
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

// What a step has made known of a sequence: the target's features (engine/executor.h) of positions
// whose tokens stand. The token behind the last of them is known.
struct ComputedRows {
  DraftContext context;
  int32_t begin = 0;  // the first of the positions
  // [positions, feature_size], in the memory and the format of the target's device; valid until the
  // call returns, and for whatever the call enqueues behind the target's steps.
  std::span<const std::byte> features;
  // They are f32 in the host's memory instead, valid during the call: of positions that no step has
  // computed, but a cache or another worker knew.
  bool on_host = false;
};

class Proposer {
 public:
  virtual ~Proposer() = default;
  virtual std::string_view name() const = 0;
  // Whether a token costs so much that the number of tokens has to be chosen beforehand.
  virtual bool costly() const { return false; }
  // Whether all tokens of a draft are made together, so that a longer one takes hardly longer.
  virtual bool at_once() const { return false; }
  // One draft for each context, empty ones to begin with. An error is that of all contexts.
  virtual Status Propose(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) = 0;
  // Elements of the features that it wants of every position that is computed; 0: none.
  virtual int32_t feature_size() const { return 0; }
  // Of how many of a prompt's last positions features are of use, whoever computes them.
  static constexpr int32_t kWholePrompt = std::numeric_limits<int32_t>::max();
  virtual int32_t feature_window() const { return kWholePrompt; }
  // Comes behind every step, where it wants features. Positions may come again, and some never
  // come: they lie in front of the window, their KV was found in a cache, or came from another
  // worker. An error is that of all sequences.
  virtual Status Computed(std::span<const ComputedRows> /*rows*/) { return {}; }
  // Of the last Propose: time that went into taking up tokens which it had not seen, a prompt above
  // all, and not into proposing.
  virtual Duration catch_up() const { return {}; }
  // False: the last Propose waited for such work, for it does not know how long, and its time says
  // nothing of tokens.
  virtual bool timed() const { return true; }
  // The sequence has ended with these tokens; nothing is asked for it any more.
  virtual void Ended(const DraftContext& context) = 0;
};

}  // namespace aisp
