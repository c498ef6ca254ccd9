// PrefixView: what the router believes one worker's prefix cache holds, from its KvEventBatches. A
// hint for placement, never a promise: the worker itself compares tokens.
//
// Events carry (incarnation, sequence). A gap or an unknown start makes the view blind until a
// snapshot arrives; earlier content stays as a guess. Blindness is visible (blind(), a metric),
// because a blind router looks healthy but routes badly.
//
// Memory is bounded by max_units; further units are counted as dropped and not stored. One thread.
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
  // Content is also kept in `directory`, which must outlive this; null: no directory.
  PrefixView(uint64_t incarnation, size_t max_units, PrefixDirectory* directory);
  ~PrefixView();
  PrefixView(const PrefixView&) = delete;
  PrefixView& operator=(const PrefixView&) = delete;

  enum class Applied {
    kOk,
    kIgnored,        // of another incarnation, or nothing new
    kNeedsSnapshot,  // a gap, a malformed event, or still blind: ask for a snapshot
  };
  Applied Apply(const v1::KvEventBatch& batch);

  // True until the worker's content is known from its start or a snapshot.
  bool blind() const { return blind_; }
  uint64_t gaps() const { return gaps_; }
  uint64_t dropped_units() const { return dropped_; }
  size_t units() const { return units_.size(); }

  // This worker's slot in the directory; absent without a directory, or if that is full.
  std::optional<uint16_t> slot() const { return slot_; }

  // Leading prompt units that the worker holds. A worker evicts the deepest units of a chain first,
  // so presence is monotone along the chain and bisection finds its end.
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
