// A bounded queue between threads. When it is full, TryPush returns false and never waits; the
// caller refuses the work upstream. Any number of producers and consumers; all methods are
// thread-safe.
//
// Invariants: size() <= capacity(); items come out in the order they went in; after Close() nothing
// goes in, and what is inside can still be taken out. A consumer that sleeps elsewhere (epoll, a
// device event) passes `on_push`. It runs after each successful push, on the producer's thread and
// outside the lock, and must not block.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/clock.h"

namespace aisp {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity, std::function<void()> on_push = {})
      : capacity_(capacity), on_push_(std::move(on_push)) {
    AISP_CHECK(capacity > 0);
  }
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  // False when full or closed. `item` is then untouched, so the caller can still answer its sender.
  [[nodiscard]] bool TryPush(T&& item) {
    {
      std::lock_guard lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(item));
    }
    ready_.notify_one();
    if (on_push_) on_push_();
    return true;
  }
  [[nodiscard]] bool TryPush(const T& item) { return TryPush(T(item)); }

  // The oldest item, or empty when there is none. Never waits.
  std::optional<T> TryPop() {
    std::lock_guard lock(mutex_);
    return TakeFront();
  }

  // Waits for an item. Empty when the queue is closed and drained, or when Wake() was called.
  std::optional<T> Pop() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return Awake(); });
    return TakeFrontOrWake();
  }

  // As Pop(), but gives up and returns empty after `timeout`.
  std::optional<T> Pop(Duration timeout) {
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, timeout, [this] { return Awake(); });
    return TakeFrontOrWake();
  }

  // Appends all items to `out` and returns their number. Never waits.
  size_t PopAll(std::vector<T>& out) {
    std::deque<T> taken;
    {
      std::lock_guard lock(mutex_);
      taken.swap(items_);
    }
    for (T& item : taken) out.push_back(std::move(item));
    return taken.size();
  }

  // Makes one waiting Pop (or the next one, if none waits) return empty although the queue is open.
  void Wake() {
    {
      std::lock_guard lock(mutex_);
      woken_ = true;
    }
    ready_.notify_one();
  }

  // Refuses further items; consumers drain the rest and then get empty. May be called twice.
  void Close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
    if (on_push_) on_push_();
  }

  // As Close(), but also discards the items that are inside.
  void CloseAndClear() {
    std::deque<T> dropped;
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
      dropped.swap(items_);
    }
    ready_.notify_all();
    if (on_push_) on_push_();
  }

  bool closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
  }
  size_t size() const {
    std::lock_guard lock(mutex_);
    return items_.size();
  }
  size_t capacity() const { return capacity_; }

 private:
  bool Awake() const { return closed_ || woken_ || !items_.empty(); }

  std::optional<T> TakeFront() {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }
  // Items go first: a pending wake-up is kept for the next Pop.
  std::optional<T> TakeFrontOrWake() {
    if (items_.empty()) woken_ = false;
    return TakeFront();
  }

  const size_t capacity_;
  const std::function<void()> on_push_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<T> items_;
  bool closed_ = false;
  bool woken_ = false;
};

}  // namespace aisp
