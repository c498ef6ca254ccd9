// PinnedRing: page-locked host memory between a pool in a GPU's memory and UCX. Each piece takes a
// room of its own; the device copies pieces between rooms and pool while others are on the wire.
//
// Memory is allocated with the first room. The transport's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "kvcache/transport/kv_transport.h"
#include "kvcache/ucx/wire.h"

namespace aisp::ucx {

class PinnedRing {
 public:
  // Twice the longest piece, so that one can be copied while another is sent.
  static constexpr uint64_t kBytes = 2 * kMostPieceBytes;
  // A writer's pieces are no longer, for the same reason.
  static constexpr uint64_t kPieceBytes = uint64_t{1} << 20;

  // `pool.device` is set and outlives this.
  explicit PinnedRing(const KvRegion& pool) : pool_(pool) {}

  // A number for the calls below; none: too much is in use. RESOURCE_EXHAUSTED: no memory.
  Result<std::optional<uint64_t>> Take(uint64_t bytes);
  void GiveBack(uint64_t room);
  std::byte* data(uint64_t room) const;

  // Starts a copy of all of the room's bytes from or to an offset of the pool.
  Status FromPool(uint64_t room, uint64_t offset);
  Status ToPool(uint64_t room, uint64_t offset);
  // Whether that copy has ended. Copies end in the order of their starts.
  Result<bool> Copied(uint64_t room) const;

 private:
  struct Room {
    uint64_t at = 0;
    uint64_t bytes = 0;
    bool free = false;
    std::unique_ptr<Event> copied;
  };

  Status Open();
  // Where `bytes` fit after the newest room; nothing: nowhere.
  std::optional<uint64_t> PlaceFor(uint64_t bytes) const;
  Room& Get(uint64_t room) { return rooms_[room - first_]; }
  const Room& Get(uint64_t room) const { return rooms_[room - first_]; }
  Status Copy(Room& room, void* target, const void* source);

  const KvRegion pool_;
  Buffer memory_;
  std::unique_ptr<Stream> stream_;
  std::deque<Room> rooms_;  // in the order of Take
  uint64_t first_ = 0;      // number of rooms_.front()
  std::vector<std::unique_ptr<Event>> spare_;
};

}  // namespace aisp::ucx
