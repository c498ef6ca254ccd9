// Engines with a proposer on the GPU: requests, their answers, and how many draft tokens were
// accepted.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "speculation/speculator.h"
#include "tests/kernels/cuda/run_engine.h"
#include "tests/support/hash_guide.h"

namespace aisp {

struct DraftedAnswer {
  std::vector<TokenId> tokens;
  FinishReason finish = FinishReason::kNone;
};

inline std::vector<SequenceRequest> RandomRequests(uint64_t seed, int32_t vocabulary) {
  SplitMix64 random(seed);
  std::vector<SequenceRequest> out;
  for (int i = 0; i < 16; ++i) {
    SequenceRequest r;
    const auto length = 3 + random.Below(i % 4 == 0 ? 90 : 30);
    for (uint64_t t = 0; t < length; ++t)
      r.tokens.push_back(
          static_cast<TokenId>(4 + random.Below(static_cast<uint64_t>(vocabulary - 4))));
    r.prompt_tokens = static_cast<int32_t>(length);
    r.max_new_tokens = static_cast<int32_t>(2 + random.Below(40));
    r.sampling.seed = random.Next();
    r.sampling.temperature = i % 3 == 0 ? 0.0f : 0.8f;
    if (i % 4 == 1) r.sampling.top_p = 0.8f;
    if (i % 5 == 2) r.sampling.presence_penalty = 0.5f;
    if (i % 5 == 3)
      r.guide = std::make_shared<HashGuide>(random.Next(), vocabulary, 1 + random.Below(25));
    out.push_back(std::move(r));
  }
  return out;
}

struct AcceptanceCounts {
  uint64_t drafted = 0, accepted = 0;
};

inline std::vector<DraftedAnswer> RunAll(Executor& executor, std::vector<SequenceRequest> requests,
                                         std::shared_ptr<Speculator> speculator,
                                         AcceptanceCounts* counts, EngineOptions options = {}) {
  options.speculator = std::move(speculator);
  options.limits.max_draft_rows = executor.max_draws() - executor.max_slots();
  options.limits.max_prefill_chunk = 64;
  options.limits.max_sequences = std::min(6, options.limits.max_sequences);
  std::vector<DraftedAnswer> answers(requests.size());
  const auto on_token = [&](size_t i, TokenOutput& output) {
    if (output.token >= 0) answers[i].tokens.push_back(output.token);
    answers[i].finish = output.finish;
  };
  RunEngine(executor, options, std::move(requests), on_token, [&](const CollectOutput& step) {
    for (const VerifiedDraft& draft : step.drafts) {
      counts->drafted += static_cast<uint64_t>(draft.drafted);
      counts->accepted += static_cast<uint64_t>(draft.accepted);
    }
  });
  return answers;
}

// Six beginnings of stories that the model continues, decoded greedily.
inline std::vector<SequenceRequest> OwnTexts(Executor& executor) {
  std::vector<SequenceRequest> requests;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SequenceRequest r;
    // "Tell me a story about a fox and a river.", rendered by the chat template.
    r.tokens = {1, 3, 58, 415, 383, 265, 1209, 547, 265, 1872, 277, 265, 1164, 20, 5, 4};
    r.prompt_tokens = static_cast<int32_t>(r.tokens.size());
    r.max_new_tokens = 160;
    r.sampling.temperature = 0.8f;
    r.sampling.seed = seed;
    requests.push_back(std::move(r));
  }
  AcceptanceCounts none;
  const std::vector<DraftedAnswer> texts = RunAll(executor, requests, nullptr, &none);
  for (size_t i = 0; i < texts.size(); ++i) {
    SequenceRequest& r = requests[i];
    const size_t length = std::min(texts[i].tokens.size(), 60 + 9 * i);
    r.tokens.insert(r.tokens.end(), texts[i].tokens.begin(),
                    texts[i].tokens.begin() + static_cast<ptrdiff_t>(length));
    r.prompt_tokens = static_cast<int32_t>(r.tokens.size());
    r.max_new_tokens = 48;
    r.sampling.temperature = 0;
  }
  return requests;
}

}  // namespace aisp
