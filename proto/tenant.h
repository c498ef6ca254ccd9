// A tenant's share (common/fair_share.h) on the wire.
#pragma once

#include <algorithm>

#include "common.pb.h"
#include "common/fair_share.h"

namespace aisp {

inline TenantShare TenantFromWire(const v1::Tenant& wire) {
  return {.name = wire.name(), .weight = std::max(1u, wire.weight()), .rank = wire.rank()};
}

inline void TenantToWire(const TenantShare& tenant, v1::Tenant* wire) {
  wire->set_name(tenant.name);
  wire->set_weight(tenant.weight);
  wire->set_rank(tenant.rank);
}

}  // namespace aisp
