// Device: memory, streams, events, copies, captured graphs and the exchange of memory between
// processes. No model words.
//
// One Device is one CPU or one GPU. Work on a Stream runs in order; nothing here waits for the host
// but Synchronize. On the CPU a stream has no queue of its own: an operation is done when its call
// returns, events are always complete, and capture is not supported (info().supports_graphs is
// false, and the calls answer UNIMPLEMENTED).
//
// Threads: allocation, creation, export, import and memory info from any thread; a stream, and what
// is enqueued on it, from one thread at a time. A Device outlives everything it made.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/result.h"
#include "kernels/device/buffer.h"

namespace aisp {

enum class MemoryKind : uint8_t {
  kDevice,     // fastest for the device's own operations
  kHost,       // host memory that the device can copy from and to asynchronously
  kShareable,  // device memory that Export can hand to another process
};

class Stream {
 public:
  virtual ~Stream() = default;
};
class Event {
 public:
  virtual ~Event() = default;
};
class Graph {
 public:
  virtual ~Graph() = default;
  // Operations in it.
  virtual size_t size() const = 0;
};

struct DeviceInfo {
  std::string kind;  // "cpu", "cuda"
  std::string name;  // "avx512_bf16, 2 cores", "NVIDIA H200"
  int32_t index = 0;
  bool supports_graphs = false;
  bool asynchronous = false;
};

struct MemoryInfo {
  size_t total_bytes = 0;
  size_t free_bytes = 0;
};

// How another process gets at a shareable Buffer. Plain data, but `fd` is only a number there: it
// travels over a unix socket (SCM_RIGHTS) or is opened through /proc/<pid>/fd.
struct MemoryHandle {
  std::string device_kind;
  size_t bytes = 0;
  int fd = -1;                         // host memory
  std::array<std::byte, 64> opaque{};  // device memory, in the driver's own form
};

// Bytes from an offset in one region to an offset in another.
struct CopyRange {
  size_t source_offset = 0;
  size_t target_offset = 0;
  size_t bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;
  // Of the whole device; on the CPU, of the host or of this process's memory limit, whichever is
  // smaller.
  virtual Result<MemoryInfo> GetMemoryInfo() const = 0;

  // Zeroed memory, aligned to 256 bytes at least. RESOURCE_EXHAUSTED names the size.
  virtual Result<Buffer> Allocate(size_t bytes, MemoryKind kind) = 0;

  virtual Result<std::unique_ptr<Stream>> CreateStream() = 0;
  virtual Status Synchronize(Stream& stream) = 0;

  virtual Result<std::unique_ptr<Event>> CreateEvent() = 0;
  virtual Status Record(Event& event, Stream& stream) = 0;
  // What is enqueued on `stream` from now on waits for `event`.
  virtual Status Wait(Stream& stream, Event& event) = 0;
  // Whether everything before the last Record is done.
  virtual Result<bool> Query(const Event& event) const = 0;
  virtual Status Synchronize(Event& event) = 0;
  // Milliseconds between the last Records of two events that are both complete.
  virtual Result<double> ElapsedMs(const Event& from, const Event& to) const = 0;

  // Between any two addresses that this device can reach. The memory stays alive until the stream
  // has done it.
  virtual Status Copy(void* target, const void* source, size_t bytes, Stream& stream) = 0;
  // As Copy, of what a step needs to begin: from memory of MemoryKind::kHost to the device. A
  // device may do without the time that its copy engine takes to start; source and target are
  // aligned to 16.
  virtual Status Upload(void* target, const void* source, size_t bytes, Stream& stream) {
    return Copy(target, source, bytes, stream);
  }
  // Many ranges in one call (blocks of a KV pool). Ranges of the target must not overlap.
  virtual Status CopyRanges(void* target, const void* source, std::span<const CopyRange> ranges,
                            Stream& stream) = 0;

  // Everything enqueued on `stream` between the two becomes a graph instead of running.
  // UNIMPLEMENTED without graphs.
  virtual Status BeginCapture(Stream& stream) = 0;
  virtual Result<std::unique_ptr<Graph>> EndCapture(Stream& stream) = 0;
  virtual Status LaunchGraph(Graph& graph, Stream& stream) = 0;

  // FAILED_PRECONDITION unless `buffer` was allocated as kShareable.
  virtual Result<MemoryHandle> Export(const Buffer& buffer) const = 0;
  // Maps another process's memory. The handle's fd (already valid in this process) is duplicated,
  // not taken.
  virtual Result<Buffer> Import(const MemoryHandle& handle) = 0;
};

}  // namespace aisp
