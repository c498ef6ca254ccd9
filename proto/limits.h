// TokenLimits and StepCost to and from the wire. Pure.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "common/token_limits.h"
#include "worker.pb.h"

namespace aisp {

inline v1::TokenLimits LimitsToWire(const TokenLimits& limits) {
  const auto us = [](double ms) {
    return static_cast<uint32_t>(std::clamp(std::ceil(ms * 1e3), 0.0, 4e9));
  };
  v1::TokenLimits wire;
  wire.set_first_token_us(us(limits.first_token_ms));
  wire.set_token_us(us(limits.token_ms));
  wire.set_answer_tokens(static_cast<uint32_t>(std::max(0, limits.answer_tokens)));
  wire.set_uncached_tokens(static_cast<uint32_t>(std::max(0, limits.uncached_tokens)));
  return wire;
}

inline TokenLimits LimitsFromWire(const v1::TokenLimits& wire) {
  constexpr uint32_t kMost = 1u << 30;
  return {wire.first_token_us() * 1e-3, wire.token_us() * 1e-3,
          static_cast<int32_t>(std::min(wire.answer_tokens(), kMost)),
          static_cast<int32_t>(std::min(wire.uncached_tokens(), kMost))};
}

inline v1::StepCost CostToWire(const StepCost& cost) {
  v1::StepCost wire;
  wire.set_base(static_cast<float>(cost.decode.base_ms));
  wire.set_per_row(static_cast<float>(cost.decode.per_row_ms));
  wire.set_per_context(static_cast<float>(cost.decode.per_context_ms));
  wire.set_prompt_base(static_cast<float>(cost.prefill.base_ms));
  wire.set_per_token(static_cast<float>(cost.prefill.per_token_ms));
  wire.set_per_prompt_context(static_cast<float>(cost.prefill.per_prefill_context_ms));
  wire.set_per_row_beside(static_cast<float>(cost.prefill.per_row_ms));
  wire.set_per_context_beside(static_cast<float>(cost.prefill.per_context_ms));
  return wire;
}

// nullopt: a coefficient is negative or not finite.
inline std::optional<StepCost> CostFromWire(const v1::StepCost& w) {
  const StepCost cost{{w.base(), w.per_row(), w.per_context()},
                      {w.prompt_base(), w.per_token(), w.per_prompt_context(), w.per_row_beside(),
                       w.per_context_beside()}};
  for (const float each : {w.base(), w.per_row(), w.per_context(), w.prompt_base(), w.per_token(),
                           w.per_prompt_context(), w.per_row_beside(), w.per_context_beside()}) {
    if (!std::isfinite(each) || each < 0) return std::nullopt;
  }
  return cost;
}

}  // namespace aisp
