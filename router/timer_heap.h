// A heap of timers, one per key, with removal, so that it holds only live requests. O(log n) per
// operation. Not thread-safe; the owner's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/clock.h"

namespace aisp {

class TimerHeap {
 public:
  // Sets or moves the key's timer.
  void Set(uint64_t key, Instant when) {
    auto [it, added] = index_.try_emplace(key, heap_.size());
    if (added) {
      heap_.push_back({when, key});
      Up(heap_.size() - 1);
      return;
    }
    const size_t i = it->second;
    heap_[i].when = when;
    Up(i);
    Down(index_[key]);
  }

  void Erase(uint64_t key) {
    auto it = index_.find(key);
    if (it == index_.end()) return;
    const size_t i = it->second;
    index_.erase(it);
    const Entry last = heap_.back();
    heap_.pop_back();
    if (i == heap_.size()) return;
    heap_[i] = last;
    index_[last.key] = i;
    Up(i);
    Down(index_[last.key]);
  }

  bool empty() const { return heap_.empty(); }
  size_t size() const { return heap_.size(); }
  // kNever when empty.
  Instant Next() const { return heap_.empty() ? kNever : heap_.front().when; }
  // Removes one due key; false if none is due. Equal times come in the order of their keys.
  bool PopDue(Instant now, uint64_t* key) {
    if (heap_.empty() || heap_.front().when > now) return false;
    *key = heap_.front().key;
    Erase(*key);
    return true;
  }

 private:
  struct Entry {
    Instant when;
    uint64_t key;
    bool operator<(const Entry& o) const { return when != o.when ? when < o.when : key < o.key; }
  };

  void Swap(size_t a, size_t b) {
    std::swap(heap_[a], heap_[b]);
    index_[heap_[a].key] = a;
    index_[heap_[b].key] = b;
  }
  void Up(size_t i) {
    while (i > 0 && heap_[i] < heap_[(i - 1) / 2]) {
      Swap(i, (i - 1) / 2);
      i = (i - 1) / 2;
    }
  }
  void Down(size_t i) {
    for (;;) {
      size_t least = i;
      for (size_t child : {2 * i + 1, 2 * i + 2}) {
        if (child < heap_.size() && heap_[child] < heap_[least]) least = child;
      }
      if (least == i) return;
      Swap(i, least);
      i = least;
    }
  }

  std::vector<Entry> heap_;
  std::unordered_map<uint64_t, size_t> index_;
};

}  // namespace aisp
