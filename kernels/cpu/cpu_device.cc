#include "kernels/cpu/cpu_device.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "common/strings.h"
#include "kernels/cpu/row_kernels.h"

namespace aisp {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

class Mapping final : public Allocation {
 public:
  Mapping(void* data, size_t bytes, int fd) : data_(data), bytes_(bytes), fd_(fd) {}
  ~Mapping() override {
    munmap(data_, bytes_);
    if (fd_ >= 0) close(fd_);
  }

 private:
  void* const data_;
  const size_t bytes_;
  const int fd_;
};

class CpuStream final : public Stream {};
struct CpuEvent final : Event {
  std::chrono::steady_clock::time_point recorded;
};

tl::unexpected<Error> SystemFail(std::string_view what, size_t bytes) {
  return ResourceExhausted(
      fmt::format("{} of {} ({} bytes): {}; lower the KV memory or the batch size", what,
                  HumanBytes(bytes), bytes, std::strerror(errno)));
}

// Maps `fd`, or anonymous memory for -1. Takes ownership of the descriptor, also on failure.
Result<Buffer> Map(size_t bytes, int fd) {
  const int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (data == MAP_FAILED) {
    auto error = SystemFail("mapping", bytes);
    if (fd >= 0) close(fd);
    return error;
  }
  // Only advice: without huge pages it is slightly slower.
  if (bytes >= kHugePage) madvise(data, bytes, MADV_HUGEPAGE);
  return Buffer(data, bytes, fd, std::make_unique<Mapping>(data, bytes, fd));
}

// The memory limit of this process's control group in bytes; 0: none.
uint64_t MemoryLimit() {
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(path);
    uint64_t limit = 0;
    if (file >> limit) return limit;
  }
  return 0;
}

class CpuDevice final : public Device {
 public:
  CpuDevice() {
    info_.kind = "cpu";
    info_.name =
        fmt::format("{}, {} cores", BestRowKernels().isa, std::thread::hardware_concurrency());
  }

  const DeviceInfo& info() const override { return info_; }

  Result<MemoryInfo> GetMemoryInfo() const override {
    std::ifstream file("/proc/meminfo");
    std::string key, unit;
    size_t kib = 0;
    MemoryInfo info;
    while (file >> key >> kib) {
      if (key == "MemTotal:") info.total_bytes = kib << 10;
      if (key == "MemAvailable:") info.free_bytes = kib << 10;
      std::getline(file, unit);
    }
    if (info.total_bytes == 0) return Internal("/proc/meminfo has no MemTotal; is /proc mounted?");
    const uint64_t limit = MemoryLimit();
    if (limit > 0 && limit < info.total_bytes) {
      info.total_bytes = limit;
      info.free_bytes = std::min<size_t>(info.free_bytes, limit);
    }
    return info;
  }

  Result<Buffer> Allocate(size_t bytes, MemoryKind kind) override {
    if (bytes == 0) return InvalidArgument("an allocation of 0 bytes");
    if (kind != MemoryKind::kShareable) return Map(bytes, -1);
    const int fd = memfd_create("aisp-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return SystemFail("memfd_create for shared memory", bytes);
    // Sealed: otherwise a process that has the descriptor could shrink the memory.
    if (ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
      auto error = SystemFail("reserving shared memory", bytes);
      close(fd);
      return error;
    }
    return Map(bytes, fd);
  }

  Result<std::unique_ptr<Stream>> CreateStream() override { return std::make_unique<CpuStream>(); }
  Status Synchronize(Stream&) override { return {}; }
  Result<std::unique_ptr<Event>> CreateEvent() override { return std::make_unique<CpuEvent>(); }
  Status Record(Event& event, Stream&) override {
    static_cast<CpuEvent&>(event).recorded = std::chrono::steady_clock::now();
    return {};
  }
  Status Wait(Stream&, Event&) override { return {}; }
  Result<bool> Query(const Event&) const override { return true; }
  Status Synchronize(Event&) override { return {}; }
  Result<double> ElapsedMs(const Event& from, const Event& to) const override {
    const auto passed =
        static_cast<const CpuEvent&>(to).recorded - static_cast<const CpuEvent&>(from).recorded;
    return std::chrono::duration<double, std::milli>(passed).count();
  }

  Status Copy(void* target, const void* source, size_t bytes, Stream&) override {
    std::memmove(target, source, bytes);
    return {};
  }
  Status CopyRanges(void* target, const void* source, std::span<const CopyRange> ranges,
                    Stream&) override {
    for (const CopyRange& r : ranges) {
      std::memmove(static_cast<std::byte*>(target) + r.target_offset,
                   static_cast<const std::byte*>(source) + r.source_offset, r.bytes);
    }
    return {};
  }

  Status BeginCapture(Stream&) override { return NoGraphs(); }
  Result<std::unique_ptr<Graph>> EndCapture(Stream&) override { return NoGraphs(); }
  Status LaunchGraph(Graph&, Stream&) override { return NoGraphs(); }

  Result<MemoryHandle> Export(const Buffer& buffer) const override {
    if (buffer.fd() < 0) {
      return FailedPrecondition(
          "this memory cannot be exported; allocate it as MemoryKind::kShareable");
    }
    MemoryHandle handle;
    handle.device_kind = info_.kind;
    handle.bytes = buffer.bytes();
    handle.fd = buffer.fd();
    return handle;
  }

  Result<Buffer> Import(const MemoryHandle& handle) override {
    if (handle.device_kind != info_.kind) {
      return InvalidArgument(
          fmt::format("memory of a \"{}\" device cannot be mapped by a \"{}\" device",
                      handle.device_kind, info_.kind));
    }
    const int fd = fcntl(handle.fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
      return InvalidArgument(
          fmt::format("memory handle: descriptor {}: {}", handle.fd, std::strerror(errno)));
    const off_t size = lseek(fd, 0, SEEK_END);
    if (size < 0 || static_cast<size_t>(size) < handle.bytes || handle.bytes == 0) {
      close(fd);
      return InvalidArgument(
          fmt::format("memory handle: {} bytes announced, the file has {}", handle.bytes, size));
    }
    if (const int seals = fcntl(fd, F_GET_SEALS); seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
      close(fd);
      return InvalidArgument("memory handle: its owner could take the memory away");
    }
    return Map(handle.bytes, fd);
  }

 private:
  static tl::unexpected<Error> NoGraphs() {
    return Unimplemented("a CPU device has no graphs; see DeviceInfo::supports_graphs");
  }
  DeviceInfo info_;
};

}  // namespace

std::unique_ptr<Device> MakeCpuDevice() { return std::make_unique<CpuDevice>(); }

}  // namespace aisp
