// Shared by proposers that draw: a draft that grows token by token, each drawn by the target's
// rules (engine/sampler.h): same parameters, penalties, bans and masks, same noise keyed by seed,
// choice, position and token. Engine thread only.
#pragma once

#include <span>
#include <vector>

#include "engine/executor.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "speculation/proposer.h"

namespace aisp {

// The parameters of a sequence's draws, always with one logprob: the proposer's confidence.
SamplingParams DraftSampling(const SamplingParams& target);

// Draws from a head's logits; the logprob is over `own`, or over those that a mask allows. `own`:
// the head's logits; `all`: the same, scattered over the target's vocabulary.
SampledToken DrawDrafted(Sampler& sampler, std::span<const float> own, std::span<const float> all,
                         const SampleRow& row);

struct Drafting {
  const DraftContext* context = nullptr;
  const SamplingParams* sampling = nullptr;
  TokenDraft* draft = nullptr;
  int32_t limit = 0;
  int32_t taken = 0;  // tokens its guide accepted, to be rewound
  float together = 1;
  bool done = false;
  // Generated and drafted tokens, as penalties read them.
  std::vector<TokenId> generated;

  void Begin();
  // The draw `ahead` positions after its next token, from logits row `logit_index`. Valid until the
  // draft changes.
  SampleRow Draw(int32_t logit_index, int32_t slot, int32_t ahead = 0) const;
  // Whether its draws can be prepared before the tokens preceding them are known.
  bool DrawsAhead() const;
  // Appends a token. Ends the draft before a stop token or the end of a constraint, which the
  // target does not verify, and when its joint probability falls below `min_probability`.
  void Take(const SampledToken& sampled, float min_probability);
  // Restores its guide.
  void End();
};

}  // namespace aisp
