// PrefillPeers: a decode worker's sessions to prefill workers, one per address, dialled when first
// needed and kept.
//
// A session is up after the prefill worker accepted our fingerprint and connected to our pool. One
// that cannot be reached or refuses is avoided for a backoff: Want() then fails at once and the
// request goes elsewhere. A dial or hello without an answer within `attach_limit` counts as lost.
// Owned by the engine thread; no method blocks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/result.h"
#include "decode/lease_book.h"
#include "proto/link.h"
#include "worker/backoff.h"

namespace aisp {

class PrefillPeers {
 public:
  struct Options {
    v1::KvHello hello;  // our first message, with the offers
    uint64_t seed = 0;
    Duration attach_limit = std::chrono::seconds(2);
    Duration reconnect_min = std::chrono::milliseconds(20);
    Duration reconnect_max = std::chrono::seconds(1);
    std::vector<KvTransport*> transports;
  };
  // Session events; may call Want, Send and Up from inside.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void OnSessionUp(const std::string& address) = 0;
    // Called for a session that was dialled, greeted or up.
    virtual void OnSessionLost(const std::string& address, const Error& why) = 0;
    virtual void OnPeer(const std::string& address, const v1::PrefillToDecode& message) = 0;
  };

  PrefillPeers(Options options, const Clock* clock, LinkDialer<v1::DecodeToPrefill>* dialer,
               PeerDeath* death, Listener* listener);

  // OK: up, or in progress (OnSessionUp or OnSessionLost follows). UNAVAILABLE: in backoff or
  // draining.
  Status Want(const std::string& address);
  // The same for one that may be draining, which still gives away cached prefixes.
  Status Reach(const std::string& address);
  // The process at the other end; null while the session is not up.
  const Writer* Up(const std::string& address) const;
  // False when the session is not up.
  bool Send(const std::string& address, v1::DecodeToPrefill message);
  // As LinkSender::Offer; UNAVAILABLE when the session is not up.
  Status Offer(const std::string& address, v1::DecodeToPrefill message);
  bool Draining(const std::string& address) const;
  double MeasuredBytesPerSecond() const { return measured_bytes_per_s_; }

  void OnLinkUp(LinkId link);
  void OnMessage(LinkId link, const v1::PrefillToDecode& message);
  // A note of the writer whose connection to our pool over `transport` has this token; one of an
  // unknown writer, or of one whose session is over, is dropped.
  void OnNote(const KvTransport* transport, const std::string& token,
              const v1::PrefillToDecode& note);
  void OnLinkDown(LinkId link, const Error& why);
  Instant NextTimer() const;
  void OnTimer(Instant now);

 private:
  enum class State { kDown, kDialling, kGreeting, kUp };
  struct Peer {
    State state = State::kDown;
    LinkId link;
    Instant timer = kNever;  // kDialling, kGreeting: give up; kDown: may be dialled again
    Backoff backoff;
    std::string trouble;
    Writer writer;           // kUp
    std::string lane_token;  // kUp
    bool draining = false;   // kUp: accepts no new request
    // Transports on which its death could not be proven; not offered to it again.
    std::set<std::string> without_proof;
  };
  using Entry = std::map<std::string, Peer>::iterator;

  Entry Find(LinkId link);
  void OnAck(Entry entry, const v1::KvHelloAck& ack);
  void Lose(Entry entry, const Error& why, bool close);

  const Options options_;
  const Clock* const clock_;
  LinkDialer<v1::DecodeToPrefill>* const dialer_;
  PeerDeath* const death_;
  Listener* const listener_;
  std::map<std::string, Peer> peers_;
  double measured_bytes_per_s_ = 0;
};

}  // namespace aisp
