#include "kernels/cuda/linear/one_token.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/linear/host_launch.h"
#include "kernels/cuda/linear/nvfp4_layout.h"
#include "kernels/cuda/linear/one_token_kernels.h"

namespace aisp::cuda {
namespace {

// Layout of the region: launches counted by each CTA, then the two sets of slots.
constexpr size_t kLaunchesBytes = 4096;
constexpr size_t kSetsBytes = size_t{2} * kTokenSetSlots * sizeof(uint32_t);
// Maximum of shared memory per CTA (linear_choice.cc).
constexpr int kMostShared = 174 << 10;

int32_t DivideUp(int64_t a, int64_t b) { return static_cast<int32_t>((a + b - 1) / b); }

constexpr std::string_view kPart = "linear layers of one token";  // in errors

std::vector<ChainLink> LinksOf(std::span<const ChainStep> steps) {
  std::vector<ChainLink> links;
  for (const ChainStep& step : steps)
    links.push_back({TraitsOf(step.call), step.norm_weight != nullptr});
  return links;
}

Result<CUtensorMap> WeightMap(const TensorMaps& maps, const PackedWeight& w,
                              const OneTokenKernel& kernel) {
  using Dimension = TensorMaps::Dimension;
  if (w.format != WeightFormat::kNvfp4)
    return TokenWeightMap(maps, w, kernel.block_k, kernel.warps);
  const int64_t group = Nvfp4GroupBytes(w.k);
  const std::array dimensions = {
      Dimension{128, 4, 128}, Dimension{4, 512, 1},
      Dimension{group / kNvfp4ChunkBytes, kNvfp4ChunkBytes, kernel.stage_k() / 64},
      Dimension{DivideUp(w.n, kNvfp4GroupRows), group, 1}};
  return maps.Box(w.data, dimensions, CU_TENSOR_MAP_SWIZZLE_NONE);
}

Result<CUtensorMap> BlockScaleMap(const TensorMaps& maps, const PackedWeight& w,
                                  const OneTokenKernel& kernel) {
  using Dimension = TensorMaps::Dimension;
  const int64_t group = Nvfp4GroupBytes(w.k);
  const std::array dimensions = {
      Dimension{16, 4, 16}, Dimension{4, 64, 1},
      Dimension{group / kNvfp4ChunkBytes, kNvfp4ChunkBytes, kernel.stage_k() / 64},
      Dimension{DivideUp(w.n, kNvfp4GroupRows), group, 1}};
  return maps.Box(static_cast<const char*>(w.data) + kNvfp4DataBytes, dimensions,
                  CU_TENSOR_MAP_SWIZZLE_NONE);
}

Result<OneTokenStep> StepOf(const TensorMaps& maps, const ChainStep& from,
                            const OneTokenKernel& kernel) {
  const PackedWeight& w = *from.call.weight;
  OneTokenStep step;
  AISP_ASSIGN_OR_RETURN(step.weight, WeightMap(maps, w, kernel));
  step.block_scales = step.weight;
  if (w.format == WeightFormat::kNvfp4) {
    AISP_ASSIGN_OR_RETURN(step.block_scales, BlockScaleMap(maps, w, kernel));
  }
  step.scales = w.scales;
  step.bias = w.bias;
  step.gain = from.norm_weight;
  step.epsilon = from.norm_epsilon;
  step.y = from.call.y;
  step.store = from.call.store;
  step.poll = from.call.poll;
  step.n = static_cast<int32_t>(w.n);
  step.k = static_cast<int32_t>(w.k);
  step.tiles = DivideUp(w.n, kTokenRows);
  step.stages = DivideUp(w.k, kernel.stage_k());
  step.scale_columns = DivideUp(w.k, 128);
  return step;
}

}  // namespace

Result<CUtensorMap> TokenWeightMap(const TensorMaps& maps, const PackedWeight& w, int block_k,
                                   int warps) {
  using Dimension = TensorMaps::Dimension;
  const int64_t bytes = w.format == WeightFormat::kBf16 ? 2 : 1;
  const std::array dimensions = {Dimension{block_k, bytes, block_k},
                                 Dimension{w.n, w.k * bytes, kTokenRows},
                                 Dimension{w.k / block_k, block_k * bytes, warps}};
  return maps.Box(w.data, dimensions, CU_TENSOR_MAP_SWIZZLE_128B);
}

Result<OneToken> OneToken::Create(int multiprocessors, bool overlap) {
  OneToken one;
  AISP_ASSIGN_OR_RETURN(one.maps_, TensorMaps::Find());
  if (static_cast<size_t>(multiprocessors) > kLaunchesBytes / sizeof(uint32_t)) {
    return Unimplemented("linear layers of one token on " + std::to_string(multiprocessors) +
                         " multiprocessors");
  }
  one.multiprocessors_ = multiprocessors;
  one.overlap_ = overlap;
  for (const WeightFormat format :
       {WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kFp8Block, WeightFormat::kNvfp4}) {
    const OneTokenKernel kernel = OneTokenKernelOf(format);
    AISP_RETURN_IF_ERROR(
        CheckIn(kPart,
                cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     kMostShared),
                "asking for shared memory"));
    // Leaves room for another kernel's CTA beside each.
    AISP_RETURN_IF_ERROR(CheckIn(
        kPart,
        cudaFuncSetAttribute(kernel.function, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "asking for shared memory"));
  }
  return one;
}

size_t OneToken::region_bytes() const { return kLaunchesBytes + kSetsBytes; }

uint32_t* OneToken::launches() const { return reinterpret_cast<uint32_t*>(region_); }
uint32_t* OneToken::sets() const { return launches() + kLaunchesBytes / sizeof(uint32_t); }

Status OneToken::SetRegion(void* memory, cudaStream_t stream) {
  region_ = static_cast<char*>(memory);
  AISP_RETURN_IF_ERROR(CheckIn(kPart, cudaMemsetAsync(launches(), 0, kLaunchesBytes, stream),
                               "clearing the workspace"));
  static_assert(kTokenEmpty == 0xffffffffu);
  return CheckIn(kPart, cudaMemsetAsync(sets(), 0xff, kSetsBytes, stream),
                 "clearing the workspace");
}

Status OneToken::Launch(std::span<const ChainStep> steps, const ChainForm& form,
                        cudaStream_t stream) {
  const std::vector<ChainLink> links = LinksOf(steps);
  const OneTokenKernel kernel = OneTokenKernelOf(steps[0].call.weight->format);
  OneTokenParams p;
  int64_t at = kTokenStepsAt;
  for (size_t i = 0; i < steps.size(); ++i) {
    AISP_ASSIGN_OR_RETURN(p.steps[i], StepOf(maps_, steps[i], kernel));
    p.steps[i].input_at = i > 0 ? static_cast<int32_t>(at) : kTokenInputAt;
    if (i > 0) at += OneTokenSlots(links[i]);
  }
  p.x = static_cast<const __nv_bfloat16*>(steps[0].call.x);
  p.consumes = form.consumes;
  p.publishes = form.publishes;
  if (steps.size() > 1 || p.consumes || p.publishes) {
    p.sets = sets();
    p.launches = launches();
  }
  p.count = static_cast<int32_t>(steps.size());
  p.ring = OneTokenRing(links);
  p.input_bytes = OneTokenInputBytes(links);
  const int shared_bytes =
      kernel.fixed_bytes + p.ring * kernel.stage_bytes + p.input_bytes * kernel.warps;
  void* arguments[] = {&p};
  return CheckIn(
      kPart,
      LaunchShaped(kernel.function,
                   {multiprocessors_, kernel.threads, static_cast<size_t>(shared_bytes), overlap_},
                   arguments, stream),
      "launching");
}

}  // namespace aisp::cuda
