// Backend: the one place that chooses what a worker computes on, and builds the executor of a model on it.
#pragma once

#include <memory>

#include "config/config.h"
#include "engine/engine.h"
#include "engine/model_executor.h"
#include "kernels/device/device.h"
#include "kernels/ops.h"
#include "server/served_model.h"

namespace aisp {

// Destroyed from the last to the first.
struct Backend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<ModelExecutor> executor;
};

// Loads the weights and allocates the KV pool. Errors name the file and tensor, or what is needed and what there is.
Result<Backend> MakeBackend(const Config& config, const ServedModel& served);

EngineOptions EngineOptionsOf(const Config& config, const ServedModel& served);

}  // namespace aisp
