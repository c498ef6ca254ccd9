#include "kvcache/transport/copy_worker.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace aisp {
namespace {

constexpr std::chrono::microseconds kSpin{20};
constexpr std::chrono::microseconds kRousedSpin{300};

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

CopyWorker::CopyWorker(const std::string& thread_name, const std::byte* source,
                       CompletionQueue* completions)
    : source_(source), completions_(completions), thread_(thread_name, [this] { Run(); }) {}

CopyWorker::~CopyWorker() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  queued_.fetch_add(1, std::memory_order_relaxed);  // ends a spin
  work_.notify_all();
  thread_.Join();
}

void CopyWorker::Push(WriteId id, KvPeerId peer, Epoch epoch, std::span<const BlockCopy> copies,
                      const std::shared_ptr<CopyTarget>& target) {
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    std::vector<BlockCopy> list;
    if (!spare_.empty()) {
      list = std::move(spare_.back());
      spare_.pop_back();
    }
    list.assign(copies.begin(), copies.end());
    queue_.push_back({id, peer, epoch, std::move(list), target, false});
    wake = sleeping_;
  }
  queued_.fetch_add(1, std::memory_order_release);
  if (wake) work_.notify_one();
}

void CopyWorker::Rouse(const std::shared_ptr<CopyTarget>& target) {
  {
    std::lock_guard lock(mutex_);
    if (!sleeping_) return;
    roused_ = target;
  }
  work_.notify_one();
}

bool CopyWorker::Asleep() {
  std::lock_guard lock(mutex_);
  return sleeping_ && roused_ == nullptr && queue_.empty();
}

void CopyWorker::Cancel(KvPeerId peer, Epoch epoch) {
  std::lock_guard lock(mutex_);
  for (Job& job : queue_) {
    if (job.peer == peer && job.epoch == epoch) job.cancelled = true;
  }
}

void CopyWorker::Remove(KvPeerId peer, const Error& why) {
  std::deque<Job> removed;
  {
    std::unique_lock lock(mutex_);
    std::deque<Job> kept;
    for (Job& job : queue_) (job.peer == peer ? removed : kept).push_back(std::move(job));
    queue_ = std::move(kept);
    queued_.fetch_sub(static_cast<uint32_t>(removed.size()), std::memory_order_relaxed);
    idle_.wait(lock, [&] { return std::ranges::find(copying_, peer) == copying_.end(); });
  }
  for (const Job& job : removed) completions_->Complete({job.id, job.epoch, tl::unexpected(why)});
}

void CopyWorker::Run() {
  std::deque<Begun> under_way;
  for (;;) {
    Job job;
    const bool room = under_way.empty() || under_way.size() < under_way.front().job.target->depth();
    if (room && Next(under_way.empty(), &job)) {
      Status status = Begin(job);
      under_way.push_back({std::move(job), std::move(status)});
      if (under_way.back().job.target->depth() > 1) continue;
    }
    if (under_way.empty()) return;
    Begun oldest = std::move(under_way.front());
    under_way.pop_front();
    if (oldest.status) oldest.status = oldest.job.target->Await();
    Finish(std::move(oldest));
  }
}

Status CopyWorker::Begin(const Job& job) {
  if (job.cancelled) {
    return Fail(Code::kCancelled, "epoch " + std::to_string(job.epoch.value) +
                                      " was cancelled before this write began");
  }
  return job.target->Copy(source_, job.copies, job.epoch);
}

void CopyWorker::SpinFor(std::chrono::microseconds time) const {
  const auto end = std::chrono::steady_clock::now() + time;
  while (queued_.load(std::memory_order_acquire) == 0 && std::chrono::steady_clock::now() < end)
    Pause();
}

void CopyWorker::WakeUp(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<CopyTarget> target = std::exchange(roused_, nullptr);
  if (target == nullptr || stop_ || !queue_.empty()) return;
  lock.unlock();
  target->Warm(source_);
  SpinFor(kRousedSpin);
  lock.lock();
}

bool CopyWorker::Next(bool waits, Job* job) {
  if (waits) SpinFor(kSpin);
  std::unique_lock lock(mutex_);
  while (waits && !stop_ && queue_.empty()) {
    sleeping_ = true;
    work_.wait(lock, [this] { return stop_ || roused_ != nullptr || !queue_.empty(); });
    sleeping_ = false;
    WakeUp(lock);
  }
  if (stop_ || queue_.empty()) return false;
  *job = std::move(queue_.front());
  queue_.pop_front();
  queued_.fetch_sub(1, std::memory_order_relaxed);
  copying_.push_back(job->peer);
  return true;
}

void CopyWorker::Finish(Begun begun) {
  // Complete first, so that all of a peer's completions precede the return of Remove.
  completions_->Complete({begun.job.id, begun.job.epoch, std::move(begun.status)});
  begun.job.target.reset();
  begun.job.copies.clear();
  {
    std::lock_guard lock(mutex_);
    copying_.pop_front();
    spare_.push_back(std::move(begun.job.copies));
  }
  idle_.notify_all();
}

}  // namespace aisp
