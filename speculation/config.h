// SpeculationConfig: the value of --speculative-config, with vLLM's keys. Plain values; any thread.
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

  // Maximum number of draft tokens of one sequence per verify step.
  static constexpr int32_t kMostTokens = 32;
  static constexpr int32_t kPromptFeatures = 64, kMostPromptFeatures = 4096;

  Method method = Method::kOff;
  int32_t num_tokens = 8;  // longest draft
  bool says_num_tokens = false;
  bool adaptive = true;  // false: every draft is verified in full
  // draft_model, eagle3, medusa: the checkpoint's folder; mtp: empty if it is the target's.
  std::string model;
  // That checkpoint's matrices on a GPU, as model.quantization: "none", "fp8" or "nvfp4". Empty: as
  // the target's, but FP8 where those are not quantised.
  std::string quantization;
  // draft_model: it drafts only tokens with ids below this, which makes its output matrix smaller;
  // 0: any.
  int32_t draft_vocabulary = 0;
  // eagle3, mtp, medusa: they see only this many of a prompt's last positions, wherever it is
  // prefilled.
  int32_t prompt_features = kPromptFeatures;
  // All but ngram and suffix: a draft ends when its joint probability falls below this.
  float min_probability = 0.1f;
  NgramOptions ngram;
  SuffixOptions suffix;
};

std::string_view MethodName(SpeculationConfig::Method method);

// `text`: "off", or a JSON object with `method` and that method's keys. INVALID_ARGUMENT names the
// key, its value and what is allowed.
Result<SpeculationConfig> ParseSpeculationConfig(std::string_view text);

}  // namespace aisp
