#include "decode/prefill_peers.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/hash.h"
#include "common/log.h"

namespace aisp {
namespace {

// Beyond this number, unused addresses that are down are forgotten.
constexpr size_t kMaxPeers = 1024;

}  // namespace

PrefillPeers::PrefillPeers(Options options, const Clock* clock,
                           LinkDialer<v1::DecodeToPrefill>* dialer, PeerDeath* death,
                           Listener* listener)
    : options_(std::move(options)),
      clock_(clock),
      dialer_(dialer),
      death_(death),
      listener_(listener) {}

PrefillPeers::Entry PrefillPeers::Find(LinkId link) {
  return std::find_if(peers_.begin(), peers_.end(), [link](const auto& entry) {
    return entry.second.state != State::kDown && entry.second.link == link;
  });
}

Status PrefillPeers::Want(const std::string& address) {
  if (Draining(address))
    return Unavailable(fmt::format("prefill worker at {} is draining", address));
  return Reach(address);
}

Status PrefillPeers::Reach(const std::string& address) {
  const Instant now = clock_->Now();
  auto it = peers_.find(address);
  if (it == peers_.end()) {
    if (peers_.size() >= kMaxPeers) {
      std::erase_if(peers_, [](const auto& entry) { return entry.second.state == State::kDown; });
    }
    const Backoff backoff(options_.reconnect_min, options_.reconnect_max,
                          options_.seed ^ Hash64(address));
    Peer fresh{.state = State::kDown,
               .link = {},
               .timer = now,
               .backoff = backoff,
               .trouble = {},
               .writer = {},
               .lane_token = {},
               .draining = false,
               .without_proof = {}};
    it = peers_.emplace(address, std::move(fresh)).first;
  }
  Peer& peer = it->second;
  if (peer.state != State::kDown) return {};
  if (now < peer.timer) {
    return Unavailable(fmt::format("prefill worker at {} is left alone for {:.0f} ms: {}", address,
                                   ToMs(peer.timer - now), peer.trouble));
  }
  peer.state = State::kDialling;
  peer.timer = now + options_.attach_limit;
  peer.link = dialer_->Dial(address);
  return {};
}

const Writer* PrefillPeers::Up(const std::string& address) const {
  const auto it = peers_.find(address);
  return it != peers_.end() && it->second.state == State::kUp ? &it->second.writer : nullptr;
}

bool PrefillPeers::Send(const std::string& address, v1::DecodeToPrefill message) {
  const auto it = peers_.find(address);
  if (it == peers_.end() || it->second.state != State::kUp) return false;
  dialer_->Send(it->second.link, std::move(message));
  return true;
}

Status PrefillPeers::Offer(const std::string& address, v1::DecodeToPrefill message) {
  const auto it = peers_.find(address);
  if (it == peers_.end() || it->second.state != State::kUp)
    return Unavailable(fmt::format("there is no session to the prefill worker at {}", address));
  return dialer_->Offer(it->second.link, std::move(message));
}

bool PrefillPeers::Draining(const std::string& address) const {
  const auto it = peers_.find(address);
  return it != peers_.end() && it->second.draining;
}

void PrefillPeers::OnLinkUp(LinkId link) {
  const Entry entry = Find(link);
  if (entry == peers_.end() || entry->second.state != State::kDialling) return;
  entry->second.state = State::kGreeting;
  entry->second.timer = clock_->Now() + options_.attach_limit;
  v1::DecodeToPrefill message;
  v1::KvHello* hello = message.mutable_hello();
  *hello = options_.hello;
  hello->clear_offers();
  for (const v1::TransportOffer& offer : options_.hello.offers()) {
    if (!entry->second.without_proof.contains(offer.name())) *hello->add_offers() = offer;
  }
  dialer_->Send(link, std::move(message));
}

void PrefillPeers::OnMessage(LinkId link, const v1::PrefillToDecode& message) {
  const Entry entry = Find(link);
  if (entry == peers_.end()) return;
  Peer& peer = entry->second;
  if (peer.state == State::kUp && message.body_case() == v1::PrefillToDecode::kDraining) {
    peer.draining = !message.draining().over();
    LogInfo(peer.draining ? "prefill worker drains" : "prefill worker takes work again",
            {{"address", entry->first}});
  } else if (peer.state == State::kUp) {
    listener_->OnPeer(entry->first, message);
  } else if (peer.state == State::kGreeting && message.body_case() == v1::PrefillToDecode::kHello) {
    OnAck(entry, message.hello());
  } else if (peer.state == State::kGreeting &&
             message.body_case() == v1::PrefillToDecode::kRefused) {
    LogError("prefill worker refused this worker",
             {{"address", entry->first}, {"reason", message.refused().reason()}});
    peer.backoff.Exhaust();
    Lose(entry, Error{Code::kFailedPrecondition, "refused: " + message.refused().reason()}, true);
  }
}

void PrefillPeers::OnNote(const KvTransport* transport, const std::string& token,
                          const v1::PrefillToDecode& note) {
  const auto entry = std::ranges::find_if(peers_, [&](const auto& each) {
    const Peer& peer = each.second;
    return peer.state == State::kUp && peer.writer.transport == transport && !token.empty() &&
           peer.lane_token == token;
  });
  if (entry != peers_.end()) listener_->OnPeer(entry->first, note);
}

void PrefillPeers::OnAck(Entry entry, const v1::KvHelloAck& ack) {
  Peer& peer = entry->second;
  const auto transport = std::find_if(
      options_.transports.begin(), options_.transports.end(),
      [&ack](const KvTransport* t) { return t->capabilities().name == ack.transport(); });
  if (transport == options_.transports.end()) {
    peer.backoff.Exhaust();
    Lose(entry,
         Error{Code::kFailedPrecondition,
               "it chose the transport \"" + ack.transport() + "\", which was not offered"},
         true);
    return;
  }
  auto watch = std::make_shared<ScopedWatch>(
      death_, death_->Watch(ack.worker_id(), ack.incarnation(), ack.lane_token()));
  const TransportCapabilities& lane = (*transport)->capabilities();
  if (lane.crosses_process && !lane.owner_copies && !watch->CanProve()) {
    // Its blocks could return only by its acknowledgement, so another transport is used.
    LogWarning("KV lane is not used: its writer's death could not be proven",
               {{"worker", ack.worker_id()}, {"address", entry->first}, {"transport", lane.name}});
    peer.without_proof.insert(lane.name);
    Lose(entry, Error{Code::kFailedPrecondition, "no proof of death over " + lane.name}, true);
    peer.backoff.Reset();
    return;
  }
  peer.state = State::kUp;
  peer.timer = kNever;
  peer.backoff.Reset();
  peer.trouble.clear();
  peer.writer.address = entry->first;
  peer.writer.worker_id = ack.worker_id();
  peer.writer.incarnation = ack.incarnation();
  peer.writer.transport = *transport;
  peer.writer.draws = ack.draws();
  peer.writer.takes_grants = ack.takes_grants();
  peer.writer.conversion = ack.conversion();
  peer.lane_token = ack.lane_token();
  peer.writer.watch = std::move(watch);
  if (ack.measured_bytes_per_s() > 0) measured_bytes_per_s_ = ack.measured_bytes_per_s();
  LogInfo("prefill worker connected", {{"worker", ack.worker_id()},
                                       {"address", entry->first},
                                       {"transport", ack.transport()},
                                       {"converted", ack.conversion()}});
  if (!ack.warning().empty())
    LogWarning("KV lane", {{"worker", ack.worker_id()}, {"warning", ack.warning()}});
  listener_->OnSessionUp(std::string(entry->first));
}

void PrefillPeers::OnLinkDown(LinkId link, const Error& why) {
  const Entry entry = Find(link);
  if (entry != peers_.end()) Lose(entry, why, false);
}

void PrefillPeers::Lose(Entry entry, const Error& why, bool close) {
  Peer& peer = entry->second;
  if (close) dialer_->Close(peer.link);
  if (peer.state == State::kUp) {
    Log(peer.draining ? LogLevel::kInfo : LogLevel::kWarning, "prefill worker lost",
        {{"address", entry->first}, {"error", why.message}});
  }
  peer.state = State::kDown;
  peer.draining = false;
  peer.timer = clock_->Now() + peer.backoff.Next();
  peer.trouble = why.message;
  peer.writer = {};
  peer.lane_token.clear();
  listener_->OnSessionLost(std::string(entry->first), why);
}

Instant PrefillPeers::NextTimer() const {
  Instant next = kNever;
  for (const auto& [address, peer] : peers_) {
    if (peer.state != State::kDown) next = std::min(next, peer.timer);
  }
  return next;
}

void PrefillPeers::OnTimer(Instant now) {
  std::vector<LinkId> late;
  for (const auto& [address, peer] : peers_) {
    if (peer.state != State::kDown && now >= peer.timer) late.push_back(peer.link);
  }
  for (const LinkId link : late) {
    const Entry entry = Find(link);
    if (entry == peers_.end()) continue;
    Lose(entry,
         Error{Code::kUnavailable,
               fmt::format("no answer within {:.0f} ms", ToMs(options_.attach_limit))},
         true);
  }
}

}  // namespace aisp
