// A LinkHandler that records its callbacks, and lets the test wait for them.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "net/io_loop.h"
#include "proto/link.h"

namespace aisp {

inline v1::WorkerMessage WorkerText(const std::string& text) {
  v1::WorkerMessage message;
  message.mutable_register_()->set_worker_id(text);
  return message;
}
inline v1::RouterMessage RouterText(const std::string& text) {
  v1::RouterMessage message;
  message.mutable_refused()->set_reason(text);
  return message;
}
inline const std::string& TextOf(const v1::WorkerMessage& m) { return m.register_().worker_id(); }
inline const std::string& TextOf(const v1::RouterMessage& m) { return m.refused().reason(); }

template <typename In>
class LinkRecorder : public LinkHandler<In> {
 public:
  struct Log {
    std::vector<std::pair<LinkId, std::string>> ups;
    std::vector<std::pair<LinkId, std::string>> messages;
    std::vector<std::pair<LinkId, Error>> downs;
    // Errors: a message or a second end after the end of a link, or a callback on a wrong thread.
    int violations = 0;
  };

  explicit LinkRecorder(IoLoop* owner) : owner_(owner) {}

  void OnLinkUp(LinkId link, const std::string& peer) override {
    Note(link, [&] { log_.ups.emplace_back(link, peer); });
  }
  void OnMessage(LinkId link, In message) override {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !blocked_; });
    }
    Note(link, [&] { log_.messages.emplace_back(link, TextOf(message)); });
    if (on_message) on_message(link, message);
  }
  void OnLinkDown(LinkId link, const Error& why) override {
    Note(link, [&] { log_.downs.emplace_back(link, why); });
  }

  // While blocked, OnMessage blocks the owner's thread.
  void Block(bool blocked) {
    const std::lock_guard lock(mutex_);
    blocked_ = blocked;
    changed_.notify_all();
  }
  bool Await(const std::function<bool(const Log&)>& condition,
             std::chrono::seconds limit = std::chrono::seconds(20)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return condition(log_); });
  }
  bool AwaitUp(size_t count = 1) {
    return Await([&](const Log& log) { return log.ups.size() >= count; });
  }
  bool AwaitMessages(size_t count) {
    return Await([&](const Log& log) { return log.messages.size() >= count; });
  }
  bool AwaitDown(size_t count = 1) {
    return Await([&](const Log& log) { return log.downs.size() >= count; });
  }
  Log log() {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  // Set before the first link: the calls in progress, during which no callback may come.
  std::atomic<int> inside_call{0};
  std::function<void(LinkId, const In&)> on_message;

 private:
  template <typename Fn>
  void Note(LinkId link, Fn fn) {
    const std::lock_guard lock(mutex_);
    for (const auto& down : log_.downs) log_.violations += down.first == link;
    log_.violations += !owner_->OnLoopThread() || inside_call != 0;
    fn();
    changed_.notify_all();
  }

  IoLoop* const owner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool blocked_ = false;
  Log log_;
};

using WorkerRecorder = LinkRecorder<v1::RouterMessage>;  // what a worker hears
using RouterRecorder = LinkRecorder<v1::WorkerMessage>;  // what a router hears

}  // namespace aisp
