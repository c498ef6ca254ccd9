#include "kernels/cuda/host_upload.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/cuda_error.h"

namespace aisp::cuda {
namespace {

// Measured on an H200 with 16 cores, twelve threads: 48.5 GB/s in pieces of 1 MiB, 51.6 of 2, 53 of
// 4, the bus alone 55.5; one thread copies 6. Page-locking takes 0.6 ms per MiB, so larger pieces
// do not pay off. A second stream keeps the bus busy while an event is recorded in the first.
constexpr size_t kPiece = size_t{2} << 20;
constexpr size_t kMostThreads = 12;
constexpr size_t kSlotsOfThread = 2;
constexpr size_t kStreams = 2;

}  // namespace

HostUpload::~HostUpload() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (const auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
    for (const Slot& slot : worker->slots) {
      if (slot.arrived != nullptr) cudaEventDestroy(slot.arrived);
      if (slot.memory != nullptr) cudaFreeHost(slot.memory);
    }
  }
  for (cudaEvent_t event : ended_) cudaEventDestroy(event);
  if (began_ != nullptr) cudaEventDestroy(began_);
  for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
}

Status HostUpload::Start() {
  if (began_ == nullptr) {
    AISP_RETURN_IF_ERROR(
        Check(cudaEventCreateWithFlags(&began_, cudaEventDisableTiming), "creating an event"));
  }
  while (streams_.size() < kStreams) {
    AISP_RETURN_IF_ERROR(Check(
        cudaStreamCreateWithFlags(&streams_.emplace_back(), cudaStreamNonBlocking), "a stream"));
    AISP_RETURN_IF_ERROR(Check(
        cudaEventCreateWithFlags(&ended_.emplace_back(), cudaEventDisableTiming), "an event"));
  }
  const size_t cores = std::max(1u, std::thread::hardware_concurrency());
  const size_t threads = std::clamp<size_t>(cores * 3 / 4, 1, kMostThreads);
  while (workers_.size() < threads) {
    auto worker = std::make_unique<Worker>();
    worker->stream = streams_[workers_.size() % kStreams];
    for (size_t i = 0; i < kSlotsOfThread; ++i) {
      Slot& slot = worker->slots.emplace_back();
      AISP_RETURN_IF_ERROR(Check(cudaHostAlloc(&slot.memory, kPiece, cudaHostAllocPortable),
                                 "page-locked memory for loading"));
      AISP_RETURN_IF_ERROR(
          Check(cudaEventCreateWithFlags(&slot.arrived, cudaEventDisableTiming), "an event"));
    }
    Worker& started = *workers_.emplace_back(std::move(worker));
    started.thread = std::thread([this, &started] { Serve(started); });
  }
  return {};
}

void HostUpload::Serve(Worker& worker) {
  cudaSetDevice(device_);
  uint64_t served = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || call_ != served; });
    if (stop_) return;
    served = call_;
    lock.unlock();
    Status copied = CopyPieces(worker);
    lock.lock();
    if (!copied && failed_) failed_ = std::move(copied);
    if (--busy_ == 0) done_.notify_one();
  }
}

Status HostUpload::CopyPieces(Worker& worker) {
  while (true) {
    const size_t at = next_.fetch_add(kPiece, std::memory_order_relaxed);
    if (at >= bytes_) return {};
    const size_t count = std::min(kPiece, bytes_ - at);
    const Slot& slot = worker.slots[worker.turn++ % worker.slots.size()];
    // An event that was never recorded counts as done.
    AISP_RETURN_IF_ERROR(Check(cudaEventSynchronize(slot.arrived), "loading"));
    std::memcpy(slot.memory, source_ + at, count);
    AISP_RETURN_IF_ERROR(Check(
        cudaMemcpyAsync(target_ + at, slot.memory, count, cudaMemcpyHostToDevice, worker.stream),
        "loading"));
    AISP_RETURN_IF_ERROR(Check(cudaEventRecord(slot.arrived, worker.stream), "loading"));
  }
}

Status HostUpload::Copy(void* target, const void* source, size_t bytes, cudaStream_t stream) {
  const std::lock_guard one_call(one_call_);
  AISP_RETURN_IF_ERROR(Start());
  AISP_RETURN_IF_ERROR(Check(cudaEventRecord(began_, stream), "loading"));
  for (cudaStream_t own : streams_)
    AISP_RETURN_IF_ERROR(Check(cudaStreamWaitEvent(own, began_), "loading"));
  target_ = static_cast<std::byte*>(target);
  source_ = static_cast<const std::byte*>(source);
  bytes_ = bytes;
  next_.store(0, std::memory_order_relaxed);
  {
    std::unique_lock lock(mutex_);
    failed_ = {};
    busy_ = workers_.size();
    ++call_;
    wake_.notify_all();
    done_.wait(lock, [&] { return busy_ == 0; });
    AISP_RETURN_IF_ERROR(failed_);
  }
  for (size_t i = 0; i < streams_.size(); ++i) {
    AISP_RETURN_IF_ERROR(Check(cudaEventRecord(ended_[i], streams_[i]), "loading"));
    AISP_RETURN_IF_ERROR(Check(cudaStreamWaitEvent(stream, ended_[i]), "loading"));
  }
  return {};
}

}  // namespace aisp::cuda
