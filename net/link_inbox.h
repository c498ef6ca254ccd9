// The owner's side of its links, for any transport: tracks which links are open and posts what
// arrives to the handler's thread, dropping what must not be delivered any more. For net/ only.
//
// `Wire` is the transport's handle of a link (a shared_ptr). Any thread may call Up, Message and
// Down; the handler sees them in the order of these calls, per link. All else and the handler
// belong to the owner's thread. Shared by the endpoint and everything that may still report.
//
// Invariant: per link the handler sees [OnLinkUp] OnMessage* [OnLinkDown], with OnLinkUp and
// OnLinkDown at most once, and nothing after Forget or Stop.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "net/grpc_links.h"
#include "proto/link.h"

namespace aisp {

template <typename In, typename Wire>
class LinkInbox : public std::enable_shared_from_this<LinkInbox<In, Wire>> {
 public:
  LinkInbox(LinkHandler<In>* handler, Poster post) : handler_(handler), post_(std::move(post)) {}

  // The owner dials: the link is open from now on; Up or Down follows.
  void Expect(LinkId link, Wire wire) {
    const std::lock_guard lock(mutex_);
    open_.emplace(link, std::move(wire));
  }
  // Null when the link is not open.
  Wire Find(LinkId link) {
    const std::lock_guard lock(mutex_);
    const auto found = open_.find(link);
    return found == open_.end() ? Wire() : found->second;
  }
  // The owner closes it; null when it was not open.
  Wire Forget(LinkId link) {
    const std::lock_guard lock(mutex_);
    auto node = open_.extract(link);
    return node.empty() ? Wire() : std::move(node.mapped());
  }

  // A peer dialled this link; false after Stop.
  bool Accept(LinkId link, const std::string& peer_address, Wire wire) {
    {
      const std::lock_guard lock(mutex_);
      if (stopped_) return false;
      open_.emplace(link, std::move(wire));
    }
    Up(link, peer_address);
    return true;
  }
  void Up(LinkId link, const std::string& peer_address) {
    Post([link, peer_address](LinkInbox* self) {
      if (self->Find(link)) self->handler_->OnLinkUp(link, peer_address);
    });
  }
  // `consumed` runs after the handler, also if the message is dropped; not after Stop.
  template <typename Fn>
  void Message(LinkId link, std::shared_ptr<In> message, Fn consumed) {
    Post([link, message = std::move(message), consumed = std::move(consumed)](LinkInbox* self) {
      if (self->Find(link)) self->handler_->OnMessage(link, std::move(*message));
      consumed();
    });
  }
  void Down(LinkId link, Error why) {
    Post([link, why = std::move(why)](LinkInbox* self) {
      if (self->Forget(link)) self->handler_->OnLinkDown(link, why);
    });
  }

  // No more posts and handler calls. Returns the links that were open. On the owner's thread, or on
  // any once that has ended.
  std::vector<Wire> Stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    std::vector<Wire> wires;
    wires.reserve(open_.size());
    for (auto& [link, wire] : open_) wires.push_back(std::move(wire));
    open_.clear();
    return wires;
  }

 private:
  template <typename Fn>
  void Post(Fn fn) {
    // Under the lock, so that `post_` is not called after Stop returned. Posting only enqueues.
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    post_([self = this->shared_from_this(), fn = std::move(fn)] {
      if (!self->Stopped()) fn(self.get());
    });
  }
  bool Stopped() {
    const std::lock_guard lock(mutex_);
    return stopped_;
  }

  LinkHandler<In>* const handler_;
  const Poster post_;
  std::mutex mutex_;
  bool stopped_ = false;
  std::unordered_map<LinkId, Wire> open_;
};

}  // namespace aisp
