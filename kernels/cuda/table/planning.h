// A simulated GPU: a device and operations with which a model loads as on a real one, without any
// weights, so that its programme can be resolved by the same table and printed.
//
// Addresses are reserved and never accessed. Running anything is an error. Threads as in Device and
// Ops.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/table/facts.h"
#include "kernels/device/device.h"
#include "kernels/ops.h"

namespace aisp::cuda {

struct PlanningBackend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
};

// `context`: keys per sequence for which attention's bytes and time are predicted.
PlanningBackend MakePlanningBackend(const DeviceFacts& device, TuningProfile profile,
                                    int64_t context);

// How PackLinear would pack a weight on such a device. UNIMPLEMENTED: unsupported.
Result<LinearTraits> PackedTraits(const LinearSource& source, const DeviceFacts& device);

}  // namespace aisp::cuda
