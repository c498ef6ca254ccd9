#include "kernels/cuda/cuda_device.h"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <string>

#include "common/strings.h"
#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/host_upload.h"
#include "kernels/cuda/range_copy.h"

namespace aisp::cuda {
namespace {

struct CudaEvent final : Event {
  ~CudaEvent() override { cudaEventDestroy(handle); }
  cudaEvent_t handle = nullptr;
};

struct CudaGraph final : Graph {
  ~CudaGraph() override { cudaGraphExecDestroy(handle); }
  size_t size() const override { return nodes; }
  cudaGraphExec_t handle = nullptr;
  size_t nodes = 0;
};

struct DeviceMemory final : Allocation {
  explicit DeviceMemory(void* p) : data(p) {}
  ~DeviceMemory() override { cudaFree(data); }
  void* const data;
};

struct PinnedMemory final : Allocation {
  explicit PinnedMemory(void* p) : data(p) {}
  ~PinnedMemory() override { cudaFreeHost(data); }
  void* const data;
};

struct ImportedMemory final : Allocation {
  ImportedMemory(void* p, int32_t d) : data(p), device(d) {}
  // Runs on whichever thread releases the last reference.
  ~ImportedMemory() override {
    cudaSetDevice(device);
    cudaIpcCloseMemHandle(data);
  }
  void* const data;
  const int32_t device;
};

// Below this number, ranges are copied one by one.
constexpr size_t kFewRanges = 4;

cudaMemoryType TypeOf(const void* address) {
  cudaPointerAttributes attributes;
  if (cudaPointerGetAttributes(&attributes, address) == cudaSuccess) return attributes.type;
  cudaGetLastError();
  return cudaMemoryTypeUnregistered;
}
bool OnDevice(const void* address) { return TypeOf(address) == cudaMemoryTypeDevice; }
bool Pageable(const void* address) { return TypeOf(address) == cudaMemoryTypeUnregistered; }

class CudaDevice final : public Device {
 public:
  CudaDevice(int32_t index, const cudaDeviceProp& properties) : upload_(index) {
    info_.kind = "cuda";
    info_.name = properties.name;
    info_.index = index;
    info_.supports_graphs = true;
    info_.asynchronous = true;
  }

  Status Start() {
    AISP_ASSIGN_OR_RETURN(poll_report_, Allocate(sizeof(PollReport), MemoryKind::kHost));
    return {};
  }
  PollReport* poll_report() const { return static_cast<PollReport*>(poll_report_.data()); }
  void NameNodes(std::vector<std::string> names) { node_names_ = std::move(names); }

  const DeviceInfo& info() const override { return info_; }

  Result<MemoryInfo> GetMemoryInfo() const override {
    Use();
    MemoryInfo info;
    AISP_RETURN_IF_ERROR(Checked(cudaMemGetInfo(&info.free_bytes, &info.total_bytes),
                                 "asking for the device's memory"));
    return info;
  }

  Result<Buffer> Allocate(size_t bytes, MemoryKind kind) override {
    if (bytes == 0) return InvalidArgument("an allocation of 0 bytes");
    Use();
    void* data = nullptr;
    const cudaError_t code = kind == MemoryKind::kHost
                                 ? cudaHostAlloc(&data, bytes, cudaHostAllocPortable)
                                 : cudaMalloc(&data, bytes);
    if (code == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return OutOfMemory(bytes, kind);
    }
    AISP_RETURN_IF_ERROR(Checked(code, "allocating memory"));
    if (kind == MemoryKind::kHost) {
      std::memset(data, 0, bytes);
      return Buffer(data, bytes, -1, std::make_unique<PinnedMemory>(data));
    }
    Buffer buffer(data, bytes, -1, std::make_unique<DeviceMemory>(data));
    AISP_RETURN_IF_ERROR(Checked(cudaMemset(data, 0, bytes), "zeroing memory"));
    AISP_RETURN_IF_ERROR(Checked(cudaStreamSynchronize(nullptr), "zeroing memory"));
    return buffer;
  }

  Result<std::unique_ptr<Stream>> CreateStream() override {
    Use();
    auto stream = std::make_unique<CudaStream>();
    AISP_RETURN_IF_ERROR(Checked(cudaStreamCreateWithFlags(&stream->handle, cudaStreamNonBlocking),
                                 "creating a stream"));
    return stream;
  }
  Status Synchronize(Stream& stream) override {
    return Checked(cudaStreamSynchronize(HandleOf(stream)), "waiting for a stream");
  }

  Result<std::unique_ptr<Event>> CreateEvent() override {
    Use();
    auto event = std::make_unique<CudaEvent>();
    AISP_RETURN_IF_ERROR(Checked(cudaEventCreate(&event->handle), "creating an event"));
    return event;
  }
  Status Record(Event& event, Stream& stream) override {
    return Checked(cudaEventRecord(Of(event), HandleOf(stream)), "recording an event");
  }
  Status Wait(Stream& stream, Event& event) override {
    return Checked(cudaStreamWaitEvent(HandleOf(stream), Of(event)), "waiting for an event");
  }
  Result<bool> Query(const Event& event) const override {
    const cudaError_t code = cudaEventQuery(Of(event));
    if (code == cudaErrorNotReady) return false;
    AISP_RETURN_IF_ERROR(Checked(code, "querying an event"));
    return true;
  }
  Status Synchronize(Event& event) override {
    return Checked(cudaEventSynchronize(Of(event)), "a step on the GPU");
  }
  Result<double> ElapsedMs(const Event& from, const Event& to) const override {
    float ms = 0;
    AISP_RETURN_IF_ERROR(
        Checked(cudaEventElapsedTime(&ms, Of(from), Of(to)), "reading two events"));
    return double{ms};
  }

  Status Copy(void* target, const void* source, size_t bytes, Stream& stream) override {
    if (bytes == 0) return {};
    if (bytes >= HostUpload::kLeastBytes && OnDevice(target) && Pageable(source)) {
      Use();
      return upload_.Copy(target, source, bytes, HandleOf(stream));
    }
    return Checked(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, HandleOf(stream)),
                   "copying");
  }

  Status Upload(void* target, const void* source, size_t bytes, Stream& stream) override {
    if (bytes == 0 || bytes > kSmallCopyBytes) return Copy(target, source, bytes, stream);
    Use();
    return Checked(LaunchSmallCopy(target, source, bytes, HandleOf(stream)), "uploading a step");
  }

  Status CopyRanges(void* target, const void* source, std::span<const CopyRange> ranges,
                    Stream& stream) override {
    if (ranges.size() >= kFewRanges && OnDevice(target) && OnDevice(source)) {
      Use();
      return Checked(LaunchRangeCopy(target, source, ranges, HandleOf(stream)), "copying ranges");
    }
    for (const CopyRange& r : ranges) {
      AISP_RETURN_IF_ERROR(Copy(static_cast<std::byte*>(target) + r.target_offset,
                                static_cast<const std::byte*>(source) + r.source_offset, r.bytes,
                                stream));
    }
    return {};
  }

  // Other threads may allocate meanwhile.
  Status BeginCapture(Stream& stream) override {
    return Checked(cudaStreamBeginCapture(HandleOf(stream), cudaStreamCaptureModeThreadLocal),
                   "beginning a capture");
  }
  Result<std::unique_ptr<Graph>> EndCapture(Stream& stream) override {
    cudaGraph_t captured = nullptr;
    AISP_RETURN_IF_ERROR(
        Checked(cudaStreamEndCapture(HandleOf(stream), &captured), "ending a capture"));
    auto graph = std::make_unique<CudaGraph>();
    cudaGraphGetNodes(captured, nullptr, &graph->nodes);
    const cudaError_t code = cudaGraphInstantiate(&graph->handle, captured, 0);
    cudaGraphDestroy(captured);
    AISP_RETURN_IF_ERROR(Checked(code, "instantiating a graph"));
    AISP_RETURN_IF_ERROR(
        Checked(cudaGraphUpload(graph->handle, HandleOf(stream)), "uploading a graph"));
    return graph;
  }
  Status LaunchGraph(Graph& graph, Stream& stream) override {
    return Checked(cudaGraphLaunch(static_cast<CudaGraph&>(graph).handle, HandleOf(stream)),
                   "launching a graph");
  }

  // CUDA exports whole allocations only, which a Buffer is.
  Result<MemoryHandle> Export(const Buffer& buffer) const override {
    Use();
    cudaIpcMemHandle_t ipc;
    static_assert(sizeof(ipc) == sizeof(MemoryHandle::opaque));
    AISP_RETURN_IF_ERROR(
        Checked(cudaIpcGetMemHandle(&ipc, buffer.data()), "exporting device memory"));
    MemoryHandle handle;
    handle.device_kind = info_.kind;
    handle.bytes = buffer.bytes();
    std::memcpy(handle.opaque.data(), &ipc, sizeof(ipc));
    return handle;
  }

  Result<Buffer> Import(const MemoryHandle& handle) override {
    if (handle.device_kind != info_.kind) {
      return InvalidArgument(
          fmt::format("memory of a \"{}\" device cannot be mapped by a \"{}\" device",
                      handle.device_kind, info_.kind));
    }
    Use();
    cudaIpcMemHandle_t ipc;
    std::memcpy(&ipc, handle.opaque.data(), sizeof(ipc));
    void* data = nullptr;
    AISP_RETURN_IF_ERROR(Checked(cudaIpcOpenMemHandle(&data, ipc, cudaIpcMemLazyEnablePeerAccess),
                                 "mapping another process's device memory"));
    return Buffer(data, handle.bytes, -1, std::make_unique<ImportedMemory>(data, info_.index));
  }

 private:
  // The current device is per thread, and any thread may call.
  void Use() const { cudaSetDevice(info_.index); }

  static cudaEvent_t Of(const Event& event) { return static_cast<const CudaEvent&>(event).handle; }

  static bool LeavesContextBroken(cudaError_t code) {
    switch (code) {
      case cudaErrorIllegalAddress:
      case cudaErrorLaunchFailure:
      case cudaErrorLaunchTimeout:
      case cudaErrorIllegalInstruction:
      case cudaErrorMisalignedAddress:
      case cudaErrorInvalidAddressSpace:
      case cudaErrorInvalidPc:
      case cudaErrorHardwareStackError:
      case cudaErrorAssert:
      case cudaErrorECCUncorrectable:
      case cudaErrorNvlinkUncorrectable:
      case cudaErrorDevicesUnavailable:
        return true;
      default:
        return false;
    }
  }

  Status Checked(cudaError_t code, std::string_view doing) const {
    if (const int sticky = broken_.load(std::memory_order_relaxed); sticky != 0) [[unlikely]]
      code = static_cast<cudaError_t>(sticky);
    if (code == cudaSuccess) [[likely]]
      return {};
    if (LeavesContextBroken(code)) broken_.store(code, std::memory_order_relaxed);
    Error error = ToError(code, doing);
    if (poll_report_.bytes() > 0) error.message += WhoGaveUp();
    return tl::unexpected(std::move(error));
  }

  // The kernel that waited too long; "" if none has.
  std::string WhoGaveUp() const {
    const auto& report = *static_cast<const volatile PollReport*>(poll_report_.data());
    const uint32_t site = report.site;
    if (site == 0) return "";
    const auto node = static_cast<size_t>(report.node);
    return fmt::format("; {}: {}, and gave up (CTA {})",
                       node < node_names_.size() ? node_names_[node] : "a kernel",
                       PollSiteName(site), uint32_t{report.cta});
  }

  tl::unexpected<Error> OutOfMemory(size_t bytes, MemoryKind kind) const {
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    if (kind == MemoryKind::kHost) {
      return ResourceExhausted(
          fmt::format("{} of page-locked host memory are not to be had; lower the batch size",
                      HumanBytes(bytes)));
    }
    return ResourceExhausted(
        fmt::format("{} wanted, {} of {} are free on {}; lower --kv-memory, --max-model-len or "
                    "--max-batch-tokens, or keep the weights smaller (--quantization)",
                    HumanBytes(bytes), HumanBytes(free), HumanBytes(total), info_.name));
  }

  DeviceInfo info_;
  HostUpload upload_;
  Buffer poll_report_;  // page-locked; kernels write it before they trap
  std::vector<std::string> node_names_;
  mutable std::atomic<int> broken_ = 0;
};

}  // namespace

CudaStream::~CudaStream() { cudaStreamDestroy(handle); }

Error ToError(cudaError_t code, std::string_view doing) {
  const std::string text =
      fmt::format("CUDA, {}: {} ({})", doing, cudaGetErrorString(code), cudaGetErrorName(code));
  switch (code) {
    case cudaErrorMemoryAllocation:
      return {Code::kResourceExhausted, text};
    case cudaErrorInsufficientDriver:
      return {Code::kFailedPrecondition, text};
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
      return {Code::kInternal, text};
    default:
      return {Code::kUnavailable, text};
  }
}

Capability CapabilityOf(int32_t index) {
  Capability c;
  cudaDeviceGetAttribute(&c.major, cudaDevAttrComputeCapabilityMajor, index);
  cudaDeviceGetAttribute(&c.minor, cudaDevAttrComputeCapabilityMinor, index);
  return c;
}

Result<std::unique_ptr<Device>> MakeCudaDevice(int32_t index) {
  int driver = 0, runtime = 0, count = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  AISP_RETURN_IF_ERROR(CheckDriver(driver, runtime));
  AISP_RETURN_IF_ERROR(Check(cudaGetDeviceCount(&count), "counting GPUs"));
  if (index < 0 || index >= count) {
    return Unavailable(
        fmt::format("there is no GPU {}; this host has {} (--device cuda:N)", index, count));
  }
  cudaDeviceProp properties;
  AISP_RETURN_IF_ERROR(Check(cudaGetDeviceProperties(&properties, index), "looking at the GPU"));
  AISP_RETURN_IF_ERROR(CheckCode(properties.name, {properties.major, properties.minor}));
  AISP_RETURN_IF_ERROR(Check(cudaSetDevice(index), "taking the GPU"));
  AISP_RETURN_IF_ERROR(Check(cudaFree(nullptr), "taking the GPU"));
  auto device = std::make_unique<CudaDevice>(index, properties);
  AISP_RETURN_IF_ERROR(device->Start());
  return device;
}

PollReport* PollReportOf(Device& device) { return static_cast<CudaDevice&>(device).poll_report(); }
void NameNodes(Device& device, std::vector<std::string> names) {
  static_cast<CudaDevice&>(device).NameNodes(std::move(names));
}

}  // namespace aisp::cuda
