// LayerPlan: one layer as it will run: the kinds and sizes of attention and MLP, and the names of
// its tensors. Made from a ModelSpec at load. Plain values.
#pragma once

#include <string>
#include <vector>

#include "model/spec.h"

namespace aisp {

struct LayerPlan {
  int32_t index = 0;
  int32_t hidden = 0;
  float norm_epsilon = 1e-6f;
  AttentionSpec attention;
  MlpSpec mlp;
  std::string prefix;    // "model.layers.3"
  std::string mlp_name;  // "model.layers.3.mlp"
  // Of a gated MLP, also of experts.
  std::string gate_name, up_name, down_name;
};

std::vector<LayerPlan> CompileLayers(const ModelSpec& spec);

}  // namespace aisp
