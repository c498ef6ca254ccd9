// Why a block is pinned. Pure values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aisp {

enum class PinKind : uint8_t { kSequence, kStep, kReservation, kLease, kTier };
inline constexpr size_t kPinKinds = 5;

}  // namespace aisp
