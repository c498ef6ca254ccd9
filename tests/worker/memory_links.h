// Links in memory for tests of roles: every message waits in its receiver's inbox until the test
// delivers it, so a test can stop a process, lose a link or inspect a message at any moment. One
// thread.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "proto/link.h"

namespace aisp {

// What has arrived at one process and was not handled yet.
struct Inbox {
  std::deque<std::function<void()>> events;

  bool DeliverOne() {
    if (events.empty()) return false;
    auto event = std::move(events.front());
    events.pop_front();
    event();
    return true;
  }
};

// All links of one kind. `Up` goes from the dialling side to the listening one, `Down` back.
template <typename Up, typename Down>
class MemoryLinks {
 public:
  // Called when a message is sent; false loses it. It may be modified.
  std::function<bool(Up&)> on_up;
  std::function<bool(Down&)> on_down;
  bool takes_no_offers = false;  // of Down

  void Listen(const std::string& address, LinkHandler<Up>* handler, Inbox* inbox) {
    listeners_[address] = {handler, inbox};
  }
  void Unlisten(const std::string& address) { listeners_.erase(address); }

  class Dialer final : public LinkDialer<Up> {
   public:
    Dialer(MemoryLinks* links, LinkHandler<Down>* handler, Inbox* inbox)
        : links_(links), handler_(handler), inbox_(inbox) {}
    LinkId Dial(const std::string& address) override {
      return links_->Dial(address, handler_, inbox_);
    }
    void Send(LinkId link, Up message) override { links_->SendUp(link, std::move(message)); }
    void Close(LinkId link) override { links_->Close(link, true); }

   private:
    MemoryLinks* links_;
    LinkHandler<Down>* handler_;
    Inbox* inbox_;
  };
  class Sender final : public LinkSender<Down> {
   public:
    explicit Sender(MemoryLinks* links) : links_(links) {}
    void Send(LinkId link, Down message) override { links_->SendDown(link, std::move(message)); }
    Status Offer(LinkId link, Down message) override {
      if (links_->takes_no_offers) return ResourceExhausted("the link has no room");
      Send(link, std::move(message));
      return {};
    }
    void Close(LinkId link) override { links_->Close(link, false); }

   private:
    MemoryLinks* links_;
  };

  // Both ends are notified; messages in flight are lost.
  void BreakAll() {
    for (auto& [id, link] : links_) Break(id, link);
  }
  // The links of one process.
  void BreakOf(const Inbox* inbox) {
    for (auto& [id, link] : links_) {
      if (link.dialer_inbox == inbox || link.listener_inbox == inbox) Break(id, link);
    }
  }
  int dials() const { return dials_; }

 private:
  struct Link {
    std::string address;
    LinkHandler<Down>* dialer = nullptr;
    Inbox* dialer_inbox = nullptr;
    LinkHandler<Up>* listener = nullptr;
    Inbox* listener_inbox = nullptr;
    bool dialer_open = true;
    bool listener_open = false;
    bool broken = false;
  };
  struct Listener {
    LinkHandler<Up>* handler;
    Inbox* inbox;
  };

  LinkId Dial(const std::string& address, LinkHandler<Down>* handler, Inbox* inbox) {
    const LinkId id(++last_id_);
    ++dials_;
    Link& link = links_[id];
    link.address = address;
    link.dialer = handler;
    link.dialer_inbox = inbox;
    const auto it = listeners_.find(address);
    if (it == listeners_.end()) {
      link.broken = true;
      inbox->events.push_back([this, id] {
        DownAtDialer(id, Error{Code::kUnavailable, "nobody listens"});
      });
      return id;
    }
    link.listener = it->second.handler;
    link.listener_inbox = it->second.inbox;
    link.listener_open = true;
    link.listener_inbox->events.push_back([this, id] {
      Link& l = links_.at(id);
      if (l.listener_open) l.listener->OnLinkUp(id, "dialer");
    });
    inbox->events.push_back([this, id] {
      Link& l = links_.at(id);
      if (l.dialer_open && !l.broken) l.dialer->OnLinkUp(id, l.address);
    });
    return id;
  }

  void SendUp(LinkId id, Up message) {
    Link& link = links_.at(id);
    if (link.broken || !link.dialer_open || (on_up && !on_up(message))) return;
    link.listener_inbox->events.push_back([this, id, message = std::move(message)]() mutable {
      Link& l = links_.at(id);
      if (l.listener_open && !l.broken) l.listener->OnMessage(id, std::move(message));
    });
  }
  void SendDown(LinkId id, Down message) {
    Link& link = links_.at(id);
    if (link.broken || !link.listener_open || (on_down && !on_down(message))) return;
    link.dialer_inbox->events.push_back([this, id, message = std::move(message)]() mutable {
      Link& l = links_.at(id);
      if (l.dialer_open && !l.broken) l.dialer->OnMessage(id, std::move(message));
    });
  }
  void Close(LinkId id, bool from_dialer) {
    Link& link = links_.at(id);
    if (link.broken) {
      (from_dialer ? link.dialer_open : link.listener_open) = false;
      return;
    }
    (from_dialer ? link.dialer_open : link.listener_open) = false;
    const Error why{Code::kCancelled, "the peer hung up"};
    if (from_dialer) {
      link.listener_inbox->events.push_back([this, id, why] { DownAtListener(id, why); });
    } else {
      link.dialer_inbox->events.push_back([this, id, why] { DownAtDialer(id, why); });
    }
  }
  void Break(LinkId id, Link& link) {
    if (link.broken) return;
    link.broken = true;
    const Error why{Code::kUnavailable, "connection reset"};
    link.dialer_inbox->events.push_back([this, id, why] { DownAtDialer(id, why); });
    link.listener_inbox->events.push_back([this, id, why] { DownAtListener(id, why); });
  }
  void DownAtDialer(LinkId id, const Error& why) {
    Link& link = links_.at(id);
    if (!std::exchange(link.dialer_open, false)) return;
    link.dialer->OnLinkDown(id, why);
  }
  void DownAtListener(LinkId id, const Error& why) {
    Link& link = links_.at(id);
    if (!std::exchange(link.listener_open, false)) return;
    link.listener->OnLinkDown(id, why);
  }

  std::map<std::string, Listener> listeners_;
  std::map<LinkId, Link> links_;
  uint64_t last_id_ = 0;
  int dials_ = 0;
};

using RouterLinksInMemory = MemoryLinks<v1::WorkerMessage, v1::RouterMessage>;
using KvLinksInMemory = MemoryLinks<v1::DecodeToPrefill, v1::PrefillToDecode>;

}  // namespace aisp
