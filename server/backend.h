// Backend: the only place that chooses a worker's device and builds a model's executor on it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "engine/engine.h"
#include "engine/model_executor.h"
#include "kernels/device/device.h"
#include "kernels/ops.h"
#include "server/served_model.h"

namespace aisp {

// What a worker computes with. Members are destroyed from last to first.
struct ComputeDevice {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
};

struct Backend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<ServingExecutor> executor;
  // Seed of random weights, for the draft model too; nullopt: the checkpoint's weights.
  std::optional<uint64_t> random_weights;
  std::optional<WeightFormat> weight_format;
  // Layers whose residual streams steps return (ModelOptions::feature_layers).
  std::vector<int32_t> feature_layers;
};

// Opens model.device; `auto` takes a GPU if one works, else logs why not. INVALID_ARGUMENT: unknown
// device name, or the reason why a requested GPU cannot be used.
Result<ComputeDevice> OpenComputeDevice(const Config& config, const ServedModel& served);

// The format that a `quantization` asks for; nullopt: the checkpoint's.
std::optional<WeightFormat> WeightFormatOf(std::string_view quantization);

// The seed in model.weights; nullopt: the checkpoint's own weights. INVALID_ARGUMENT: neither ""
// nor random:SEED.
Result<std::optional<uint64_t>> RandomWeightsSeed(const Config& config);

// Loads the weights and allocates the KV pool. Errors name the file and tensor, or the memory
// needed and available.
Result<Backend> MakeBackend(const Config& config, const ServedModel& served);

// `fingerprint` roots the prefix cache; workers that exchange KV use their own (arithmetic.h).
EngineOptions EngineOptionsOf(const Config& config, const v1::Fingerprint& fingerprint);

}  // namespace aisp
