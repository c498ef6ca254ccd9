// Prefill steps that an executor runs once before it serves. A GPU loads a kernel's code at its
// first call: without this the first prompt waits 2 ms longer, and 100 ms if library kernels
// without tuning results are among them.
#pragma once

#include <cstdint>
#include <vector>

#include "model/forward.h"

namespace aisp {

// Rows of the steps, ascending, since kernels are chosen by row count. `most`: the executor's
// limit.
std::vector<int32_t> WarmUpSizes(int32_t most);

// A step whose sequences use the pool's first blocks, which must be free.
class WarmUpStep {
 public:
  // A prompt of `rows` tokens or, if `decodes`, of one less, plus a sequence of one token.
  WarmUpStep(int32_t rows, bool decodes, int32_t block_tokens);

  // Valid as long as this. The last row's logits are wanted.
  ForwardBatch batch() const;

 private:
  void Add(int32_t rows, int32_t block_tokens);

  std::vector<TokenId> tokens_;
  std::vector<int32_t> positions_, slots_, tables_, logit_rows_;
  std::vector<SequenceRows> sequences_;
};

}  // namespace aisp
