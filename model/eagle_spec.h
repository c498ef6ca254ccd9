// EagleSpec: what a folder of an EAGLE-3 head (Li et al., arXiv:2503.01840) says of itself, in the
// layout that is published: one layer that reads, beside the token, the residual streams in front
// of chosen layers of the target, and a head over a part of the target's vocabulary. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "model/spec.h"

namespace aisp {

struct EagleSpec {
  ModelSpec layer;  // its one layer; the vocabulary is the target's
  int32_t target_hidden = 0;
  int32_t draft_vocabulary = 0;
  std::vector<int32_t> feature_layers;  // of the target; see ModelOptions::feature_layers
};

// From `directory`/config.json, or the file of a shape (*.json). Where that does not say which
// layers are read, they are `target`'s third, the middle one and the last but two. INVALID_ARGUMENT
// names the key, or the value in which the head does not fit the target, and the target's.
Result<EagleSpec> LoadEagleSpec(const std::string& directory, const ModelSpec& target);
Result<EagleSpec> ParseEagleSpec(std::string_view config_json, const ModelSpec& target);

}  // namespace aisp
