// Exports of libaisp_cuda_bench.so: all timings of a shape, and the environment.
#include "bench/kernel_timings.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "bench/cuda/kernels/rig.h"

namespace aisp::cuda {
namespace {

std::string CudaVersion(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// The NVML functions needed here, declared by hand: the driver has the library but not its header.
struct Nvml {
  using Device = void*;
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  ~Nvml() {
    if (library != nullptr) dlclose(library);
  }
  template <typename... Args>
  bool Call(const char* name, Args... args) const {
    if (library == nullptr) return false;
    const auto function = reinterpret_cast<int (*)(Args...)>(dlsym(library, name));
    return function != nullptr && function(args...) == 0;
  }
};

constexpr int kNvmlClockSm = 1, kNvmlClockMemory = 2, kNvmlTemperatureGpu = 0;

void ReadNvml(const char* bus, GpuEnvironment* environment) {
  const Nvml nvml;
  if (!nvml.Call("nvmlInit_v2")) return;
  std::array<char, 80> driver{};
  if (nvml.Call("nvmlSystemGetDriverVersion", driver.data(), static_cast<unsigned>(driver.size())))
    environment->driver = driver.data();
  Nvml::Device device = nullptr;
  if (nvml.Call("nvmlDeviceGetHandleByPciBusId_v2", bus, &device)) {
    unsigned value = 0;
    if (nvml.Call("nvmlDeviceGetClockInfo", device, kNvmlClockSm, &value))
      environment->sm_mhz = static_cast<int32_t>(value);
    if (nvml.Call("nvmlDeviceGetClockInfo", device, kNvmlClockMemory, &value))
      environment->memory_mhz = static_cast<int32_t>(value);
    if (nvml.Call("nvmlDeviceGetPowerUsage", device, &value))
      environment->power_watts = static_cast<int32_t>(value / 1000);
    if (nvml.Call("nvmlDeviceGetTemperature", device, kNvmlTemperatureGpu, &value))
      environment->temperature_c = static_cast<int32_t>(value);
  }
  nvml.Call("nvmlShutdown");
}

Status CheckShape(const KernelBenchOptions& o) {
  if (o.num_kv_heads <= 0 || o.num_heads % o.num_kv_heads != 0 || o.hidden <= 0 ||
      o.intermediate <= 0 || o.head_dim <= 0 || o.vocabulary <= 0 || o.layers <= 0 ||
      o.rows.empty()) {
    return InvalidArgument("a shape without grouped attention and a gated MLP cannot be timed");
  }
  return {};
}

// Groups timings by operation and format, in the order of first appearance.
void Group(std::vector<KernelTiming>* timings) {
  std::map<std::pair<std::string, std::string>, size_t> groups;
  for (const KernelTiming& t : *timings) groups.try_emplace({t.op, t.format}, groups.size());
  std::stable_sort(timings->begin(), timings->end(),
                   [&](const KernelTiming& a, const KernelTiming& b) {
                     return groups.at({a.op, a.format}) < groups.at({b.op, b.format});
                   });
}

}  // namespace

GpuEnvironment ReadEnvironment(int32_t index) {
  GpuEnvironment environment;
  int version = 0;
  if (cudaDriverGetVersion(&version) == cudaSuccess) environment.cuda_driver = CudaVersion(version);
  if (cudaRuntimeGetVersion(&version) == cudaSuccess)
    environment.cuda_runtime = CudaVersion(version);
  std::array<char, 32> bus{};
  if (cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), index) == cudaSuccess)
    ReadNvml(bus.data(), &environment);
  return environment;
}

namespace {

Result<KernelBench> MeasureKernels(const KernelBenchOptions& options) {
  AISP_RETURN_IF_ERROR(CheckShape(options));
  KernelBench bench;
  AISP_ASSIGN_OR_RETURN(const auto rig, BenchRig::Create(options));
  bench.limits = rig->limits();
  bench.environment = ReadEnvironment(options.index);
  bench.environment.device = bench.limits.device;
  for (const BenchPart part : {BenchPart::kFewRows, BenchPart::kManyRows}) {
    rig->Begin(part);
    AISP_RETURN_IF_ERROR(BenchLinear(*rig, part, &bench.prefills));
    AISP_RETURN_IF_ERROR(BenchAttention(*rig, part, &bench.prefills));
    AISP_RETURN_IF_ERROR(BenchRows(*rig, part));
  }
  std::erase_if(bench.prefills, [](const PrefillParts& p) {
    return p.linear_ms == 0 || p.attention_ms == 0 || p.head_ms == 0;
  });
  bench.timings = std::move(rig->timings());
  Group(&bench.timings);
  return bench;
}

}  // namespace
}  // namespace aisp::cuda

extern "C" __attribute__((visibility("default"))) void aisp_cuda_bench_kernels(
    const aisp::KernelBenchOptions* options, aisp::Result<aisp::KernelBench>* bench) {
  *bench = aisp::cuda::MeasureKernels(*options);
}
