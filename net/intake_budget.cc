#include "net/intake_budget.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace aisp {

IntakeBudget::Share::Grown IntakeBudget::Share::GrowTo(size_t bytes) {
  if (budget_ == nullptr || bytes <= bytes_) return Grown::kYes;
  const size_t more = bytes - bytes_;
  const Limits& limits = budget_->limits_;
  if (more > limits.total_bytes - std::min(budget_->total_, limits.total_bytes))
    return Grown::kTotalFull;
  const size_t held = budget_->of(party_);
  if (more > limits.bytes_per_party - std::min(held, limits.bytes_per_party))
    return Grown::kPartyFull;
  budget_->total_ += more;
  budget_->Add(party_, more);
  bytes_ = bytes;
  return Grown::kYes;
}

void IntakeBudget::Share::Whole() {
  if (budget_ == nullptr || std::exchange(whole_, true)) return;
  budget_->Remove(party_, bytes_);
}

void IntakeBudget::Share::Clear() {
  if (budget_ == nullptr) return;
  Whole();
  budget_->total_ -= std::exchange(bytes_, 0);
  budget_ = nullptr;
}

size_t IntakeBudget::of(const std::string& party) const {
  const auto it = parties_.find(party);
  return it == parties_.end() ? 0 : it->second;
}

void IntakeBudget::Add(const std::string& party, size_t bytes) {
  if (bytes > 0) parties_[party] += bytes;
}

void IntakeBudget::Remove(const std::string& party, size_t bytes) {
  const auto it = parties_.find(party);
  if (it == parties_.end()) return;
  it->second -= std::min(it->second, bytes);
  if (it->second == 0) parties_.erase(it);
}

std::string AddressParty(const unsigned char* v6_bytes) {
  constexpr std::array<unsigned char, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  char text[INET6_ADDRSTRLEN] = {};
  if (std::memcmp(v6_bytes, kMapped.data(), kMapped.size()) == 0) {
    inet_ntop(AF_INET, v6_bytes + kMapped.size(), text, sizeof(text));
    return text;
  }
  unsigned char network[16] = {};
  std::memcpy(network, v6_bytes, 8);
  inet_ntop(AF_INET6, network, text, sizeof(text));
  return std::string(text) + "/64";
}

}  // namespace aisp
