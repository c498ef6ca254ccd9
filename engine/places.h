// PlaceShares: which tenants hold the batch slots (running sequences), and whether a tenant may
// take another. The last eighth is reserved for tenants that hold, by weight, no more than what is
// free: a new tenant need not wait for another's answer to end. Slots of lesser classes count as
// free, since those yield. State of one step; no allocation once grown.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/service_class.h"

namespace aisp {

class PlaceShares {
 public:
  // `tenants`: their number; indices start at 0. All slots are free.
  void Reset(size_t tenants, int32_t places) {
    held_.assign(tenants, {});
    all_ = {};
    free_ = places;
    kept_ = places < 4 ? 0 : std::max(1, places / 8);
  }
  void Take(int32_t tenant, ServiceClass service_class) {
    Grow(tenant);
    ++held_[static_cast<size_t>(tenant)][Index(service_class)];
    ++all_[Index(service_class)];
    --free_;
  }
  void GiveBack(int32_t tenant, ServiceClass service_class) {
    --held_[static_cast<size_t>(tenant)][Index(service_class)];
    --all_[Index(service_class)];
    ++free_;
  }
  // Whether it may take one more slot, if one is free.
  bool MayTake(int32_t tenant, double weight, ServiceClass service_class) {
    Grow(tenant);
    int32_t holds = 0, rest = free_;
    for (size_t i = 0; i < kClasses; ++i) {
      if (i <= Index(service_class)) {
        holds += held_[static_cast<size_t>(tenant)][i];
      } else {
        rest += all_[i];
      }
    }
    return rest > kept_ || holds + 1 <= weight * rest;
  }
  int32_t free_places() const { return free_; }

 private:
  static constexpr size_t kClasses = 3;
  static size_t Index(ServiceClass c) { return static_cast<size_t>(c); }
  void Grow(int32_t tenant) {
    if (held_.size() <= static_cast<size_t>(tenant)) held_.resize(static_cast<size_t>(tenant) + 1);
  }

  std::vector<std::array<int32_t, kClasses>> held_;
  std::array<int32_t, kClasses> all_{};
  int32_t free_ = 0;
  int32_t kept_ = 0;
};

}  // namespace aisp
