// What a model will take of a GPU's memory, told before anything is loaded, so that too small a GPU
// is refused at once and with all numbers. Pure functions: any thread.
#pragma once

#include <cstdint>

#include "config/config.h"
#include "kernels/device/device.h"
#include "server/served_model.h"

namespace aisp {

// Bytes of the matrices of the layers, the embedding and the head, as they will lie in a GPU's
// memory.
uint64_t WeightBytesOnGpu(const Config& config, const ModelSpec& spec);

// RESOURCE_EXHAUSTED says how much is needed, how much is free and which setting helps. The buffers
// of a step come on top: what passes here may still not fit.
Status CheckGpuMemory(const Config& config, const ServedModel& served, const DeviceInfo& device,
                      const MemoryInfo& memory);

}  // namespace aisp
