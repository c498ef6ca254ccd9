#include "kernels/cuda/linear/few_tokens.h"

#include <string>
#include <string_view>

#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/linear/few_tokens_kernels.h"
#include "kernels/cuda/linear/host_launch.h"
#include "kernels/cuda/linear/one_token.h"

namespace aisp::cuda {
namespace {

// Layout of the region: launches counted by each CTA, then the two sets of slots.
constexpr size_t kLaunchesBytes = 4096;
constexpr size_t kSetsBytes = size_t{2} * kFewTokensSetSlots * sizeof(uint32_t);

int32_t DivideUp(int64_t a, int64_t b) { return static_cast<int32_t>((a + b - 1) / b); }

constexpr std::string_view kPart = "linear layers of a few tokens";  // in errors

Result<FewTokensStep> StepOf(const TensorMaps& maps, const ChainStep& from,
                             const FewTokensKernel& kernel) {
  const PackedWeight& w = *from.call.weight;
  FewTokensStep step;
  AISP_ASSIGN_OR_RETURN(step.weight, TokenWeightMap(maps, w, kernel.block_k, kernel.warps));
  step.scales = w.scales;
  step.bias = w.bias;
  step.gain = from.norm_weight;
  step.epsilon = from.norm_epsilon;
  step.y = from.call.y;
  step.y_stride = from.call.y_stride > 0 ? from.call.y_stride : w.out_features();
  step.store = from.call.store;
  step.poll = from.call.poll;
  step.n = static_cast<int32_t>(w.n);
  step.k = static_cast<int32_t>(w.k);
  step.tiles = DivideUp(w.n, kTokenRows);
  step.stages = DivideUp(w.k, kernel.stage_k());
  return step;
}

}  // namespace

Result<FewTokens> FewTokens::Create(int multiprocessors, bool overlap) {
  FewTokens few;
  AISP_ASSIGN_OR_RETURN(few.maps_, TensorMaps::Find());
  if (static_cast<size_t>(multiprocessors) > kLaunchesBytes / sizeof(uint32_t)) {
    return Unimplemented("linear layers of a few tokens on " + std::to_string(multiprocessors) +
                         " multiprocessors");
  }
  few.multiprocessors_ = multiprocessors;
  few.overlap_ = overlap;
  for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kFp8}) {
    const FewTokensKernel kernel = FewTokensKernelOf(format);
    AISP_RETURN_IF_ERROR(
        CheckIn(kPart,
                cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     kernel.shared_bytes),
                "asking for shared memory"));
    AISP_RETURN_IF_ERROR(CheckIn(
        kPart,
        cudaFuncSetAttribute(kernel.function, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "asking for shared memory"));
  }
  return few;
}

size_t FewTokens::region_bytes() const { return kLaunchesBytes + kSetsBytes; }

uint32_t* FewTokens::launches() const { return reinterpret_cast<uint32_t*>(region_); }
uint32_t* FewTokens::sets() const { return launches() + kLaunchesBytes / sizeof(uint32_t); }

Status FewTokens::SetRegion(void* memory, cudaStream_t stream) {
  region_ = static_cast<char*>(memory);
  AISP_RETURN_IF_ERROR(CheckIn(kPart, cudaMemsetAsync(launches(), 0, kLaunchesBytes, stream),
                               "clearing the workspace"));
  static_assert(kTokenEmpty == 0xffffffffu);
  return CheckIn(kPart, cudaMemsetAsync(sets(), 0xff, kSetsBytes, stream),
                 "clearing the workspace");
}

Status FewTokens::Launch(std::span<const ChainStep> steps, cudaStream_t stream) {
  const FewTokensKernel kernel = FewTokensKernelOf(steps[0].call.weight->format);
  FewTokensParams p;
  int64_t at = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    AISP_ASSIGN_OR_RETURN(p.steps[i], StepOf(maps_, steps[i], kernel));
    p.steps[i].input_at = static_cast<int32_t>(at);
    if (i > 0) at += FewTokensSlots({TraitsOf(steps[i].call), steps[i].norm_weight != nullptr});
  }
  p.x = static_cast<const __nv_bfloat16*>(steps[0].call.x);
  p.sets = sets();
  p.launches = launches();
  p.count = static_cast<int32_t>(steps.size());
  p.rows = steps[0].call.rows;
  void* arguments[] = {&p};
  return CheckIn(kPart,
                 LaunchShaped(kernel.function,
                              {multiprocessors_, kernel.threads,
                               static_cast<size_t>(kernel.shared_bytes), overlap_},
                              arguments, stream),
                 "launching");
}

}  // namespace aisp::cuda
