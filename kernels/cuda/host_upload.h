// Copies large pageable host memory, such as a mapped checkpoint, to a GPU at the speed of the bus:
// threads copy pieces into page-locked memory while earlier pieces are transferred.
//
// Owns its threads, page-locked memory and streams, created on first use. Any thread may call;
// calls are serialised.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "common/result.h"

namespace aisp::cuda {

class HostUpload {
 public:
  // Smaller copies are not worth waking the threads.
  static constexpr size_t kLeastBytes = size_t{4} << 20;

  explicit HostUpload(int32_t device) : device_(device) {}
  ~HostUpload();
  HostUpload(const HostUpload&) = delete;
  HostUpload& operator=(const HostUpload&) = delete;

  // Acts as if enqueued on `stream`; returns when `source` has been read, possibly before it has
  // arrived. The threads take the page faults of mapped files.
  Status Copy(void* target, const void* source, size_t bytes, cudaStream_t stream);

 private:
  struct Slot {
    void* memory = nullptr;         // page-locked
    cudaEvent_t arrived = nullptr;  // when its last content has arrived
  };
  struct Worker {
    std::vector<Slot> slots;
    size_t turn = 0;
    cudaStream_t stream = nullptr;  // one of streams_
    std::thread thread;
  };

  Status Start();
  void Serve(Worker& worker);
  Status CopyPieces(Worker& worker);

  const int32_t device_;
  std::mutex one_call_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<cudaStream_t> streams_;
  cudaEvent_t began_ = nullptr;     // earlier work of the caller's stream
  std::vector<cudaEvent_t> ended_;  // by stream

  // The current call.
  std::byte* target_ = nullptr;
  const std::byte* source_ = nullptr;
  size_t bytes_ = 0;
  std::atomic<size_t> next_ = 0;

  std::mutex mutex_;  // guards the following
  std::condition_variable wake_, done_;
  uint64_t call_ = 0;
  size_t busy_ = 0;
  bool stop_ = false;
  Status failed_;
};

}  // namespace aisp::cuda
