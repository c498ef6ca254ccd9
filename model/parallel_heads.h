// ParallelHeads: heads that each predict one of the tokens after a position, from the target's
// features of that position alone. Implementations: MedusaHeads (model/medusa_head.h), and in tests
// heads that check where their features came from. One call at a time.
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
  // For each logit, its token in the target's vocabulary.
  virtual std::span<const TokenId> target_tokens() const = 0;
  // `rows`: f32 [feature_size] each. Runs the first `heads` heads.
  virtual Status Run(std::span<const float* const> rows, int32_t heads) = 0;
  // Logits of the last Run, in the order of target_tokens().
  virtual std::span<const float> Logits(int32_t head, int32_t row) const = 0;
};

}  // namespace aisp
