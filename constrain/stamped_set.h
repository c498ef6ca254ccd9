// StampedSet: a hash table that is cleared in constant time, for frequent reuse: an entry is valid
// if it has the current generation's number. One thread at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace aisp {

// `Value` has ==, and HashOf(value).
template <typename Value>
class StampedSet {
 public:
  StampedSet() : entries_(kLeast) {}

  void Clear() {
    count_ = 0;
    if (++stamp_ != 0) return;
    std::fill(entries_.begin(), entries_.end(), Entry());
    stamp_ = 1;
  }
  // False when it was present.
  bool Insert(const Value& value) {
    if (2 * (count_ + 1) > entries_.size()) Grow();
    Entry& entry = Slot(value);
    if (entry.stamp == stamp_) return false;
    entry = {value, stamp_};
    ++count_;
    return true;
  }

 private:
  static constexpr size_t kLeast = 256;
  struct Entry {
    Value value = {};
    uint32_t stamp = 0;
  };

  Entry& Slot(const Value& value) {
    size_t at = HashOf(value) & (entries_.size() - 1);
    while (entries_[at].stamp == stamp_ && !(entries_[at].value == value))
      at = (at + 1) & (entries_.size() - 1);
    return entries_[at];
  }
  void Grow() {
    std::vector<Entry> before(2 * entries_.size());
    before.swap(entries_);
    for (const Entry& entry : before) {
      if (entry.stamp == stamp_) Slot(entry.value) = entry;
    }
  }

  std::vector<Entry> entries_;  // a power of two
  uint32_t stamp_ = 1;
  size_t count_ = 0;
};

inline uint64_t MixHash(uint64_t a, uint64_t b) {
  a = (a ^ (a >> 29) ^ b) * 0x9E3779B97F4A7C15u;
  return a ^ (a >> 32);
}

}  // namespace aisp
