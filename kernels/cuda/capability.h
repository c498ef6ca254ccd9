// The GPUs that a build has code for. The backend is written for Hopper (9.0: H100, H200). A
// release build (AISP_CUDA_RELEASE) also compiles everything that does not need Hopper's
// instructions for 8.x, 10.0 and 12.0; that code has been compiled, never run.
#pragma once

#include <string>
#include <string_view>

#include "common/result.h"

namespace aisp::cuda {

struct Capability {
  int major = 0;
  int minor = 0;
};

// Matrix products, prefill attention and everything else in linear/ and attention/.
constexpr bool HasHopperKernels(Capability c) { return c.major == 9 && c.minor == 0; }
// Tensor cores with block-scaled NVFP4 products.
constexpr bool HasBlockScaledCores(Capability c) { return c.major == 10 || c.major == 12; }

// Code for 8.0 runs on all of 8.x; code for 10.0 and 12.0 only there.
constexpr bool HasCode(Capability c) {
#ifdef AISP_CUDA_RELEASE
  if (c.major == 8 || (HasBlockScaledCores(c) && c.minor == 0)) return true;
#endif
  return HasHopperKernels(c);
}
constexpr const char* CapabilitiesWithCode() {
#ifdef AISP_CUDA_RELEASE
  return "8.x, 9.0, 10.0 and 12.0";
#else
  return "9.0 (H100, H200)";
#endif
}

// CUDA's version numbers: 13000 is 13.0. A build needs a driver of its major version or later.
inline Status CheckDriver(int driver, int runtime) {
  if (driver / 1000 >= runtime / 1000) return {};
  return FailedPrecondition("the NVIDIA driver knows CUDA " + std::to_string(driver / 1000) + "." +
                            std::to_string(driver % 1000 / 10) + ", this build wants " +
                            std::to_string(runtime / 1000) +
                            ".x; update the driver or use --device cpu");
}

inline Status CheckCode(std::string_view gpu, Capability c) {
  if (HasCode(c)) return {};
  return Unavailable(std::string(gpu) + " has compute capability " + std::to_string(c.major) + "." +
                     std::to_string(c.minor) + "; this build has code for " +
                     CapabilitiesWithCode() + "; use --device cpu");
}

}  // namespace aisp::cuda
