// PromptPace to and from the wire. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/prompt_work.h"
#include "worker.pb.h"

namespace aisp {

inline v1::PromptPace PaceToWire(const PromptPace& pace) {
  v1::PromptPace wire;
  wire.set_rows(static_cast<uint32_t>(std::max(0, pace.rows)));
  wire.set_positions(static_cast<uint32_t>(std::max(0, pace.positions)));
  return wire;
}

// Clamped: values above the bound exceed any step anyway.
inline PromptPace PaceFromWire(const v1::PromptPace& wire) {
  constexpr uint32_t kMost = 1u << 30;
  return {static_cast<int32_t>(std::min(wire.rows(), kMost)),
          static_cast<int32_t>(std::min(wire.positions(), kMost))};
}

}  // namespace aisp
