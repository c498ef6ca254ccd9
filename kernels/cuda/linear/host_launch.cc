#include "kernels/cuda/linear/host_launch.h"

#include <array>
#include <string_view>
#include <utility>

#include "kernels/cuda/cuda_error.h"

namespace aisp::cuda {
namespace {

constexpr int kTimedRuns = 5;

constexpr std::string_view kPart = "timing a launch";  // in errors

}  // namespace

cudaError_t LaunchShaped(const void* function, const LaunchShape& shape, void** arguments,
                         cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.ctas));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = shape.overlap ? 1 : 0;
  return cudaLaunchKernelExC(&config, function, arguments);
}

Result<float> BestTimeUs(cudaStream_t stream, const std::function<Status()>& launch) {
  std::array<cudaEvent_t, 2> events = {};
  float best_ms = -1.0f;
  const auto run = [&]() -> Status {
    for (auto& event : events)
      AISP_RETURN_IF_ERROR(CheckIn(kPart, cudaEventCreate(&event), "event"));
    for (int i = 0; i <= kTimedRuns; ++i) {
      AISP_RETURN_IF_ERROR(CheckIn(kPart, cudaEventRecord(events[0], stream), "recording"));
      AISP_RETURN_IF_ERROR(launch());
      AISP_RETURN_IF_ERROR(CheckIn(kPart, cudaEventRecord(events[1], stream), "recording"));
      AISP_RETURN_IF_ERROR(CheckIn(kPart, cudaEventSynchronize(events[1]), "running"));
      float ms = 0.0f;
      AISP_RETURN_IF_ERROR(
          CheckIn(kPart, cudaEventElapsedTime(&ms, events[0], events[1]), "reading"));
      if (i > 0 && (best_ms < 0.0f || ms < best_ms)) best_ms = ms;
    }
    return {};
  };
  Status status = run();
  for (cudaEvent_t event : events) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  AISP_RETURN_IF_ERROR(std::move(status));
  return best_ms * 1000.0f;
}

}  // namespace aisp::cuda
