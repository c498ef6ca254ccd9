// Layers of one token in one launch (one_token.cuh), seen from the host: whether steps fit, and their launch. A single layer is a
// run of one step.
//
// Who owns what: the caller owns the region, which belongs to these launches alone from SetRegion on. Threads as LinearKernels.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/result.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/tensor_map.h"
#include "kernels/cuda/token_words.h"

namespace aisp::cuda {

class OneToken {
 public:
  // Prepares the kernels. `overlap` as in LinearOptions.
  static Result<OneToken> Create(int multiprocessors, bool overlap);

  size_t region_bytes() const;
  // 256-aligned; cleared here.
  Status SetRegion(void* memory, cudaStream_t stream);
  // Of steps that follow each other as Chains::Fits demands.
  bool Fits(std::span<const ChainStep> steps) const;
  bool Fits(const LinearCall& call) const;
  // Of steps that fit.
  Status Launch(std::span<const ChainStep> steps, cudaStream_t stream);

  // LinearKernels::OfferWords and WithdrawWords.
  Result<TokenWords> Offer(const void* qkv, int64_t qkv_features, const void* row,
                           int64_t row_features, cudaStream_t stream);
  void Withdraw();
  // Something else is launched, which may write what the last launch has left. It does not take attention's words, and what comes
  // after it must not: the row may be another one by then.
  void Forget();

 private:
  uint32_t* launches() const;
  uint32_t* sets() const;
  // Whether the launch whose first call this is takes the words that attention leaves.
  bool Awaits(const LinearCall& first) const;
  // Whether the launch whose last call this is leaves words.
  bool Leaves(const LinearCall& last) const;

  TensorMaps maps_;
  int multiprocessors_ = 0;
  bool overlap_ = true;
  char* region_ = nullptr;
  const void* left_ = nullptr;     // the y that the last launch has left as words too
  const void* awaited_ = nullptr;  // the row whose words were offered and have not been taken
  static constexpr int64_t kNotNext = -1;
  int64_t awaited_features_ = kNotNext;  // as long as the next launch may take them
  bool offers_ = true;                   // what was offered has always been taken
  // Where attention has looked for q, k and v: outputs that are worth being left as words.
  std::array<const void*, 4> wanted_ = {};
  size_t next_wanted_ = 0;
};

}  // namespace aisp::cuda
