#include "model/layer_plan.h"

#include <fmt/format.h>

namespace aisp {

std::vector<LayerPlan> CompileLayers(const ModelSpec& spec) {
  const bool mixtral = spec.architecture == "MixtralForCausalLM";
  std::vector<LayerPlan> plans;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LayerPlan p;
    p.index = static_cast<int32_t>(i);
    p.hidden = spec.hidden;
    p.norm_epsilon = spec.norm_epsilon;
    p.attention = spec.layers[i].attention;
    p.mlp = spec.layers[i].mlp;
    p.prefix = fmt::format("model.layers.{}", i);
    p.mlp_name = p.prefix + (mixtral ? ".block_sparse_moe" : ".mlp");
    p.gate_name = mixtral ? "w1" : "gate_proj";
    p.up_name = mixtral ? "w3" : "up_proj";
    p.down_name = mixtral ? "w2" : "down_proj";
    plans.push_back(std::move(p));
  }
  return plans;
}

}  // namespace aisp
