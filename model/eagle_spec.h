// EagleSpec: the config of an EAGLE-3 head (Li et al., arXiv:2503.01840) in its published layout:
// one layer that reads the token's embedding and the residual streams before chosen layers of the
// target, and an output head over a part of the target's vocabulary. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "model/spec.h"

namespace aisp {

struct EagleSpec {
  ModelSpec layer;  // its only layer; the vocabulary is the target's
  int32_t target_hidden = 0;
  int32_t draft_vocabulary = 0;
  std::vector<int32_t> feature_layers;  // of the target; see ModelOptions::feature_layers
};

// From `directory`/config.json, or a shape file (*.json). Default layers: the target's third, the
// middle one and the last but two. INVALID_ARGUMENT names the key, or the value that does not fit
// the target and the target's value.
Result<EagleSpec> LoadEagleSpec(const std::string& directory, const ModelSpec& target);
Result<EagleSpec> ParseEagleSpec(std::string_view config_json, const ModelSpec& target);

}  // namespace aisp
