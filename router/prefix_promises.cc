#include "router/prefix_promises.h"

namespace aisp {

PrefixPromises::PrefixPromises(PrefixDirectory* directory)
    : directory_(directory), slot_(directory->TakeSlot()) {}

PrefixPromises::~PrefixPromises() {
  if (!slot_) return;
  for (const auto& [unit, count] : promised_) directory_->Remove(unit, *slot_);
  directory_->FreeSlot(*slot_);
}

void PrefixPromises::Add(std::span<const Hash128> prompt_units) {
  if (!slot_) return;
  for (size_t i = kStride; i <= prompt_units.size(); i += kStride) {
    const Hash128& unit = prompt_units[i - 1];
    if (++promised_[unit] == 1) directory_->Add(unit, *slot_);
  }
}

void PrefixPromises::Remove(std::span<const Hash128> prompt_units) {
  if (!slot_) return;
  for (size_t i = kStride; i <= prompt_units.size(); i += kStride) {
    const auto it = promised_.find(prompt_units[i - 1]);
    if (it == promised_.end() || --it->second > 0) continue;
    directory_->Remove(it->first, *slot_);
    promised_.erase(it);
  }
}

std::vector<Hash128> PrefixPromises::Strides(std::span<const Hash128> prompt_units) {
  std::vector<Hash128> out;
  out.reserve(prompt_units.size() / kStride);
  for (size_t i = kStride; i <= prompt_units.size(); i += kStride)
    out.push_back(prompt_units[i - 1]);
  return out;
}

}  // namespace aisp
