#include "commands/gpu_probe.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <memory>

namespace aisp {
namespace {

// The driver API's stable C interface; only kernels/cuda includes CUDA headers.
constexpr int kSuccess = 0;
constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*

struct Driver {
  int (*init)(unsigned) = nullptr;
  int (*version)(int*) = nullptr;
  int (*count)(int*) = nullptr;
  int (*name)(char*, int, int) = nullptr;
  int (*memory)(size_t*, int) = nullptr;
  int (*pci)(char*, int, int) = nullptr;
  int (*attribute)(int*, int, int) = nullptr;
  int (*can_access)(int*, int, int) = nullptr;
  int (*error_text)(int, const char**) = nullptr;
};

template <typename F>
bool Load(void* library, const char* name, F* out) {
  *out = reinterpret_cast<F>(dlsym(library, name));
  return *out != nullptr;
}

bool LoadAll(void* library, Driver* d) {
  return Load(library, "cuInit", &d->init) && Load(library, "cuDriverGetVersion", &d->version) &&
         Load(library, "cuDeviceGetCount", &d->count) &&
         Load(library, "cuDeviceGetName", &d->name) &&
         Load(library, "cuDeviceTotalMem_v2", &d->memory) &&
         Load(library, "cuDeviceGetPCIBusId", &d->pci) &&
         Load(library, "cuDeviceGetAttribute", &d->attribute) &&
         Load(library, "cuDeviceCanAccessPeer", &d->can_access) &&
         Load(library, "cuGetErrorString", &d->error_text);
}

GpuFacts FactsOf(const Driver& driver, int index, int count) {
  GpuFacts gpu;
  std::array<char, 128> text{};
  if (driver.name(text.data(), text.size(), index) == kSuccess) gpu.name = text.data();
  size_t bytes = 0;
  if (driver.memory(&bytes, index) == kSuccess) gpu.memory_bytes = bytes;
  text.fill(0);
  if (driver.pci(text.data(), text.size(), index) == kSuccess) gpu.pci = text.data();
  std::transform(gpu.pci.begin(), gpu.pci.end(), gpu.pci.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  int major = 0, minor = 0;
  if (driver.attribute(&major, kMajor, index) == kSuccess &&
      driver.attribute(&minor, kMinor, index) == kSuccess)
    gpu.capability = 10 * major + minor;
  for (int other = 0; other < count; ++other) {
    int can = 1;
    if (other == index || driver.can_access(&can, index, other) != kSuccess) continue;
    if (can == 0) gpu.unreachable.push_back(other);
  }
  return gpu;
}

}  // namespace

Result<DriverFacts> ProbeDriver() {
  const std::unique_ptr<void, int (*)(void*)> library(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL),
                                                      [](void* l) { return l ? dlclose(l) : 0; });
  if (!library) return NotFound("libcuda.so.1 is not there");
  Driver driver;
  if (!LoadAll(library.get(), &driver))
    return Unavailable("libcuda.so.1 lacks functions of CUDA 11.8; the driver is too old");
  const auto check = [&driver](int code, const char* what) -> Status {
    if (code == kSuccess) return {};
    const char* why = nullptr;
    driver.error_text(code, &why);
    return Unavailable(fmt::format("{}: {}", what, why == nullptr ? "unknown error" : why));
  };
  DriverFacts facts;
  AISP_RETURN_IF_ERROR(check(driver.init(0), "cuInit"));
  AISP_RETURN_IF_ERROR(check(driver.version(&facts.cuda_version), "cuDriverGetVersion"));
  int count = 0;
  AISP_RETURN_IF_ERROR(check(driver.count(&count), "cuDeviceGetCount"));
  for (int i = 0; i < count; ++i) facts.gpus.push_back(FactsOf(driver, i, count));
  return facts;
}

}  // namespace aisp
