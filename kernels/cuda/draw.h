// Draws tokens on the device exactly as engine/sampler.h does on the host: same logits, same token.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "kernels/cuda/poll.h"
#include "kernels/device/device.h"
#include "kernels/params.h"

namespace aisp::cuda {

// Owns scratch memory for a maximum number of rows.
class TokenDrawer {
 public:
  virtual ~TokenDrawer() = default;
  virtual int32_t max_rows() const = 0;
  virtual Status Draw(const DrawParams& params, const PollTag& poll, cudaStream_t stream) = 0;
};

Result<std::unique_ptr<TokenDrawer>> MakeCudaTokenDrawer(int32_t max_rows, int32_t vocabulary,
                                                         Device& device);

}  // namespace aisp::cuda
