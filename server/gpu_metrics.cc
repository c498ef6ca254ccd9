#include "server/gpu_metrics.h"

#include <dlfcn.h>

#include <array>
#include <optional>

#include "common/log.h"
#include "common/threads.h"

namespace aisp {
namespace {

// The needed functions of NVML and the CUDA driver, declared here: no headers at build time.
using NvmlDevice = void*;
struct NvmlMemory {
  unsigned long long total, free, used;  // NOLINT(google-runtime-int): NVML's own types
};
struct NvmlUtilization {
  unsigned gpu, memory;  // percent
};
enum NvmlClock : int { kNvmlClockSm = 1, kNvmlClockMemory = 2 };
constexpr int kNvmlTemperatureGpu = 0;

class Library {
 public:
  explicit Library(const std::string& name)
      : handle_(dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL)) {}
  // Never closed: the driver's libraries have threads of their own.
  explicit operator bool() const { return handle_ != nullptr; }

  template <typename Function>
  bool Find(const char* symbol, Function** out) const {
    *out = handle_ == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(handle_, symbol));
    return *out != nullptr;
  }

 private:
  void* handle_;
};

struct Nvml {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*by_bus)(const char*, NvmlDevice*) = nullptr;
  int (*memory)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*clock)(NvmlDevice, int, unsigned*) = nullptr;
  int (*max_clock)(NvmlDevice, int, unsigned*) = nullptr;
  int (*utilization)(NvmlDevice, NvmlUtilization*) = nullptr;
  int (*power)(NvmlDevice, unsigned*) = nullptr;
  int (*temperature)(NvmlDevice, int, unsigned*) = nullptr;

  // Name and memory are required; functions that an older driver lacks are left out.
  bool Open(const Library& library) {
    library.Find("nvmlShutdown", &shutdown);
    library.Find("nvmlDeviceGetClockInfo", &clock);
    library.Find("nvmlDeviceGetMaxClockInfo", &max_clock);
    library.Find("nvmlDeviceGetUtilizationRates", &utilization);
    library.Find("nvmlDeviceGetPowerUsage", &power);
    library.Find("nvmlDeviceGetTemperature", &temperature);
    return library.Find("nvmlInit_v2", &init) &&
           library.Find("nvmlDeviceGetHandleByPciBusId_v2", &by_bus) &&
           library.Find("nvmlDeviceGetMemoryInfo", &memory) && init() == 0;
  }
};

// The PCI address: NVML counts all GPUs of the host, CUDA only the visible ones.
std::optional<std::array<char, 64>> BusIdOf(const Library& driver, int ordinal) {
  int (*get)(int*, int) = nullptr;
  int (*bus_id)(char*, int, int) = nullptr;
  if (!driver.Find("cuDeviceGet", &get) || !driver.Find("cuDeviceGetPCIBusId", &bus_id))
    return std::nullopt;
  int device = 0;
  std::array<char, 64> out{};
  if (get(&device, ordinal) != 0 ||
      bus_id(out.data(), static_cast<int>(out.size()) - 1, device) != 0)
    return std::nullopt;
  return out;
}

struct Gpu {
  NvmlDevice device = nullptr;
  MetricLabels labels;
};

class NvmlGpuMetrics final : public GpuMetrics {
 public:
  NvmlGpuMetrics(const Nvml& nvml, Waker waker, Duration interval, Metrics* metrics)
      : nvml_(nvml), waker_(std::move(waker)), interval_(interval), metrics_(metrics) {}
  ~NvmlGpuMetrics() override {
    waker_.Wake();
    if (thread_.joinable()) thread_.Join();
    if (nvml_.shutdown != nullptr) nvml_.shutdown();
  }

  void Add(NvmlDevice device, int ordinal) {
    gpus_.push_back({device, {{"gpu", std::to_string(ordinal)}}});
  }
  bool empty() const { return gpus_.empty(); }

  void Run() {
    Measure();
    thread_ = Thread("gpu-metrics", [this] {
      while (!waker_.Wait(interval_)) Measure();
    });
  }

 private:
  void Measure() const {
    for (const Gpu& gpu : gpus_) {
      MeasureMemory(gpu);
      MeasureClocks(gpu);
      MeasureLoad(gpu);
    }
  }

  // Values that the driver does not report are absent rather than 0.
  void MeasureMemory(const Gpu& gpu) const {
    NvmlMemory memory{};
    if (nvml_.memory(gpu.device, &memory) != 0) return;
    metrics_
        ->AddGauge("aisp_gpu_memory_used_bytes",
                   "GPU memory in use, of all processes on it and the driver", gpu.labels)
        .Set(static_cast<double>(memory.used));
    metrics_->AddGauge("aisp_gpu_memory_total_bytes", "GPU memory", gpu.labels)
        .Set(static_cast<double>(memory.total));
  }

  void MeasureClocks(const Gpu& gpu) const {
    unsigned mhz = 0;
    if (nvml_.clock != nullptr && nvml_.clock(gpu.device, kNvmlClockSm, &mhz) == 0)
      metrics_->AddGauge("aisp_gpu_sm_clock_hertz", "Clock of the multiprocessors", gpu.labels)
          .Set(mhz * 1e6);
    if (nvml_.max_clock != nullptr && nvml_.max_clock(gpu.device, kNvmlClockSm, &mhz) == 0)
      metrics_
          ->AddGauge("aisp_gpu_sm_clock_max_hertz", "Highest clock of the multiprocessors",
                     gpu.labels)
          .Set(mhz * 1e6);
    if (nvml_.clock != nullptr && nvml_.clock(gpu.device, kNvmlClockMemory, &mhz) == 0)
      metrics_->AddGauge("aisp_gpu_memory_clock_hertz", "Clock of the memory", gpu.labels)
          .Set(mhz * 1e6);
  }

  void MeasureLoad(const Gpu& gpu) const {
    NvmlUtilization used{};
    unsigned value = 0;
    if (nvml_.utilization != nullptr && nvml_.utilization(gpu.device, &used) == 0)
      metrics_
          ->AddGauge("aisp_gpu_utilization_ratio",
                     "Part of the last second in which a kernel ran, 0 to 1", gpu.labels)
          .Set(used.gpu * 0.01);
    if (nvml_.power != nullptr && nvml_.power(gpu.device, &value) == 0)
      metrics_->AddGauge("aisp_gpu_power_watts", "Power that the GPU draws", gpu.labels)
          .Set(value * 1e-3);
    if (nvml_.temperature != nullptr &&
        nvml_.temperature(gpu.device, kNvmlTemperatureGpu, &value) == 0)
      metrics_->AddGauge("aisp_gpu_temperature_celsius", "Temperature of the GPU", gpu.labels)
          .Set(value);
  }

  const Nvml nvml_;
  const Waker waker_;
  const Duration interval_;
  Metrics* const metrics_;
  std::vector<Gpu> gpus_;
  Thread thread_;
};

}  // namespace

std::unique_ptr<GpuMetrics> GpuMetrics::Start(const Options& options, Metrics* metrics) {
  const Library driver(options.driver);
  const Library library(options.nvml);
  Nvml nvml;
  auto waker = Waker::Create();
  if (!driver || !library || !waker || !nvml.Open(library)) {
    LogInfo("no metrics of the GPU: NVML cannot be opened", {{"library", options.nvml}});
    return nullptr;
  }
  auto out = std::make_unique<NvmlGpuMetrics>(nvml, std::move(*waker), options.interval, metrics);
  for (const int ordinal : options.ordinals) {
    const auto bus = BusIdOf(driver, ordinal);
    NvmlDevice device = nullptr;
    if (bus && nvml.by_bus(bus->data(), &device) == 0) out->Add(device, ordinal);
  }
  if (out->empty()) {
    LogInfo("no metrics of the GPU: NVML does not know it", {{"library", options.nvml}});
    return nullptr;
  }
  out->Run();
  return out;
}

}  // namespace aisp
