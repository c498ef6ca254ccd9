// A KvTransport whose writes happen when the test says so: late, never, with an error, or at once.
// Memory of one process, one thread. Checks that a write stays inside the peer's pool and, if the
// owner fences, inside what it allowed.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "common/check.h"
#include "kvcache/transport/kv_transport.h"

namespace aisp {

class ManualTransport;

// Pools by name.
using ManualFabric = std::map<std::string, ManualTransport*, std::less<>>;

class ManualTransport final : public KvTransport {
 public:
  ManualTransport(ManualFabric* fabric, std::string name, bool owner_copies)
      : fabric_(fabric), name_(std::move(name)) {
    capabilities_.name = "manual";
    capabilities_.owner_copies = owner_copies;
    capabilities_.crosses_process = true;
    capabilities_.crosses_host = true;
    (*fabric_)[name_] = this;
  }
  ~ManualTransport() override { fabric_->erase(name_); }

  // --- controls for the test ---
  bool hold = false;              // writes wait for Land
  bool fetching = false;          // a copy by this owner is in progress: it cannot fence yet
  size_t queue_limit = SIZE_MAX;  // Write refuses beyond
  Status fail_next_write;         // the next executed write completes with this error
  size_t spoil = 0;               // number of writes in which one bit arrives flipped
  // Notes: whether writers may leave them, those left here and not taken (token, note), and how
  // many were left.
  void set_notes(bool on) { capabilities_.notes = on; }
  std::deque<std::pair<std::string, std::string>> notes;
  size_t notes_left = 0;
  bool hide_notes = false;  // this owner does not look
  // Executes the oldest `n` held writes.
  void Land(size_t n = SIZE_MAX) {
    for (; n > 0 && !queue_.empty(); --n) LandOne();
  }
  size_t queued() const { return queue_.size(); }
  size_t writes_started() const { return writes_started_; }
  // (epoch, dst offset) of every block-sized piece written, to detect repeated writes.
  const std::multiset<std::pair<uint64_t, uint64_t>>& landed() const { return landed_; }
  const KvRegion& region() const { return region_; }
  // Number of epochs that this owner allows now.
  size_t allowed_epochs() const { return allowed_.size(); }
  size_t fenced_writes() const { return fenced_writes_; }

  // --- KvTransport ---
  const TransportCapabilities& capabilities() const override { return capabilities_; }
  Status Register(const KvRegion& region) override {
    region_ = region;
    return {};
  }
  Result<std::string> Descriptor() override { return name_; }
  struct Pool final : Reached {
    Pool(std::string_view of, const std::string& from) : name(of), writer(from) {}
    std::string token() const override { return writer + " to " + name; }
    const std::string name;
    const std::string writer;
  };
  Result<std::unique_ptr<Reached>> Reach(std::string_view descriptor, Duration) override {
    if (fabric_->find(descriptor) == fabric_->end()) return Unavailable("no pool of that name");
    return std::make_unique<Pool>(descriptor, name_);
  }
  KvPeerId Add(std::unique_ptr<Reached> reached) override {
    const KvPeerId id(++last_peer_);
    peers_[id] = static_cast<Pool&>(*reached).name;
    return id;
  }
  void Disconnect(KvPeerId peer) override {
    std::erase_if(queue_, [&](const Queued& w) {
      if (w.peer != peer) return false;
      done_.push_back({w.id, w.epoch, Unavailable("disconnected")});
      return true;
    });
    peers_.erase(peer);
  }
  Result<WriteId> Write(KvPeerId peer, std::span<const BlockCopy> copies, Epoch epoch) override {
    if (queue_.size() >= queue_limit) return ResourceExhausted("the write queue is full");
    if (peers_.count(peer) == 0) return Unavailable("unknown peer");
    const WriteId id(++last_write_);
    ++writes_started_;
    queue_.push_back({id, peer, epoch, {copies.begin(), copies.end()}});
    return id;
  }
  void CancelWrites(KvPeerId peer, Epoch epoch) override {
    if (hold) return;  // the write is in progress and cannot be cancelled
    std::erase_if(queue_, [&](const Queued& w) {
      if (w.peer != peer || w.epoch != epoch) return false;
      done_.push_back({w.id, w.epoch, Fail(Code::kCancelled, "cancelled")});
      return true;
    });
  }
  bool Leave(KvPeerId peer, std::string_view note) override {
    const auto owner = fabric_->find(peers_.at(peer));
    if (!capabilities_.notes || owner == fabric_->end()) return false;
    ++owner->second->notes_left;
    owner->second->notes.emplace_back(name_ + " to " + owner->first, note);
    return true;
  }
  bool HasNotes() override { return !notes.empty() && !hide_notes; }
  bool TakeNote(std::string* token, std::string* note) override {
    if (!HasNotes()) return false;
    std::tie(*token, *note) = notes.front();
    notes.pop_front();
    return true;
  }
  void AllowEpoch(Epoch epoch, std::span<const BlockCopy> allowed) override {
    allowed_[epoch] = {allowed.begin(), allowed.end()};
  }
  bool RevokeEpoch(Epoch epoch) override {
    allowed_.erase(epoch);
    return capabilities_.owner_copies && !fetching;
  }
  void Progress() override {
    if (!hold) Land();
  }
  size_t Poll(std::span<WriteCompletion> out) override {
    const size_t n = std::min(out.size(), done_.size());
    std::move(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(n), out.begin());
    done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(n));
    return n;
  }
  void SetWaker(std::function<void()>) override {}

 private:
  struct Queued {
    WriteId id;
    KvPeerId peer;
    Epoch epoch;
    std::vector<BlockCopy> copies;
  };

  bool Allows(Epoch epoch, const BlockCopy& copy) const {
    const auto it = allowed_.find(epoch);
    if (it == allowed_.end()) return false;
    // Every byte is in some allowed range.
    uint64_t covered = 0;
    for (const BlockCopy& range : it->second) {
      const uint64_t begin = std::max(range.dst_offset, copy.dst_offset);
      const uint64_t end = std::min(range.dst_offset + range.bytes, copy.dst_offset + copy.bytes);
      if (end > begin) covered += end - begin;
    }
    return covered == copy.bytes;
  }

  void LandOne() {
    Queued write = std::move(queue_.front());
    queue_.pop_front();
    if (!fail_next_write) {
      done_.push_back({write.id, write.epoch, std::exchange(fail_next_write, Status())});
      return;
    }
    const auto owner = fabric_->find(peers_.at(write.peer));
    if (owner == fabric_->end()) {
      done_.push_back({write.id, write.epoch, Unavailable("the pool is gone")});
      return;
    }
    ManualTransport& target = *owner->second;
    for (const BlockCopy& copy : write.copies) {
      AISP_CHECK(copy.src_offset + copy.bytes <= region_.bytes);
      AISP_CHECK(copy.dst_offset + copy.bytes <= target.region_.bytes);
      if (capabilities_.owner_copies && !target.Allows(write.epoch, copy)) {
        ++target.fenced_writes_;
        done_.push_back({write.id, write.epoch, FailedPrecondition("the epoch is not allowed")});
        return;
      }
      std::memcpy(target.region_.base + copy.dst_offset, region_.base + copy.src_offset,
                  copy.bytes);
      landed_.emplace(write.epoch.value, copy.dst_offset);
    }
    if (spoil > 0) {
      --spoil;
      const BlockCopy& last = write.copies.back();
      target.region_.base[last.dst_offset + last.bytes / 2] ^= std::byte{4};
    }
    done_.push_back({write.id, write.epoch, {}});
  }

  ManualFabric* const fabric_;
  const std::string name_;
  TransportCapabilities capabilities_;
  KvRegion region_;
  std::map<KvPeerId, std::string> peers_;
  std::deque<Queued> queue_;
  std::vector<WriteCompletion> done_;
  std::map<Epoch, std::vector<BlockCopy>> allowed_;
  std::multiset<std::pair<uint64_t, uint64_t>> landed_;
  uint64_t last_peer_ = 0;
  uint64_t last_write_ = 0;
  size_t writes_started_ = 0;
  size_t fenced_writes_ = 0;
};

}  // namespace aisp
