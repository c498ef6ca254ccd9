// ParallelHeads: heads that each say one of the tokens that follow a position, from what a target
// has made of it and nothing else. Implementations: MedusaHeads (model/medusa_head.h) and, in
// tests, heads that prove where their features came from. One call at a time.
#pragma once

#include <cstdint>
#include <span>

#include "common/ids.h"
#include "common/result.h"

namespace aisp {

class ParallelHeads {
 public:
  virtual ~ParallelHeads() = default;
  virtual int32_t heads() const = 0;
  virtual int32_t feature_size() const = 0;
  virtual int32_t vocabulary() const = 0;  // the target's
  virtual int32_t max_rows() const = 0;
  // The token of that vocabulary which each logit is of.
  virtual std::span<const TokenId> target_tokens() const = 0;
  // `rows`: f32 [feature_size] each. Of the first `heads` heads.
  virtual Status Run(std::span<const float* const> rows, int32_t heads) = 0;
  // Of the last Run, by target_tokens().
  virtual std::span<const float> Logits(int32_t head, int32_t row) const = 0;
};

}  // namespace aisp
