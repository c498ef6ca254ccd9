// FairOrder: the order in which sequences that wait would start. Smaller class and greater rank
// first; then always one of the tenant to which least was given, those counted that stand before
// it; of one tenant's by precedence. Internal to engine/; valid as long as the queues do not
// change.
#pragma once

#include <span>
#include <vector>

#include "engine/sequence_table.h"

namespace aisp {

class FairOrder {
 public:
  // Both by precedence (SequenceTable's order). `shares`: whose accounts the sequences have.
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
  // Sorts what follows of one class and rank into lanes.
  void FillLanes();

  std::vector<const Sequence*> all_;
  size_t at_ = 0;  // of all_: what is in no lane yet
  const bool alone_;
  std::vector<Lane> lanes_;
  std::vector<size_t> heap_;  // lanes that have sequences; the next one is at the front
};

}  // namespace aisp
