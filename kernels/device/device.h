// Device: memory, streams, events, copies, captured graphs and sharing memory between processes.
// Independent of models.
//
// One Device is one CPU or one GPU. Work on a Stream runs in order; only Synchronize waits on the
// host. On the CPU a stream has no queue: an operation is complete when its call returns, events
// are always complete, and capture is unsupported (info().supports_graphs is false, and the calls
// return UNIMPLEMENTED).
//
// Threads: allocation, creation, export, import and memory info from any thread; a stream and what
// is enqueued on it from one thread at a time. A Device outlives everything it made.
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
  kHost,       // host memory that the device can copy asynchronously
  kShareable,  // device memory that can be exported to another process
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
  // Number of operations.
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

// How another process can access a shareable Buffer. Plain data, but `fd` is only a number: send it
// over a unix socket (SCM_RIGHTS) or open it through /proc/<pid>/fd.
struct MemoryHandle {
  std::string device_kind;
  size_t bytes = 0;
  int fd = -1;                         // host memory
  std::array<std::byte, 64> opaque{};  // device memory, in the driver's form
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
  // Of the whole device; on the CPU the smaller of the host's memory and this process's limit.
  virtual Result<MemoryInfo> GetMemoryInfo() const = 0;

  // Zeroed memory, aligned to at least 256 bytes. RESOURCE_EXHAUSTED names the size.
  virtual Result<Buffer> Allocate(size_t bytes, MemoryKind kind) = 0;

  virtual Result<std::unique_ptr<Stream>> CreateStream() = 0;
  virtual Status Synchronize(Stream& stream) = 0;

  virtual Result<std::unique_ptr<Event>> CreateEvent() = 0;
  virtual Status Record(Event& event, Stream& stream) = 0;
  // Later work on `stream` waits for `event`.
  virtual Status Wait(Stream& stream, Event& event) = 0;
  // Whether all work before the last Record is complete.
  virtual Result<bool> Query(const Event& event) const = 0;
  virtual Status Synchronize(Event& event) = 0;
  // Milliseconds between the last Records of two complete events.
  virtual Result<double> ElapsedMs(const Event& from, const Event& to) const = 0;

  // Copies between any addresses that this device can access. The memory must live until the stream
  // has passed.
  virtual Status Copy(void* target, const void* source, size_t bytes, Stream& stream) = 0;
  // As Copy, for a step's inputs: from MemoryKind::kHost to the device. May avoid the start-up time
  // of a copy engine; source and target are 16-aligned.
  virtual Status Upload(void* target, const void* source, size_t bytes, Stream& stream) {
    return Copy(target, source, bytes, stream);
  }
  // Many ranges in one call (blocks of a KV pool). Ranges of the target must not overlap.
  virtual Status CopyRanges(void* target, const void* source, std::span<const CopyRange> ranges,
                            Stream& stream) = 0;

  // Between the two calls, work enqueued on `stream` is recorded in a graph instead of running.
  // UNIMPLEMENTED without graphs.
  virtual Status BeginCapture(Stream& stream) = 0;
  virtual Result<std::unique_ptr<Graph>> EndCapture(Stream& stream) = 0;
  virtual Status LaunchGraph(Graph& graph, Stream& stream) = 0;

  // FAILED_PRECONDITION unless `buffer` was allocated as kShareable.
  virtual Result<MemoryHandle> Export(const Buffer& buffer) const = 0;
  // Maps another process's memory. Duplicates the handle's fd, which must be valid in this process.
  virtual Result<Buffer> Import(const MemoryHandle& handle) = 0;
};

}  // namespace aisp
