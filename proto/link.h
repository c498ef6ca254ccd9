// How roles communicate without doing I/O: a role is given a LinkLayer and is told what arrives.
// net/ implements it with gRPC streams, tests/sim with seeded faults in one thread.
//
// Contract: messages on a link arrive in order, at most once; nothing arrives after LinkDown. Send
// never blocks: a link whose outgoing queue exceeds its bound goes down (LinkDown is reported, the
// peer's requests end). Messages that begin a request use Offer and may fill only a part of the
// queue, so that requests alone never take a link down. All methods of LinkLayer (except Send in
// net/: any thread) and all callbacks of LinkHandler run on the thread that owns the role; no
// callback runs inside Send, Close or Dial.
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

// Sends one side's messages. `Out`: the type that this side sends on such a link.
template <typename Out>
class LinkSender {
 public:
  virtual ~LinkSender() = default;
  virtual void Send(LinkId link, Out message) = 0;
  // As Send, for a message that begins a request: if the queue has no room, it is not sent and the
  // link stays up. OUT_OF_RANGE: it never fits; RESOURCE_EXHAUSTED: not now. Links without bounds
  // accept all.
  virtual Status Offer(LinkId link, Out message) {
    Send(link, std::move(message));
    return {};
  }
  // Ends the link; LinkDown is not reported for it.
  virtual void Close(LinkId link) = 0;
};

// The dialling side. OnLinkUp or OnLinkDown reports the outcome of Dial; redialling is up to the
// role.
template <typename Out>
class LinkDialer : public LinkSender<Out> {
 public:
  virtual LinkId Dial(const std::string& address) = 0;
};

// Events of a role's links of one kind. `In`: the type that the peer sends.
template <typename In>
class LinkHandler {
 public:
  virtual ~LinkHandler() = default;
  virtual void OnLinkUp(LinkId link, const std::string& peer_address) = 0;
  virtual void OnMessage(LinkId link, In message) = 0;
  virtual void OnLinkDown(LinkId link, const Error& why) = 0;
};

}  // namespace aisp
