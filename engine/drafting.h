// What proposers that draw have in common: a draft that grows token by token, each drawn as the
// target will draw it (engine/sampler.h): same parameters, penalties, bans and masks, same noise
// keyed by seed, choice, position and token. Engine thread only.
#pragma once

#include <span>
#include <vector>

#include "engine/executor.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "speculation/proposer.h"

namespace aisp {

// The parameters of a sequence's draws, whatever is asked of its logprobs: one is wanted, the
// proposer's confidence.
SamplingParams DraftSampling(const SamplingParams& target);

// A draw from the logits that a head has, and of the token its logprob among them, or among those
// that a mask leaves. `own`: what it has; `all`: the same over the target's vocabulary.
SampledToken DrawDrafted(Sampler& sampler, std::span<const float> own, std::span<const float> all,
                         const SampleRow& row);

struct Drafting {
  const DraftContext* context = nullptr;
  const SamplingParams* sampling = nullptr;
  TokenDraft* draft = nullptr;
  int32_t limit = 0;
  int32_t taken = 0;  // by its guide, to be taken back
  float together = 1;
  bool done = false;
  // What was generated, with what is proposed, where penalties read it.
  std::vector<TokenId> generated;

  void Begin();
  // The draw of its next token but `ahead` from logits `logit_index`. Valid until it changes.
  SampleRow Draw(int32_t logit_index, int32_t slot, int32_t ahead = 0) const;
  // Whether its draws are known while those in front of them are not.
  bool DrawsAhead() const;
  // Ends it in front of a stop token and of what a constraint ends with, for the target verifies
  // neither, and where all of it became less likely than `min_probability`.
  void Take(const SampledToken& sampled, float min_probability);
  // Its guide is as it was.
  void End();
};

}  // namespace aisp
