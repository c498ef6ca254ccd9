#include "engine/fair_order.h"

#include <algorithm>
#include <iterator>

namespace aisp {

FairOrder::FairOrder(const FairShare& shares, std::span<Sequence* const> queue,
                     std::span<Sequence* const> other)
    : alone_(shares.active() <= 1) {
  all_.reserve(queue.size() + other.size());
  std::merge(queue.begin(), queue.end(), other.begin(), other.end(), std::back_inserter(all_),
             [](const Sequence* a, const Sequence* b) { return Precedes(*a, *b); });
}

void FairOrder::FillLanes() {
  for (Lane& lane : lanes_) {
    lane.sequences.clear();
    lane.next = 0;
  }
  const int64_t standing = all_[at_]->standing();
  for (; at_ < all_.size() && all_[at_]->standing() == standing; ++at_) {
    const FairShare::Account* const account = all_[at_]->account;
    auto lane = std::find_if(lanes_.begin(), lanes_.end(),
                             [&](const Lane& l) { return l.account == account; });
    if (lane == lanes_.end()) {
      lane = lanes_.emplace(lane);
      lane->account = account;
      lane->service = account->service;
    }
    lane->sequences.push_back(all_[at_]);
  }
  heap_.clear();
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (!lanes_[i].sequences.empty()) heap_.push_back(i);
  }
}

const Sequence* FairOrder::Next() {
  if (alone_) return at_ < all_.size() ? all_[at_++] : nullptr;
  const auto later = [this](size_t a, size_t b) {
    if (lanes_[a].service != lanes_[b].service) return lanes_[a].service > lanes_[b].service;
    return lanes_[a].account->name > lanes_[b].account->name;
  };
  if (heap_.empty()) {
    if (at_ >= all_.size()) return nullptr;
    FillLanes();
    std::make_heap(heap_.begin(), heap_.end(), later);
  }
  std::pop_heap(heap_.begin(), heap_.end(), later);
  Lane& lane = lanes_[heap_.back()];
  const Sequence* const next = lane.sequences[lane.next++];
  lane.service += (next->target() - next->scheduled) / lane.account->weight;
  if (lane.next < lane.sequences.size()) {
    std::push_heap(heap_.begin(), heap_.end(), later);
  } else {
    heap_.pop_back();
  }
  return next;
}

}  // namespace aisp
