// Brings large pageable host memory, such as a mapped checkpoint, to a GPU at the speed of the bus:
// threads copy pieces of it into page-locked memory while earlier pieces travel.
//
// It owns its threads, page-locked memory and streams, made at the first use and kept. Any thread
// may call; calls follow each other.
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
  // Less than this is not worth waking the threads.
  static constexpr size_t kLeastBytes = size_t{4} << 20;

  explicit HostUpload(int32_t device) : device_(device) {}
  ~HostUpload();
  HostUpload(const HostUpload&) = delete;
  HostUpload& operator=(const HostUpload&) = delete;

  // As if enqueued on `stream`; returns when `source` has been read, which may be before it has
  // arrived. The first touch of a mapped file's pages happens in the threads.
  Status Copy(void* target, const void* source, size_t bytes, cudaStream_t stream);

 private:
  struct Slot {
    void* memory = nullptr;         // page-locked
    cudaEvent_t arrived = nullptr;  // what was in it last
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
  cudaEvent_t began_ = nullptr;     // what the caller's stream had to do before
  std::vector<cudaEvent_t> ended_;  // by stream

  // The call that is being served.
  std::byte* target_ = nullptr;
  const std::byte* source_ = nullptr;
  size_t bytes_ = 0;
  std::atomic<size_t> next_ = 0;

  std::mutex mutex_;  // of what follows
  std::condition_variable wake_, done_;
  uint64_t call_ = 0;
  size_t busy_ = 0;
  bool stop_ = false;
  Status failed_;
};

}  // namespace aisp::cuda
