// Steps of prompts that an executor runs once before it serves. A kernel's code comes to a GPU at
// its first call: a first prompt that pays for all of them waits 2 ms longer, and 100 ms where a
// library's kernels are among them that no tuning has run.
#pragma once

#include <cstdint>
#include <vector>

#include "model/forward.h"

namespace aisp {

// Rows of the steps, ascending: kernels are chosen by the number of rows. `most`: what an executor
// can take.
std::vector<int32_t> WarmUpSizes(int32_t most);

// A step whose sequences lie in the pool's first blocks, which nobody may hold.
class WarmUpStep {
 public:
  // A prompt of `rows` tokens or, where `decodes`, of one less, beside a sequence of one token.
  WarmUpStep(int32_t rows, bool decodes, int32_t block_tokens);

  // Lives as long as this. Its last row's logits are wanted.
  ForwardBatch batch() const;

 private:
  void Add(int32_t rows, int32_t block_tokens);

  std::vector<TokenId> tokens_;
  std::vector<int32_t> positions_, slots_, tables_, logit_rows_;
  std::vector<SequenceRows> sequences_;
};

}  // namespace aisp
