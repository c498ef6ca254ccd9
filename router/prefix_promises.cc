#include "router/prefix_promises.h"

namespace aisp {

PrefixPromises::PrefixPromises(PrefixDirectory* directory)
    : directory_(directory), slot_(directory->TakeSlot()) {}

PrefixPromises::~PrefixPromises() {
  if (!slot_) return;
  promised_.ForEach([this](const Promised& promised) { directory_->Remove(promised.key, *slot_); });
  directory_->FreeSlot(*slot_);
}

void PrefixPromises::Add(std::span<const Hash128> prompt_units) {
  if (!slot_) return;
  for (size_t i = kStride; i <= prompt_units.size(); i += kStride) {
    const Hash128& unit = prompt_units[i - 1];
    if (++promised_.Insert(unit).first->prompts == 1) directory_->Add(unit, *slot_);
  }
}

void PrefixPromises::Remove(std::span<const Hash128> prompt_units) {
  if (!slot_) return;
  for (size_t i = kStride; i <= prompt_units.size(); i += kStride) {
    const Hash128& unit = prompt_units[i - 1];
    Promised* const promised = promised_.Find(unit);
    if (promised == nullptr || --promised->prompts > 0) continue;
    directory_->Remove(unit, *slot_);
    promised_.Erase(unit);
  }
}

void PrefixPromises::Strides(std::span<const Hash128> prompt_units, std::vector<Hash128>* out) {
  out->clear();
  for (size_t i = kStride; i <= prompt_units.size(); i += kStride)
    out->push_back(prompt_units[i - 1]);
}

}  // namespace aisp
