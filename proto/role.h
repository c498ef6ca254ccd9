// The roles of a worker, by their names in settings, metrics and the admin API.
#pragma once

#include <string_view>

#include "common.pb.h"

namespace aisp {

// "unknown" for any other value.
inline std::string_view RoleName(v1::Role role) {
  switch (role) {
    case v1::ROLE_PREFILL:
      return "prefill";
    case v1::ROLE_DECODE:
      return "decode";
    case v1::ROLE_PARKED:
      return "parked";
    default:
      return "unknown";
  }
}

// ROLE_UNSPECIFIED for any other name.
inline v1::Role RoleNamed(std::string_view name) {
  for (const v1::Role role : {v1::ROLE_PREFILL, v1::ROLE_DECODE, v1::ROLE_PARKED}) {
    if (RoleName(role) == name) return role;
  }
  return v1::ROLE_UNSPECIFIED;
}

}  // namespace aisp
