#include "kvcache/transport/completion_queue.h"

#include <fmt/format.h>

#include <algorithm>

namespace aisp {

Result<WriteId> CompletionQueue::Admit(KvPeerId peer) {
  if (outstanding_ >= max_writes_) {
    return ResourceExhausted(fmt::format(
        "{} writes are queued or finished and not polled (the limit); poll and try again",
        max_writes_));
  }
  constexpr size_t kTimesWhatIsLeft = 4;
  size_t& held = of_peer_[peer.value];
  if (held >= kTimesWhatIsLeft * (max_writes_ - outstanding_)) {
    return ResourceExhausted(fmt::format(
        "{} writes to this peer are queued or finished and not polled, and {} of all {} "
        "are left; poll and try again",
        held, max_writes_ - outstanding_, max_writes_));
  }
  ++held;
  ++outstanding_;
  peer_of_.emplace(++last_id_, peer.value);
  return WriteId(last_id_);
}

void CompletionQueue::Complete(WriteCompletion completion) {
  std::function<void()> wake;
  {
    std::lock_guard lock(mutex_);
    done_.push_back(std::move(completion));
    ready_.store(done_.size(), std::memory_order_relaxed);
    // A reader takes all completions at once, so only the first needs a wake.
    if (done_.size() == 1) wake = wake_;
  }
  if (wake) wake();
}

size_t CompletionQueue::Poll(std::span<WriteCompletion> out) {
  if (ready_.load(std::memory_order_relaxed) == 0) return 0;
  std::lock_guard lock(mutex_);
  const size_t n = std::min(out.size(), done_.size());
  for (size_t i = 0; i < n; ++i) {
    out[i] = std::move(done_.front());
    done_.pop_front();
    const auto write = peer_of_.find(out[i].id.value);
    const auto peer = of_peer_.find(write->second);
    if (--peer->second == 0) of_peer_.erase(peer);
    peer_of_.erase(write);
  }
  ready_.store(done_.size(), std::memory_order_relaxed);
  outstanding_ -= n;
  return n;
}

void CompletionQueue::SetWaker(std::function<void()> wake) {
  std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
}

namespace {
bool Inside(uint64_t offset, uint64_t bytes, uint64_t limit) {
  return bytes <= limit && offset <= limit - bytes;
}
}  // namespace

Status CheckCopies(std::span<const BlockCopy> copies, uint64_t source_bytes,
                   uint64_t target_bytes) {
  for (const BlockCopy& copy : copies) {
    if (!Inside(copy.src_offset, copy.bytes, source_bytes)) {
      return Fail(Code::kOutOfRange,
                  fmt::format("{} bytes at {} lie outside the local pool of {} bytes", copy.bytes,
                              copy.src_offset, source_bytes));
    }
    if (!Inside(copy.dst_offset, copy.bytes, target_bytes)) {
      return Fail(Code::kOutOfRange,
                  fmt::format("{} bytes at {} lie outside the peer's pool of {} bytes", copy.bytes,
                              copy.dst_offset, target_bytes));
    }
  }
  return {};
}

Status OwnersVerdict(Code code, Epoch epoch) {
  switch (code) {
    case Code::kOk:
      return {};
    case Code::kFailedPrecondition:
      return FailedPrecondition(
          fmt::format("the pool's owner does not accept epoch {} (any more)", epoch.value));
    case Code::kOutOfRange:
      return Fail(
          code, fmt::format("the pool's owner did not grant these bytes to epoch {}", epoch.value));
    case Code::kDataLoss:
      return DataLoss("the bytes arrived damaged: their checksum differs");
    default:
      return Fail(Code::kInternal, fmt::format("the pool's owner refused a write with code {}",
                                               static_cast<int>(code)));
  }
}

}  // namespace aisp
