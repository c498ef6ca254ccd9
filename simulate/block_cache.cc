#include "simulate/block_cache.h"

#include "common/check.h"

namespace aisp::simulate {

size_t BlockCache::Match(std::span<const Hash128> prompt) const {
  size_t held = 0;
  while (held < prompt.size() && shared_.count(prompt[held]) != 0) ++held;
  return held;
}

void BlockCache::Use(std::span<const Hash128> shared) {
  for (const Hash128& hash : shared) {
    Entry& entry = shared_.at(hash);
    if (entry.users++ == 0) unused_.erase(entry.at);
  }
}

void BlockCache::Release(std::span<const Hash128> shared) {
  // The deepest block of a chain is evicted first.
  for (size_t i = shared.size(); i-- > 0;) {
    Entry& entry = shared_.at(shared[i]);
    AISP_CHECK(entry.users > 0);
    if (--entry.users == 0) entry.at = unused_.insert(unused_.end(), shared[i]);
  }
}

bool BlockCache::Take(int64_t count) {
  if (count > available()) return false;
  while (free_ < count) {
    const auto oldest = shared_.find(unused_.front());
    evicted_.insert(evicted_.end(), oldest->second.units.begin(), oldest->second.units.end());
    shared_.erase(oldest);
    unused_.pop_front();
    ++free_;
  }
  free_ -= count;
  return true;
}

bool BlockCache::Publish(std::span<const Hash128> units) {
  const auto [it, fresh] = shared_.try_emplace(units.back());
  Entry& entry = it->second;
  if (fresh) {
    entry.units.assign(units.begin(), units.end());
  } else {
    ++free_;
    if (entry.users == 0) unused_.erase(entry.at);
  }
  ++entry.users;
  return fresh;
}

std::vector<Hash128> BlockCache::Units() const {
  std::vector<Hash128> all;
  for (const auto& [name, entry] : shared_)
    all.insert(all.end(), entry.units.begin(), entry.units.end());
  return all;
}

}  // namespace aisp::simulate
