// SimLinks: the link layer of proto/link.h under simulated time, with faults. One object carries
// all links of one kind: `Up` goes from the dialling side to the listening one, `Down` back.
//
// Messages of a link arrive in order with seeded delays. A link can break: both ends learn of it at
// different times, and messages in flight are lost, or read first, as from a socket's buffer. It
// can stall (nothing arrives for a while), or be closed by an end. A process that dies breaks all
// of its links. A link with too much in flight breaks, as the contract says.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/link.h"
#include "tests/support/sim_world.h"

namespace aisp {

struct SimLinkDelays {
  double base_ms = 0.1;
  double jitter_ms = 0.2;
  double spike_chance = 0.0;
  double spike_ms = 50;
};

template <typename Up, typename Down>
class SimLinks {
 public:
  using ProcessPtr = std::shared_ptr<SimProcess>;
  // Called for every sent message, for coverage and the event log.
  std::function<void(const SimProcess& from, const SimProcess& to, const Up&)> on_up;
  std::function<void(const SimProcess& from, const SimProcess& to, const Down&)> on_down;

  SimLinks(SimWorld* world, const SimLinkDelays& delays) : world_(world), delays_(delays) {}

  void Listen(const std::string& address, ProcessPtr process, LinkHandler<Up>* handler) {
    listeners_[address] = {std::move(process), handler};
  }

  // The dialling side's view. `handler` is called in `process`.
  class Dialer final : public LinkDialer<Up> {
   public:
    Dialer(SimLinks* links, ProcessPtr process, LinkHandler<Down>* handler)
        : links_(links), process_(std::move(process)), handler_(handler) {}
    LinkId Dial(const std::string& address) override {
      return links_->Dial(process_, handler_, address);
    }
    void Send(LinkId link, Up message) override { links_->SendUp(link, std::move(message)); }
    Status Offer(LinkId link, Up message) override {
      AISP_RETURN_IF_ERROR(links_->RoomFor(link, &Connection::listener, message));
      Send(link, std::move(message));
      return {};
    }
    void Close(LinkId link) override { links_->Close(link); }

   private:
    SimLinks* links_;
    ProcessPtr process_;
    LinkHandler<Down>* handler_;
  };
  class Listener final : public LinkSender<Down> {
   public:
    explicit Listener(SimLinks* links) : links_(links) {}
    void Send(LinkId link, Down message) override { links_->SendDown(link, std::move(message)); }
    Status Offer(LinkId link, Down message) override {
      AISP_RETURN_IF_ERROR(links_->RoomFor(link, &Connection::dialer, message));
      Send(link, std::move(message));
      return {};
    }
    void Close(LinkId link) override { links_->Close(link); }

   private:
    SimLinks* links_;
  };

  // --- faults ---
  // Breaks one random link, of `process` if given; false when there is none.
  bool BreakOne(const SimProcess* process = nullptr) {
    const std::vector<ConnectionPtr> some = Open(process);
    if (some.empty()) return false;
    const ConnectionPtr& c = some[world_->random.Below(some.size())];
    world_->Trace(
        "net", "link " + c->dialer.process->name + " - " + c->listener.process->name + " breaks");
    Break(c, world_->Chance(0.3) ? 600 : 20);
    return true;
  }
  bool StallOne(Duration time) {
    const std::vector<ConnectionPtr> some = Open(nullptr);
    if (some.empty()) return false;
    const ConnectionPtr& c = some[world_->random.Below(some.size())];
    world_->Trace(
        "net", "link " + c->dialer.process->name + " - " + c->listener.process->name + " stalls");
    End& end = world_->Chance(0.5) ? c->dialer : c->listener;
    end.last_arrival = std::max(end.last_arrival, world_->Now() + time);
    return true;
  }
  // One random link stops carrying messages, and its ends learn of it only after seconds, at
  // different times.
  bool HalfOpenOne() {
    const std::vector<ConnectionPtr> some = Open(nullptr);
    if (some.empty()) return false;
    const ConnectionPtr& c = some[world_->random.Below(some.size())];
    world_->Trace("net", "link " + c->dialer.process->name + " - " + c->listener.process->name +
                             " carries nothing any more");
    c->broken = true;
    for (End Connection::*which : {&Connection::dialer, &Connection::listener})
      DownAfter(c, which, world_->Ms(500, 6000));
    return true;
  }
  // Limits of messages and bytes in flight to one end; above them a message is refused. A single
  // larger message never fits.
  int max_offered = kMaxUnderWay / 2;
  size_t max_offered_bytes = kNoBound;
  std::function<void(Code)> on_refused;
  // The process has died; its peers learn of it after up to `notice_ms`.
  void OnDeath(const SimProcess* process, double notice_ms) {
    std::erase_if(listeners_, [&](const auto& l) { return l.second.process.get() == process; });
    for (const ConnectionPtr& c : Open(process)) Break(c, notice_ms);
  }

 private:
  static constexpr int kMaxUnderWay = 2048;
  static constexpr size_t kNoBound = SIZE_MAX;

  struct End {
    ProcessPtr process;
    LinkId id;
    bool open = false;  // callbacks may still come
    Instant last_arrival;
    // Towards this end; bytes are counted only if there is a limit.
    int under_way = 0;
    size_t bytes_under_way = 0;
  };
  struct Connection {
    End dialer;
    End listener;
    LinkHandler<Down>* dialer_handler = nullptr;
    LinkHandler<Up>* listener_handler = nullptr;
    bool broken = false;
  };
  using ConnectionPtr = std::shared_ptr<Connection>;
  struct ListenerEntry {
    ProcessPtr process;
    LinkHandler<Up>* handler = nullptr;
  };

  Duration Delay() {
    if (world_->Chance(delays_.spike_chance)) return world_->Ms(1, delays_.spike_ms);
    return FromMs(delays_.base_ms + delays_.jitter_ms * world_->random.Uniform());
  }

  // Runs `what` at the end, in order after everything sent to it before.
  void ToEnd(const ConnectionPtr& c, End Connection::*which, std::function<void()> what) {
    End& end = (*c).*which;
    end.last_arrival = std::max(end.last_arrival, world_->Now() + Delay());
    world_->At(end.last_arrival,
               [c, which, what = std::move(what)] { ((*c).*which).process->Deliver(what); });
  }

  LinkId Dial(const ProcessPtr& process, LinkHandler<Down>* handler, const std::string& address) {
    auto c = std::make_shared<Connection>();
    c->dialer.process = process;
    c->dialer.id = LinkId(next_id_++);
    c->dialer.open = true;
    c->dialer_handler = handler;
    by_id_[c->dialer.id] = c;
    world_->After(Delay(), [this, c, address] { Arrive(c, address); });
    return c->dialer.id;
  }

  void Arrive(const ConnectionPtr& c, const std::string& address) {
    auto it = listeners_.find(address);
    if (it == listeners_.end() || !c->dialer.process->alive()) {
      ReportDown(c, &Connection::dialer, {Code::kUnavailable, "nobody listens at " + address});
      return;
    }
    c->listener.process = it->second.process;
    c->listener.id = LinkId(next_id_++);
    c->listener.open = true;
    c->listener_handler = it->second.handler;
    by_id_[c->listener.id] = c;
    c->listener.process->Deliver([c] {
      if (c->listener.open) c->listener_handler->OnLinkUp(c->listener.id, c->dialer.process->name);
    });
    ToEnd(c, &Connection::dialer, [c] {
      if (c->dialer.open) c->dialer_handler->OnLinkUp(c->dialer.id, c->listener.process->name);
    });
    if (!c->dialer.open)
      ReportDown(c, &Connection::listener, {Code::kCancelled, "the dialling side left"});
  }

  ConnectionPtr Find(LinkId id) {
    auto it = by_id_.find(id);
    return it == by_id_.end() ? nullptr : it->second;
  }

  void SendUp(LinkId id, Up message) {
    const ConnectionPtr c = Find(id);
    if (c == nullptr || !c->dialer.open || c->broken || c->listener.process == nullptr) return;
    if (on_up) on_up(*c->dialer.process, *c->listener.process, message);
    const size_t bytes = BytesOf(message);
    if (!Count(c, &Connection::listener, bytes)) return;
    ToEnd(c, &Connection::listener, [c, bytes, message = std::move(message)]() mutable {
      --c->listener.under_way;
      c->listener.bytes_under_way -= bytes;
      if (c->listener.open) c->listener_handler->OnMessage(c->listener.id, std::move(message));
    });
  }
  void SendDown(LinkId id, Down message) {
    const ConnectionPtr c = Find(id);
    if (c == nullptr || !c->listener.open || c->broken) return;
    if (on_down) on_down(*c->listener.process, *c->dialer.process, message);
    const size_t bytes = BytesOf(message);
    if (!Count(c, &Connection::dialer, bytes)) return;
    ToEnd(c, &Connection::dialer, [c, bytes, message = std::move(message)]() mutable {
      --c->dialer.under_way;
      c->dialer.bytes_under_way -= bytes;
      if (c->dialer.open) c->dialer_handler->OnMessage(c->dialer.id, std::move(message));
    });
  }
  template <typename Message>
  size_t BytesOf(const Message& message) const {
    return max_offered_bytes == kNoBound ? 0 : message.ByteSizeLong();
  }
  template <typename Message>
  Status RoomFor(LinkId id, End Connection::*towards, const Message& message) {
    const ConnectionPtr c = Find(id);
    if (c == nullptr) return {};
    const End& end = (*c).*towards;
    const size_t bytes = BytesOf(message);
    if (bytes > max_offered_bytes) return Refuse(Code::kOutOfRange, "the message is too large");
    if (end.under_way < max_offered &&
        bytes <= max_offered_bytes - std::min(max_offered_bytes, end.bytes_under_way))
      return {};
    return Refuse(Code::kResourceExhausted, "the peer does not read");
  }
  Status Refuse(Code code, const char* why) {
    if (on_refused) on_refused(code);
    return Fail(code, why);
  }
  bool Count(const ConnectionPtr& c, End Connection::*towards, size_t bytes) {
    End& end = (*c).*towards;
    end.bytes_under_way += bytes;
    if (end.under_way++ < kMaxUnderWay) return true;
    Break(c, 1);
    return false;
  }

  void Close(LinkId id) {
    const ConnectionPtr c = Find(id);
    if (c == nullptr) return;
    const bool from_dialer = c->dialer.id == id;
    (from_dialer ? c->dialer : c->listener).open = false;
    by_id_.erase(id);
    if (from_dialer && c->listener.process == nullptr) return;  // still dialling
    ReportDown(c, from_dialer ? &Connection::listener : &Connection::dialer,
               {Code::kCancelled, "the peer hung up"});
  }

  void ReportDown(const ConnectionPtr& c, End Connection::*which, Error why) {
    ToEnd(c, which, [this, c, which, why = std::move(why)] { Down_(c, which, why); });
  }
  void Down_(const ConnectionPtr& c, End Connection::*which, const Error& why) {
    End& end = (*c).*which;
    if (!end.open) return;
    end.open = false;
    by_id_.erase(end.id);
    if (which == &Connection::dialer) {
      c->dialer_handler->OnLinkDown(end.id, why);
    } else {
      c->listener_handler->OnLinkDown(end.id, why);
    }
  }

  // Messages in flight that arrive after the end has learned of the break are lost.
  void Break(const ConnectionPtr& c, double notice_ms) {
    if (c->broken) return;
    c->broken = true;
    for (End Connection::*which : {&Connection::dialer, &Connection::listener}) {
      if (((*c).*which).process == nullptr) continue;
      if (world_->Chance(0.4)) {
        ReportDown(c, which, {Code::kUnavailable, "connection reset after the last message"});
        continue;
      }
      DownAfter(c, which, world_->Ms(0, notice_ms));
    }
  }
  void DownAfter(const ConnectionPtr& c, End Connection::*which, Duration time) {
    world_->After(time, [this, c, which] {
      ((*c).*which).process->Deliver([this, c, which] {
        Down_(c, which, {Code::kUnavailable, "connection reset"});
      });
    });
  }

  std::vector<ConnectionPtr> Open(const SimProcess* process) {
    std::vector<ConnectionPtr> out;
    for (const auto& [id, c] : by_id_) {
      if (c->dialer.id != id || c->broken || c->listener.process == nullptr) continue;
      if (process == nullptr || c->dialer.process.get() == process ||
          c->listener.process.get() == process) {
        out.push_back(c);
      }
    }
    return out;
  }

  SimWorld* const world_;
  const SimLinkDelays delays_;
  std::map<std::string, ListenerEntry> listeners_;
  std::map<LinkId, ConnectionPtr> by_id_;
  uint64_t next_id_ = 1;
};

}  // namespace aisp
