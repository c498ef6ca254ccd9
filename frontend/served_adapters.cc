#include "frontend/served_adapters.h"

#include <utility>

namespace aisp {

void ServedAdapters::Begin(v1::AdapterSet start) {
  start_ = std::move(start);
  Set(start_);
}

void ServedAdapters::Set(const v1::AdapterSet& set) {
  auto next = std::make_shared<const v1::AdapterSet>(set);
  std::lock_guard lock(mutex_);
  now_ = std::move(next);
}

std::shared_ptr<const v1::AdapterSet> ServedAdapters::Now() const {
  std::lock_guard lock(mutex_);
  return now_;
}

std::string ServedAdapters::DigestOf(const std::string& name) const {
  const auto now = Now();
  for (const v1::Adapter& each : now->adapters()) {
    if (each.name() == name) return each.digest();
  }
  return "";
}

std::vector<std::string> ServedAdapters::Names() const {
  const auto now = Now();
  std::vector<std::string> names;
  for (const v1::Adapter& each : now->adapters()) names.push_back(each.name());
  return names;
}

}  // namespace aisp
