// GenerationDefaults: sampling defaults and end tokens from a checkpoint's generation_config.json.
// Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/ids.h"
#include "common/result.h"
#include "model/spec.h"

namespace aisp {

struct GenerationDefaults {
  std::vector<TokenId> eos;  // union of generation_config.json and config.json
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<int32_t> top_k;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
};

// An empty `json`: no file. do_sample = false means temperature 0 unless a temperature is given.
Result<GenerationDefaults> ParseGenerationDefaults(std::string_view json, const ModelSpec& spec);
// A missing generation_config.json is no error.
Result<GenerationDefaults> LoadGenerationDefaults(const std::string& directory,
                                                  const ModelSpec& spec);

}  // namespace aisp
