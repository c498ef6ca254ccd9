// MtpSpec: the next-token layer of a checkpoint ("multi-token prediction", DeepSeek-V3,
// arXiv:2412.19437), stored after the model's layers: `num_nextn_predict_layers` in config.json,
// tensors `model.layers.N.*`. Plain values.
#pragma once

#include <string>
#include <string_view>

#include "common/result.h"
#include "model/layer_plan.h"
#include "model/spec.h"

namespace aisp {

struct MtpSpec {
  ModelSpec model;  // of the folder, with the next-token layer as its only layer
  LayerPlan layer;
};

// From `directory`/config.json: the target's own folder, or one with the same config that holds
// only the layer. Of several layers the first is used for every token. INVALID_ARGUMENT names the
// key, or the value that does not fit the target and the target's value.
Result<MtpSpec> LoadMtpSpec(const std::string& directory, const ModelSpec& target);
Result<MtpSpec> ParseMtpSpec(std::string_view config_json, const ModelSpec& target);

}  // namespace aisp
