// FairOrder: the order in which waiting sequences would start. Smaller class and greater rank
// first; then the tenant with the least service, counting its sequences already taken; within a
// tenant by precedence. Internal to engine/; valid while the queues are unchanged.
#pragma once

#include <span>
#include <vector>

#include "engine/sequence_table.h"

namespace aisp {

class FairOrder {
 public:
  // Both spans by precedence (SequenceTable's order). `shares` owns the sequences' accounts.
  FairOrder(const FairShare& shares, std::span<Sequence* const> queue,
            std::span<Sequence* const> other = {});
  // Null after the last.
  const Sequence* Next();

 private:
  struct Lane {
    const FairShare::Account* account = nullptr;
    double service = 0;
    std::vector<const Sequence*> sequences;
    size_t next = 0;
  };
  // Sorts the next sequences of equal class and rank into one lane per tenant.
  void FillLanes();

  std::vector<const Sequence*> all_;
  size_t at_ = 0;  // into all_: the first one that is in no lane yet
  const bool alone_;
  std::vector<Lane> lanes_;
  std::vector<size_t> heap_;  // lanes with sequences; the next one is at the front
};

}  // namespace aisp
