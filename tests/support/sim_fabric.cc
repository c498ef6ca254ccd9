#include "tests/support/sim_fabric.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <tuple>
#include <utility>

#include "common/check.h"

namespace aisp {

class SimFabric::Transport final : public KvTransport {
 public:
  Transport(SimFabric* fabric, std::string process)
      : fabric_(fabric), process_(std::move(process)) {
    capabilities_.name = fabric->options_.fetches        ? "sim-ucx"
                         : fabric->options_.owner_copies ? "sim-tcp"
                                                         : "sim-shm";
    capabilities_.crosses_process = true;
    capabilities_.crosses_host = fabric->options_.owner_copies;
    capabilities_.owner_copies = fabric->options_.owner_copies;
    capabilities_.notes = !fabric->options_.owner_copies;
    capabilities_.rank = fabric->options_.rank;
  }
  ~Transport() override {
    auto it = fabric_->transports_.find(process_);
    if (it != fabric_->transports_.end() && it->second == this) fabric_->Kill(process_);
  }

  const TransportCapabilities& capabilities() const override { return capabilities_; }
  Status Register(const KvRegion& region) override {
    region_ = region;
    return {};
  }
  Result<std::string> Descriptor() override { return process_; }

  struct Pool final : Reached {
    Pool(std::string of, std::string name) : owner(std::move(of)), its_token(std::move(name)) {}
    std::string token() const override { return its_token; }
    const std::string owner;
    const std::string its_token;  // "" where nothing is mapped
  };
  Result<std::unique_ptr<Reached>> Reach(std::string_view descriptor, Duration) override {
    const std::string owner(descriptor);
    if (fabric_->Find(owner) == nullptr) return Unavailable("the pool of " + owner + " is gone");
    if (fabric_->world_->Chance(fabric_->connect_fail_chance_))
      return Unavailable("the pool cannot be mapped");
    const std::string token = process_ + " to " + owner + ' ' + std::to_string(++fabric_->reached_);
    return std::make_unique<Pool>(owner, capabilities().owner_copies ? "" : token);
  }
  KvPeerId Add(std::unique_ptr<Reached> reached) override {
    const std::string& owner = static_cast<Pool&>(*reached).owner;
    auto lane = std::make_shared<Lane>();
    lane->token = static_cast<Pool&>(*reached).its_token;
    lane->writer = process_;
    lane->owner = owner;
    fabric_->lanes_.push_back(lane);
    ++fabric_->connections_;
    const KvPeerId id(next_peer_++);
    peers_[id] = lane;
    return id;
  }
  void Disconnect(KvPeerId peer) override {
    auto it = peers_.find(peer);
    if (it == peers_.end()) return;
    const LanePtr lane = it->second;
    peers_.erase(it);
    lane->closed = true;
    if (lane->arrived) fabric_->EndFetch(lane);
    for (PendingWrite& w : lane->queue) Complete(w, Unavailable("disconnected"));
    lane->queue.clear();
    std::erase(fabric_->lanes_, lane);
  }

  Result<WriteId> Write(KvPeerId peer, std::span<const BlockCopy> copies, Epoch epoch) override {
    auto it = peers_.find(peer);
    if (it == peers_.end()) return Unavailable("no such peer");
    Lane& lane = *it->second;
    if (lane.fallen) {
      lane.told = true;
      return Unavailable("the lane fell");
    }
    if (lane.queue.size() >= fabric_->options_.max_queued_writes)
      return ResourceExhausted("the queue is full");
    PendingWrite write;
    write.id = WriteId(next_write_++);
    write.epoch = epoch;
    const Transport* owner = fabric_->Find(lane.owner);
    for (const BlockCopy& c : copies) {
      if (c.src_offset + c.bytes > region_.bytes ||
          (owner != nullptr && c.dst_offset + c.bytes > owner->region_.bytes)) {
        return Fail(Code::kOutOfRange, "a copy outside of a pool");
      }
      const uint64_t half = c.bytes / 16 * 8;
      write.pieces.push_back({c.src_offset, c.dst_offset, half});
      write.pieces.push_back({c.src_offset + half, c.dst_offset + half, c.bytes - half});
    }
    const WriteId id = write.id;
    lane.queue.push_back(std::move(write));
    fabric_->Kick(it->second);
    return id;
  }
  void CancelWrites(KvPeerId peer, Epoch epoch) override {
    auto it = peers_.find(peer);
    if (it == peers_.end()) return;
    // Writes that were not started end in order, so that completions stay in order.
    for (PendingWrite& w : it->second->queue) {
      if (w.epoch == epoch && !w.started) w.cancelled = true;
    }
    fabric_->Kick(it->second);
  }

  // The owner looks at once, later, or only when something else wakes it.
  bool Leave(KvPeerId peer, std::string_view note) override {
    auto it = peers_.find(peer);
    if (it == peers_.end() || !capabilities_.notes || fabric_->world_->Chance(0.1)) return false;
    Transport* owner = fabric_->Find(it->second->owner);
    if (owner == nullptr) return true;
    owner->notes_.emplace_back(it->second->token, note);
    ++fabric_->notes_;
    if (owner->wake_ && fabric_->world_->Chance(0.7)) owner->wake_();
    return true;
  }
  bool HasNotes() override { return !notes_.empty(); }
  bool TakeNote(std::string* token, std::string* note) override {
    if (notes_.empty()) return false;
    std::tie(*token, *note) = notes_.front();
    notes_.pop_front();
    return true;
  }

  void AllowEpoch(Epoch epoch, std::span<const BlockCopy> allowed) override {
    allowed_[epoch].assign(allowed.begin(), allowed.end());
  }
  bool RevokeEpoch(Epoch epoch) override {
    allowed_.erase(epoch);
    revoked_.insert(epoch);
    return capabilities_.owner_copies && !fetching_.contains(epoch);
  }

  void Progress() override {}
  size_t Poll(std::span<WriteCompletion> out) override {
    size_t n = 0;
    while (n < out.size() && !completions_.empty()) {
      out[n++] = std::move(completions_.front());
      completions_.pop_front();
    }
    return n;
  }
  void SetWaker(std::function<void()> wake) override { wake_ = std::move(wake); }

  void Complete(const PendingWrite& write, Status status) {
    completions_.push_back({write.id, write.epoch, std::move(status)});
    if (wake_) wake_();
  }
  bool Allowed(Epoch epoch, const BlockCopy& piece) const {
    auto it = allowed_.find(epoch);
    if (it == allowed_.end()) return false;
    return std::any_of(it->second.begin(), it->second.end(), [&](const BlockCopy& a) {
      return piece.dst_offset >= a.dst_offset &&
             piece.dst_offset + piece.bytes <= a.dst_offset + a.bytes;
    });
  }

  bool paused_ = false;
  KvRegion region_;
  std::map<Epoch, std::vector<BlockCopy>> allowed_;
  std::set<Epoch> revoked_;
  std::map<Epoch, int> fetching_;                          // pieces in flight into this pool
  std::deque<std::pair<std::string, std::string>> notes_;  // token, note

 private:
  SimFabric* const fabric_;
  const std::string process_;
  TransportCapabilities capabilities_;
  std::map<KvPeerId, LanePtr> peers_;
  std::deque<WriteCompletion> completions_;
  std::function<void()> wake_;
  uint64_t next_peer_ = 1;
  uint64_t next_write_ = 1;
};

std::unique_ptr<KvTransport> SimFabric::MakeTransport(const std::string& process) {
  auto transport = std::make_unique<Transport>(this, process);
  AISP_CHECK(transports_.emplace(process, transport.get()).second);
  return transport;
}

SimFabric::Transport* SimFabric::Find(const std::string& process) {
  auto it = transports_.find(process);
  return it == transports_.end() ? nullptr : it->second;
}

void SimFabric::Pause(const std::string& process) {
  if (Transport* t = Find(process)) t->paused_ = true;
}

void SimFabric::Resume(const std::string& process) {
  Transport* t = Find(process);
  if (t == nullptr) return;
  t->paused_ = false;
  const std::vector<LanePtr> lanes = lanes_;
  for (const LanePtr& lane : lanes) {
    if (lane->closed || (lane->writer != process && lane->owner != process)) continue;
    if (lane->arrived) Arrive(lane);
    Kick(lane);
  }
}

void SimFabric::Kill(const std::string& process) {
  transports_.erase(process);
  std::erase_if(lanes_, [&](const LanePtr& lane) {
    if (lane->writer != process) return false;
    // With owner_copies one piece may already be on the wire; the event that carries it keeps the
    // lane alive.
    lane->closed = !options_.owner_copies || !lane->moving || world_->Chance(0.5);
    if (lane->arrived) EndFetch(lane);
    return true;
  });
  const std::vector<LanePtr> lanes = lanes_;
  for (const LanePtr& lane : lanes) {
    if (lane->arrived) Arrive(lane);
  }
}

void SimFabric::Kick(const LanePtr& lane) {
  Transport* writer = Find(lane->writer);
  if (lane->moving || lane->closed || writer == nullptr || writer->paused_) return;
  while (!lane->queue.empty() && lane->queue.front().cancelled) {
    writer->Complete(lane->queue.front(), Fail(Code::kCancelled, "cancelled before it started"));
    lane->queue.pop_front();
  }
  if (lane->queue.empty()) return;
  PendingWrite& write = lane->queue.front();
  write.started = true;
  if (write.pieces.empty()) return CompleteFront(lane);
  lane->moving = true;
  if (options_.fetches) {
    BeginFetch(lane);
  } else if (options_.owner_copies) {
    const std::byte* source = writer->region_.base + write.pieces.front().src_offset;
    lane->wire.assign(source, source + write.pieces.front().bytes);
  }
  const double ms = static_cast<double>(write.pieces.front().bytes) / options_.bytes_per_ms;
  world_->After(FromMs(ms * world_->Uniform(0.7, 1.6)), [this, lane] { Arrive(lane); });
}

void SimFabric::BeginFetch(const LanePtr& lane) {
  Transport* owner = Find(lane->owner);
  const PendingWrite& write = lane->queue.front();
  // A stopped owner handles the piece when it resumes, as if it had just arrived.
  if (owner == nullptr || owner->paused_ || !owner->Allowed(write.epoch, write.pieces.front()))
    return;
  lane->fetching = write.epoch;
  lane->piece = write.pieces.front();
  ++owner->fetching_[write.epoch];
}

bool SimFabric::EndFetch(const LanePtr& lane) {
  const Epoch epoch = std::exchange(lane->fetching, Epoch());
  if (epoch == Epoch()) return false;
  Transport* owner = Find(lane->owner);
  const Transport* writer = Find(lane->writer);
  if (owner == nullptr) return true;
  if (--owner->fetching_[epoch] == 0) owner->fetching_.erase(epoch);
  // Nothing can be read from a dead writer. One that closed the connection may have other bytes
  // there by now.
  if (writer == nullptr) return true;
  if (owner->revoked_.count(epoch) != 0) ++late_pieces_;
  Copy(*lane, owner->region_.base + lane->piece.dst_offset,
       writer->region_.base + lane->piece.src_offset, lane->piece.bytes);
  return true;
}

void SimFabric::Arrive(const LanePtr& lane) {
  if (lane->closed) {
    EndFetch(lane);
    return;
  }
  const Transport* stopper = Find(options_.owner_copies ? lane->owner : lane->writer);
  lane->arrived = stopper != nullptr && stopper->paused_;
  if (!lane->arrived) Land(lane);
}

void SimFabric::Land(const LanePtr& lane) {
  lane->moving = false;
  const bool fetched = EndFetch(lane);
  if (lane->queue.empty()) return;
  PendingWrite& write = lane->queue.front();
  Transport* writer = Find(lane->writer);
  Transport* owner = Find(lane->owner);
  const BlockCopy piece = write.pieces.front();
  write.pieces.pop_front();
  if (owner == nullptr) {
    if (options_.owner_copies) write.status = Unavailable("the peer is gone");
  } else if (options_.fetches && writer == nullptr) {
    return;  // its memory is gone
  } else if (options_.owner_copies && !fetched && !owner->Allowed(write.epoch, piece)) {
    ++fenced_pieces_;
    write.status = Fail(Code::kPermissionDenied, "the epoch is not allowed");
  } else if (options_.owner_copies && !options_.fetches) {
    Copy(*lane, owner->region_.base + piece.dst_offset, lane->wire.data(), piece.bytes);
  } else if (!fetched) {
    if (owner->revoked_.count(write.epoch) != 0) ++late_pieces_;
    Copy(*lane, owner->region_.base + piece.dst_offset, writer->region_.base + piece.src_offset,
         piece.bytes);
  }
  if (writer == nullptr) return;
  if (!write.status) write.pieces.clear();
  if (write.pieces.empty()) return CompleteFront(lane);
  Kick(lane);
}

void SimFabric::Copy(Lane& lane, std::byte* to, const std::byte* from, uint64_t bytes) {
  std::memcpy(to, from, bytes);
  if (bytes == 0 || !std::exchange(lane.spoil, false)) return;
  to[world_->random.Below(bytes)] ^= static_cast<std::byte>(1u << world_->random.Below(8));
}

void SimFabric::CompleteFront(const LanePtr& lane) {
  Transport* writer = Find(lane->writer);
  const PendingWrite write = std::move(lane->queue.front());
  lane->queue.pop_front();
  writer->Complete(write, write.status);
  Kick(lane);
}

SimFabric::LanePtr SimFabric::RandomBusyLane() {
  std::vector<LanePtr> busy;
  for (const LanePtr& lane : lanes_) {
    if (!lane->queue.empty() && !lane->closed) busy.push_back(lane);
  }
  return busy.empty() ? nullptr : busy[world_->random.Below(busy.size())];
}

bool SimFabric::FailOneWrite() {
  const LanePtr lane = RandomBusyLane();
  if (lane == nullptr) return false;
  PendingWrite& write = lane->queue.front();
  write.status = DataLoss("the wire ate it");
  // The piece in flight still lands; the rest does not.
  if (write.pieces.size() > 1) write.pieces.resize(1);
  return true;
}

bool SimFabric::FallOneLane() {
  const LanePtr lane = RandomBusyLane();
  if (lane == nullptr) return false;
  lane->fallen = true;
  Transport* writer = Find(lane->writer);
  // Complete may call back into the lane.
  std::deque<PendingWrite> behind;
  while (lane->queue.size() > 1) {
    behind.push_front(std::move(lane->queue.back()));
    lane->queue.pop_back();
  }
  PendingWrite& write = lane->queue.front();
  write.status = Unavailable("the lane fell");
  if (write.pieces.size() > 1) write.pieces.resize(1);
  if (writer == nullptr) return true;
  for (const PendingWrite& w : behind) writer->Complete(w, Unavailable("the lane fell"));
  return true;
}

bool SimFabric::AnyFallen() const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const LanePtr& lane) { return lane->told && !lane->closed; });
}

bool SimFabric::SpoilOneWrite() {
  const LanePtr lane = RandomBusyLane();
  if (lane == nullptr) return false;
  lane->spoil = true;
  return true;
}

}  // namespace aisp
