// Drawing tokens on the device, as engine/sampler.h does on the host: same logits, same token.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace aisp::cuda {

Result<std::unique_ptr<TokenDrawer>> MakeCudaTokenDrawer(int32_t max_rows, int32_t vocabulary,
                                                         Device& device);

}  // namespace aisp::cuda
