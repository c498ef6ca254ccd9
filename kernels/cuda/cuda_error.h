// Maps CUDA's error codes to Status; the only place that does.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

#include "common/result.h"

namespace aisp::cuda {

// UNAVAILABLE for everything that makes the device unusable: retryable on another device only.
// RESOURCE_EXHAUSTED for memory, FAILED_PRECONDITION for the driver's version.
Error ToError(cudaError_t code, std::string_view doing);

inline Status Check(cudaError_t code, std::string_view doing) {
  if (code == cudaSuccess) [[likely]]
    return {};
  return tl::unexpected(ToError(code, doing));
}

// `part`: the component for the message, e.g. "matrix product".
inline Status CheckIn(std::string_view part, cudaError_t code, std::string_view doing) {
  if (code == cudaSuccess) [[likely]]
    return {};
  return tl::unexpected(ToError(code, std::string(part).append(": ").append(doing)));
}

// Call after a launch.
inline Status CheckLaunch(std::string_view kernel) { return Check(cudaGetLastError(), kernel); }

}  // namespace aisp::cuda
