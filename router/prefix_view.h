// PrefixView: what the router believes one worker's prefix cache holds, from its KvEventBatches. A
// hint for placement, never a promise: the worker itself compares tokens.
//
// Events carry (incarnation, sequence). A gap or an unknown start makes the view blind until a
// snapshot arrives; what was known stays as a guess. Blindness is visible (blind(), a metric),
// because a router that is silently blind looks healthy and routes badly.
//
// Memory is bounded by max_units; beyond it new units are counted as dropped and not remembered.
// One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "common/hash.h"
#include "router/prefix_directory.h"
#include "router/prefix_table.h"
#include "worker.pb.h"

namespace aisp {

class PrefixView {
 public:
  // What it knows is in `directory` too, which must outlive it; null: nowhere else.
  PrefixView(uint64_t incarnation, size_t max_units, PrefixDirectory* directory);
  ~PrefixView();
  PrefixView(const PrefixView&) = delete;
  PrefixView& operator=(const PrefixView&) = delete;

  enum class Applied {
    kOk,
    kIgnored,        // another incarnation's, or nothing new
    kNeedsSnapshot,  // a gap, a malformed event, or still blind: ask for a snapshot
  };
  Applied Apply(const v1::KvEventBatch& batch);

  // True until the worker's content is known from its start or a snapshot.
  bool blind() const { return blind_; }
  uint64_t gaps() const { return gaps_; }
  uint64_t dropped_units() const { return dropped_; }
  size_t units() const { return units_.size(); }

  // Where the directory counts this worker; absent without one, or when it is full.
  std::optional<uint16_t> slot() const { return slot_; }

  // Leading units of the prompt that the worker holds. A worker evicts the deepest units of a chain
  // first, so presence is monotone along the chain and a binary search finds its end.
  int32_t MatchUnits(std::span<const Hash128> unit_hashes) const;

 private:
  struct Unit {
    Hash128 key;
  };
  bool ApplyEvent(const v1::KvEvent& event);
  void Clear();

  const uint64_t incarnation_;
  const size_t max_units_;
  PrefixDirectory* const directory_;
  const std::optional<uint16_t> slot_;
  PrefixTable<Unit> units_;
  uint64_t next_sequence_ = 0;
  bool blind_ = true;
  uint64_t gaps_ = 0;
  uint64_t dropped_ = 0;
};

}  // namespace aisp
