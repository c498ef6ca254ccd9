// CUDA's error codes as Status. One place decides what an error means to the caller.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

#include "common/result.h"

namespace aisp::cuda {

// UNAVAILABLE for everything that leaves the device unusable: retryable elsewhere, not here.
// RESOURCE_EXHAUSTED for memory, FAILED_PRECONDITION for the driver's version.
Error ToError(cudaError_t code, std::string_view doing);

inline Status Check(cudaError_t code, std::string_view doing) {
  if (code == cudaSuccess) [[likely]]
    return {};
  return tl::unexpected(ToError(code, doing));
}

// `part` says whose work it was: "matrix product".
inline Status CheckIn(std::string_view part, cudaError_t code, std::string_view doing) {
  if (code == cudaSuccess) [[likely]]
    return {};
  return tl::unexpected(ToError(code, std::string(part).append(": ").append(doing)));
}

// After a launch.
inline Status CheckLaunch(std::string_view kernel) { return Check(cudaGetLastError(), kernel); }

}  // namespace aisp::cuda
