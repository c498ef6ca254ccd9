// A CUDA GPU as a Device. Streams do not synchronise with the default stream.
//
// After an error that breaks the device's context, every later call returns that error,
// UNAVAILABLE.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/capability.h"
#include "kernels/cuda/poll.h"
#include "kernels/device/device.h"

namespace aisp::cuda {

struct CudaStream final : Stream {
  ~CudaStream() override;
  cudaStream_t handle = nullptr;
};

inline cudaStream_t HandleOf(Stream& stream) { return static_cast<CudaStream&>(stream).handle; }

// FAILED_PRECONDITION: the driver is older than this build requires; UNAVAILABLE: there is no GPU
// `index`, or the build has no code for it (capability.h).
Result<std::unique_ptr<Device>> MakeCudaDevice(int32_t index);
Capability CapabilityOf(int32_t index);

// Where kernels on this device report why they gave up waiting (poll.h).
PollReport* PollReportOf(Device& device);
// Names of the nodes for such a report, by node index.
void NameNodes(Device& device, std::vector<std::string> names);

}  // namespace aisp::cuda
