// BlockCache: the contents of a simulated worker's block pool. Blocks of running sequences are
// private until their prompt is computed, then shared under their prefix hash. Unused shared blocks
// stay until space is needed, least recently used first. One thread.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/hash.h"

namespace aisp::simulate {

class BlockCache {
 public:
  explicit BlockCache(int64_t blocks) : free_(blocks), total_(blocks) {}

  // Number of leading prompt blocks that are cached; each is named by the hash of its last unit.
  size_t Match(std::span<const Hash128> prompt) const;
  // Marks the blocks as in use once more. All must be cached.
  void Use(std::span<const Hash128> shared);
  void Release(std::span<const Hash128> shared);

  // Takes `count` private blocks and evicts unused shared ones for them. False, without any change,
  // if there are too few.
  bool Take(int64_t count);
  void Return(int64_t count) { free_ += count; }
  // Turns a private block into a shared one in use. `units`: prefix hashes of its tokens; the last
  // one names it. If its content is cached already, the private block is freed. Returns whether it
  // is new.
  bool Publish(std::span<const Hash128> units);

  // Free blocks, and unused shared ones.
  int64_t available() const { return free_ + static_cast<int64_t>(unused_.size()); }
  int64_t total() const { return total_; }
  // The units evicted since the last call.
  std::vector<Hash128> TakeEvicted() { return std::exchange(evicted_, {}); }
  // The units of all shared blocks.
  std::vector<Hash128> Units() const;

 private:
  struct Entry {
    std::vector<Hash128> units;
    int32_t users = 0;
    std::list<Hash128>::iterator at;  // in unused_ while users is 0
  };
  int64_t free_;
  const int64_t total_;
  std::unordered_map<Hash128, Entry> shared_;
  std::list<Hash128> unused_;  // least recently used first
  std::vector<Hash128> evicted_;
};

}  // namespace aisp::simulate
