// How roles speak to each other without doing I/O: a role is handed a LinkLayer and is told what
// arrives. net/ implements it with gRPC streams, tests/sim with seeded faults in one thread.
//
// Contract: messages on one link arrive in order, at most once; nothing arrives after LinkDown.
// Send never blocks: a link whose outgoing queue is over its bound goes down instead (LinkDown is
// reported, the peer's requests end). What begins a request is offered and fills a part of the
// queue only, so that no number of requests takes a link down. Methods of LinkLayer, but for Send
// where net/ carries it (any thread), and all callbacks of LinkHandler run on the thread that owns
// the role; no callback runs inside a call of Send, Close or Dial.
#pragma once

#include <string>
#include <utility>

#include "common/ids.h"
#include "common/result.h"
#include "kv.pb.h"
#include "worker.pb.h"

namespace aisp {

using LinkId = StrongId<struct LinkTag, uint64_t>;

enum class LinkKind {
  kRouterControl,  // worker -> router (RouterControl.Attach)
  kKvPeer,         // decode -> prefill (KvPeer.Session)
};

// Sends one side's messages. `Out` is what this side may send on a link of that kind.
template <typename Out>
class LinkSender {
 public:
  virtual ~LinkSender() = default;
  virtual void Send(LinkId link, Out message) = 0;
  // As Send, for a message that begins a request: one that does not fit into what the link may
  // queue is not sent, and the link stays as it is. OUT_OF_RANGE when it never fits,
  // RESOURCE_EXHAUSTED when it does not now. A carrier without bounds takes everything.
  virtual Status Offer(LinkId link, Out message) {
    Send(link, std::move(message));
    return {};
  }
  // Ends the link; LinkDown is not reported for it any more.
  virtual void Close(LinkId link) = 0;
};

// The dialling side. The outcome of Dial is reported by OnLinkUp or OnLinkDown; redialling is the
// role's business.
template <typename Out>
class LinkDialer : public LinkSender<Out> {
 public:
  virtual LinkId Dial(const std::string& address) = 0;
};

// What a role is told about its links of one kind. `In` is what the peer may send.
template <typename In>
class LinkHandler {
 public:
  virtual ~LinkHandler() = default;
  virtual void OnLinkUp(LinkId link, const std::string& peer_address) = 0;
  virtual void OnMessage(LinkId link, In message) = 0;
  virtual void OnLinkDown(LinkId link, const Error& why) = 0;
};

}  // namespace aisp
