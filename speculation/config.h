// SpeculationConfig: what --speculative-config says, in vLLM's keys. Plain values; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/result.h"
#include "speculation/ngram_proposer.h"
#include "speculation/suffix_proposer.h"

namespace aisp {

struct SpeculationConfig {
  enum class Method : uint8_t { kOff, kNgram, kSuffix, kDraftModel, kEagle3, kMedusa, kMtp };

  // Rows of one sequence that a step can verify, beside the one that it draws anyway.
  static constexpr int32_t kMostTokens = 32;
  static constexpr int32_t kPromptFeatures = 64, kMostPromptFeatures = 4096;

  Method method = Method::kOff;
  int32_t num_tokens = 8;  // longest draft
  bool says_num_tokens = false;
  bool adaptive = true;  // false: every draft is verified as long as it is
  // draft_model, eagle3, medusa: a checkpoint's folder; mtp: empty where it is the target's.
  std::string model;
  // eagle3, mtp, medusa: they see so many of a prompt's last positions, whoever computes it.
  int32_t prompt_features = kPromptFeatures;
  // Not of the text: a draft of theirs ends when all of it became less likely than this.
  float min_probability = 0.1f;
  NgramOptions ngram;
  SuffixOptions suffix;
};

std::string_view MethodName(SpeculationConfig::Method method);

// `text`: "off", or a JSON object with `method` and what belongs to it. INVALID_ARGUMENT names the
// key, its value and what is allowed.
Result<SpeculationConfig> ParseSpeculationConfig(std::string_view text);

}  // namespace aisp
