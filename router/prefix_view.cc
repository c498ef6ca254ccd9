#include "router/prefix_view.h"

#include "proto/hash_wire.h"

namespace aisp {

PrefixView::PrefixView(uint64_t incarnation, size_t max_units, PrefixDirectory* directory)
    : incarnation_(incarnation),
      max_units_(max_units),
      directory_(directory),
      slot_(directory != nullptr ? directory->TakeSlot() : std::nullopt) {}

PrefixView::~PrefixView() {
  Clear();
  if (slot_) directory_->FreeSlot(*slot_);
}

void PrefixView::Clear() {
  if (slot_) {
    units_.ForEach([this](const Unit& unit) { directory_->Remove(unit.key, *slot_); });
  }
  units_.Clear();
}

PrefixView::Applied PrefixView::Apply(const v1::KvEventBatch& batch) {
  if (batch.incarnation() != incarnation_) return Applied::kIgnored;
  if (batch.snapshot()) {
    // first_sequence of a snapshot is the number of the next event.
    Clear();
    for (const v1::KvEvent& event : batch.events()) {
      if (!ApplyEvent(event)) {
        blind_ = true;
        return Applied::kNeedsSnapshot;
      }
    }
    next_sequence_ = batch.first_sequence();
    blind_ = false;
    return Applied::kOk;
  }
  if (batch.first_sequence() > next_sequence_) {
    if (!blind_) ++gaps_;
    blind_ = true;
    return Applied::kNeedsSnapshot;
  }
  const uint64_t known = next_sequence_ - batch.first_sequence();
  if (known >= static_cast<uint64_t>(batch.events_size())) return Applied::kIgnored;
  for (int i = static_cast<int>(known); i < batch.events_size(); ++i) {
    if (!ApplyEvent(batch.events(i))) {
      ++gaps_;
      blind_ = true;
      return Applied::kNeedsSnapshot;
    }
  }
  // A worker seen from its very first event needs no snapshot.
  if (batch.first_sequence() == 0 && known == 0) blind_ = false;
  next_sequence_ = batch.first_sequence() + static_cast<uint64_t>(batch.events_size());
  return blind_ ? Applied::kNeedsSnapshot : Applied::kOk;
}

bool PrefixView::ApplyEvent(const v1::KvEvent& event) {
  if (event.kind() == v1::KvEvent::CLEARED) {
    Clear();
    return true;
  }
  for (const std::string& bytes : event.unit_hashes()) {
    const std::optional<Hash128> parsed = HashFromWire(bytes);
    if (!parsed) return false;
    const Hash128& hash = *parsed;
    if (event.kind() == v1::KvEvent::REMOVED) {
      if (units_.Erase(hash) && slot_) directory_->Remove(hash, *slot_);
    } else if (units_.size() < max_units_) {
      if (units_.Insert(hash).second && slot_) directory_->Add(hash, *slot_);
    } else if (units_.Find(hash) == nullptr) {
      ++dropped_;
    }
  }
  return true;
}

int32_t PrefixView::MatchUnits(std::span<const Hash128> unit_hashes) const {
  size_t held = 0;
  size_t limit = unit_hashes.size();
  while (held < limit) {
    const size_t middle = held + (limit - held) / 2;
    if (units_.Find(unit_hashes[middle]) != nullptr) {
      held = middle + 1;
    } else {
      limit = middle;
    }
  }
  return static_cast<int32_t>(held);
}

}  // namespace aisp
