#include "kernels/ops.h"

namespace aisp {

Status Ops::LinearRun(std::span<const LinearStep> steps, Stream& stream) {
  for (const LinearStep& step : steps) {
    if (step.norm.x.data != nullptr) AISP_RETURN_IF_ERROR(RmsNorm(step.norm, stream));
    AISP_RETURN_IF_ERROR(Linear(step.linear, stream));
  }
  return {};
}

Status Ops::RopeAttention(const RopeAppendParams& rope, const AttentionParams& attention,
                          Stream& stream) {
  AISP_RETURN_IF_ERROR(RopeAppend(rope, stream));
  return PagedAttention(attention, stream);
}

}  // namespace aisp
