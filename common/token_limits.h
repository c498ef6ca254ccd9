// TokenLimits: what a request's tokens have to keep, and PrefillTurn: how much prefill shares the
// next step with decode rows. A request that misses its TTFT or its TPOT is lost. So prefill waits
// if more streams would miss their TPOT with it than prompts would miss their TTFT without it.
//
// Usually a step takes whole chunks or none: TPOT is a mean, and each step with prefill has a fixed
// cost. Where that is smaller than a step of decodes (attention over much context overlaps with the
// prompt's arithmetic), short chunks are cheaper: then a step takes what the TPOT limit leaves.
// Plain values; one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "common/step_cost.h"

namespace aisp {

// In ms; 0: no such limit.
struct TokenLimits {
  double first_token_ms = 0;    // from the arrival at the worker
  double token_ms = 0;          // mean time of a token after the first
  int32_t answer_tokens = 0;    // even a short answer has so many
  int32_t uncached_tokens = 0;  // of its prompt, those that will probably be computed here
  bool any() const { return first_token_ms > 0 || token_ms > 0; }
};

class PrefillTurn {
 public:
  // A step of `decodes` and prefill of at most `tokens` rows.
  void Begin(const StepCost& cost, const StepShape& decodes, int32_t tokens);
  // A stream of the step, with `emitted` tokens of at most `most`; `since_first_ms`: time since its
  // first token.
  void AddStream(const TokenLimits& limits, double since_first_ms, int32_t emitted, int32_t most);
  // A prompt whose `tokens` from position `begin` on are left to compute, after those added before.
  // `waited_ms`: since its arrival.
  void AddPrompt(const TokenLimits& limits, double waited_ms, int32_t begin, int32_t tokens);
  // Later prompts would change nothing.
  bool full() const { return prompts_.size() >= kMostPrompts; }
  // How many prefill rows the step may have; 0: prefill waits for a later step. Called once a step:
  // prompts that are late or have no limit do not wait forever.
  int32_t Tokens();

 private:
  static constexpr size_t kMostPrompts = 64;

  struct Stream {
    double spent_ms;  // since its first token
    double limit_ms;  // of a token
    double emitted;
    double to_come;  // tokens, at least
  };
  struct Prompt {
    double left_ms;  // time that it may wait
    int32_t begin;
    int32_t tokens;
  };
  // Tokens() by this step alone.
  int32_t Weighed() const;
  // Whether one of the prompts is late or has no limit, so that it never outweighs a stream.
  bool Unprotected() const;
  // Duration of the step with all the prefill that fits.
  double WholeMs() const;
  // How many streams that are in time would be late after a step that takes `added_ms` longer.
  // `borrows`: they recover in later steps without prefill; else the next token counts.
  int64_t Late(double added_ms, bool borrows) const;
  int64_t Soon(double ms) const;
  // Of the first prompts, the rows that fit into `ms`.
  int32_t RowsWithin(double ms) const;

  StepCost cost_;
  StepShape decodes_;
  int32_t tokens_ = 0;
  double plain_ms_ = 0;  // of a step without prefill
  double held_ms_ = 0;   // steps without prefill in a row, while a prompt is unprotected
  std::vector<Stream> streams_;
  std::vector<Prompt> prompts_;
  PromptWork queued_;  // of all prompts so far
  PromptWork first_;   // of these, the next step's
};

}  // namespace aisp
