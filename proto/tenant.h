// A tenant's share (common/fair_share.h) to and from the wire.
#pragma once

#include <algorithm>
#include <chrono>

#include "common.pb.h"
#include "common/fair_share.h"
#include "proto/wire_time.h"

namespace aisp {

// An unknown class, from a newer peer, counts as the last one.
inline ServiceClass ClassFromWire(v1::ServiceClass wire) {
  if (wire == v1::CLASS_INTERACTIVE) return ServiceClass::kInteractive;
  return wire == v1::CLASS_BATCH ? ServiceClass::kBatch : ServiceClass::kBestEffort;
}

inline TenantShare TenantFromWire(const v1::Tenant& wire) {
  return {.name = wire.name(),
          .weight = std::max(1u, wire.weight()),
          .rank = wire.rank(),
          .service_class = ClassFromWire(wire.service_class()),
          .patience = MillisFromWire(wire.patience_ms())};
}

inline void TenantToWire(const TenantShare& tenant, v1::Tenant* wire) {
  wire->set_name(tenant.name);
  wire->set_weight(tenant.weight);
  wire->set_rank(tenant.rank);
  wire->set_service_class(static_cast<v1::ServiceClass>(tenant.service_class));
  const int64_t patience_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(tenant.patience).count();
  wire->set_patience_ms(static_cast<uint32_t>(std::clamp<int64_t>(patience_ms, 0, UINT32_MAX)));
}

}  // namespace aisp
