// A model's GPU memory, computed before loading, so that a GPU that is too small is refused at once
// and with all numbers. Pure functions: any thread.
#pragma once

#include <cstdint>

#include "config/config.h"
#include "kernels/device/device.h"
#include "server/served_model.h"

namespace aisp {

// Bytes of the layers' matrices, the embedding and the output head, in their GPU format.
uint64_t WeightBytesOnGpu(const Config& config, const ModelSpec& spec);

// RESOURCE_EXHAUSTED says how much is needed, how much is free and which setting helps. Step
// buffers come on top, so a model that passes may still not fit.
Status CheckGpuMemory(const Config& config, const ServedModel& served, const DeviceInfo& device,
                      const MemoryInfo& memory);

}  // namespace aisp
