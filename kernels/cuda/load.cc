#include "kernels/cuda/load.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

#include "common/strings.h"

namespace aisp {
namespace {

constexpr const char* kLibrary = "libaisp_cuda.so";
constexpr const char* kDriver = "libcuda.so.1";

std::string LastError() {
  const char* text = dlerror();
  return text != nullptr ? text : "unknown error";
}

Result<void*> OpenLibrary(const std::string& library, std::span<const std::string> folders) {
  if (dlopen(kDriver, RTLD_NOW | RTLD_LOCAL) == nullptr) {
    return NotFound(
        fmt::format("there is no NVIDIA driver here ({}); use --device cpu", LastError()));
  }
  for (const std::string& folder : folders) {
    const std::string path = folder + "/" + library;
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) continue;
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL); handle != nullptr)
      return handle;
    return NotFound(
        fmt::format("{} does not load: {}; the CUDA libraries have to be in the loader's path",
                    library, LastError()));
  }
  return NotFound(
      fmt::format("{} is not there (looked in {}); build with AISP_CUDA=ON", library,
                  Join(std::vector<std::string>(folders.begin(), folders.end()), ", ")));
}

Result<void*> FindFunction(const char* symbol, std::span<const std::string> folders) {
  return FindCudaFunction(kLibrary, symbol, folders);
}

}  // namespace

Result<void*> FindCudaFunction(const std::string& name, const char* symbol,
                               std::span<const std::string> folders) {
  AISP_ASSIGN_OR_RETURN(void* library, OpenLibrary(name, folders));
  const auto abi = reinterpret_cast<CudaBackendAbiFn>(dlsym(library, kCudaBackendAbiSymbol));
  void* function = dlsym(library, symbol);
  if (abi == nullptr || function == nullptr || abi() != kCudaBackendAbi) {
    return FailedPrecondition(fmt::format(
        "{} belongs to another build of this program; install both from one build", name));
  }
  return function;
}

bool CudaBackendPresent(std::span<const std::string> folders) {
  return OpenLibrary(kLibrary, folders).has_value();
}

Result<CudaBackend> OpenCudaBackend(const CudaBackendOptions& options,
                                    std::span<const std::string> folders) {
  AISP_ASSIGN_OR_RETURN(void* function, FindFunction(kCudaBackendOpenSymbol, folders));
  Result<CudaBackend> backend = Internal("the CUDA backend did not answer");
  reinterpret_cast<CudaBackendOpenFn>(function)(&options, &backend);
  return backend;
}

Result<ProfilerRanges> FindProfilerRanges(std::span<const std::string> folders) {
  AISP_ASSIGN_OR_RETURN(void* function, FindFunction(kCudaRangesSymbol, folders));
  ProfilerRanges ranges;
  if (reinterpret_cast<CudaRangesFn>(function)(&ranges)) return ranges;
  return NotFound("the CUDA backend was built without NVTX");
}

Result<CudaLimits> MeasureCudaLimits(int32_t index, std::span<const std::string> folders) {
  AISP_ASSIGN_OR_RETURN(void* function, FindFunction(kCudaLimitsSymbol, folders));
  Result<CudaLimits> limits = Internal("the CUDA backend did not answer");
  reinterpret_cast<CudaLimitsFn>(function)(index, &limits);
  return limits;
}

}  // namespace aisp
