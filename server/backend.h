// Backend: the one place that chooses what a worker computes on, and builds the executor of a model
// on it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "config/config.h"
#include "engine/engine.h"
#include "engine/model_executor.h"
#include "kernels/device/device.h"
#include "kernels/ops.h"
#include "server/served_model.h"

namespace aisp {

// What a worker computes with. Destroyed from the last to the first.
struct ComputeDevice {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
};

struct Backend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<ServingExecutor> executor;
  // As the model was loaded; a draft model is loaded so too.
  std::optional<uint64_t> random_weights;
  std::optional<WeightFormat> weight_format;
  // What features its steps give out (ModelOptions::feature_layers).
  std::vector<int32_t> feature_layers;
};

// Opens what model.device names; `auto` takes a GPU if one answers and says in the log why not
// otherwise. INVALID_ARGUMENT: no such device name; with cuda, whatever keeps the GPU from being
// used.
Result<ComputeDevice> OpenComputeDevice(const Config& config, const ServedModel& served);

// What model.quantization asks for; nothing: as the checkpoint has it.
std::optional<WeightFormat> WeightFormatOf(const Config& config);

// The seed of model.weights; nothing: the checkpoint's own weights. INVALID_ARGUMENT: neither ""
// nor random:SEED.
Result<std::optional<uint64_t>> RandomWeightsSeed(const Config& config);

// Loads the weights and allocates the KV pool. Errors name the file and tensor, or what is needed
// and what there is.
Result<Backend> MakeBackend(const Config& config, const ServedModel& served);

// `fingerprint` roots the prefix cache: a worker's own where it exchanges KV (server/arithmetic.h).
EngineOptions EngineOptionsOf(const Config& config, const v1::Fingerprint& fingerprint);

}  // namespace aisp
