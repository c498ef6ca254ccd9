// A CUDA GPU as a Device. Streams do not synchronise with the default stream.
//
// An error that leaves the device's context broken is remembered: every later call answers with it,
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

// FAILED_PRECONDITION: the driver is older than this build wants; UNAVAILABLE: no GPU `index`, or
// one that this build has no code for (capability.h).
Result<std::unique_ptr<Device>> MakeCudaDevice(int32_t index);
Capability CapabilityOf(int32_t index);

// Where kernels on this device say why they have given up waiting (poll.h).
PollReport* PollReportOf(Device& device);
// What nodes are called in such a report, by node.
void NameNodes(Device& device, std::vector<std::string> names);

}  // namespace aisp::cuda
