// A CUDA GPU as a Device. Streams do not synchronise with the default stream.
//
// An error that leaves the device's context broken is remembered: every later call answers with it, UNAVAILABLE.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "kernels/cuda/capability.h"
#include "kernels/device/device.h"

namespace aisp::cuda {

struct CudaStream final : Stream {
  ~CudaStream() override;
  cudaStream_t handle = nullptr;
};

inline cudaStream_t HandleOf(Stream& stream) { return static_cast<CudaStream&>(stream).handle; }

// FAILED_PRECONDITION: the driver is older than this build wants; UNAVAILABLE: no GPU `index`, or one that
// this build has no code for (capability.h).
Result<std::unique_ptr<Device>> MakeCudaDevice(int32_t index);
Capability CapabilityOf(int32_t index);

}  // namespace aisp::cuda
