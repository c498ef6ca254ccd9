// A GPU that is not there: a device and operations on which a model loads as on the real one,
// without a byte of weights, so that its programme can be resolved by the same table and printed.
//
// Addresses are reserved and never touched. Running anything is an error. Threads as Device and
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

// `context`: keys of a sequence for which attention's bytes and time are predicted.
PlanningBackend MakePlanningBackend(const DeviceFacts& device, TuningProfile profile,
                                    int64_t context);

// How PackLinear packs a weight on such a device. UNIMPLEMENTED: not at all.
Result<LinearTraits> PackedTraits(const LinearSource& source, const DeviceFacts& device);

}  // namespace aisp::cuda
