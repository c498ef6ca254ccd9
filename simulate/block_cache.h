// BlockCache: which blocks of a simulated worker's pool hold what. Blocks of running sequences are
// private until their prompt is computed, then shared under their prefix hash; shared ones that
// nobody uses stay until somebody needs room, least recently used first. One thread.
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

  // Leading blocks of a prompt that are there, each named by the hash of its last unit.
  size_t Match(std::span<const Hash128> prompt) const;
  // They are in use, whoever else uses them. All must be there.
  void Use(std::span<const Hash128> shared);
  void Release(std::span<const Hash128> shared);

  // `count` private blocks, for which unused shared ones go; false, and nothing changed, when there
  // are not so many.
  bool Take(int64_t count);
  void Return(int64_t count) { free_ += count; }
  // A private block becomes a shared one in use; `units` are the prefix hashes of its tokens, of
  // which the last names it. When its content is there already the private one is free again.
  // Returns whether it is new.
  bool Publish(std::span<const Hash128> units);

  // Free, or shared and unused.
  int64_t available() const { return free_ + static_cast<int64_t>(unused_.size()); }
  int64_t total() const { return total_; }
  // The units that went since the last call.
  std::vector<Hash128> TakeEvicted() { return std::exchange(evicted_, {}); }
  // All that are shared.
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
