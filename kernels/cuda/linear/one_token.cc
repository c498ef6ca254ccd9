#include "kernels/cuda/linear/one_token.h"

#include <algorithm>
#include <array>
#include <string>

#include "kernels/cuda/linear/nvfp4_layout.h"
#include "kernels/cuda/linear/one_token_kernels.h"

namespace aisp::cuda {
namespace {

// The region: launches counted by each CTA, then the two sets of words.
constexpr size_t kLaunchesBytes = 4096;
constexpr size_t kSetsBytes = size_t{2} * kTokenSetWords * sizeof(uint32_t);
// Shared memory of a CTA: of several layers so much that decode attention's fits beside it, of a single one so much that the next
// launch's does, but for a head's (kHeadRows), which is launched as a chain is.
constexpr int kSharedOfChain = 174 << 10;
constexpr int kSharedOfOne = 112 << 10;

int32_t DivideUp(int64_t a, int64_t b) { return static_cast<int32_t>((a + b - 1) / b); }

Status FromCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return Internal(std::string("linear layers of one token: ") + what + ": " +
                  cudaGetErrorString(error));
}

bool Aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// What K must be a multiple of; NVFP4's blocks are longer, and packed weights have zeros where K ends within one.
int32_t UnitOfK(const OneTokenKernel& kernel) { return std::min(kernel.block_k, 128); }

bool Takes(const LinearCall& call, const OneTokenKernel& kernel) {
  return call.rows == 1 && call.input == InputFormat::kBf16 && Aligned(call.x) &&
         (call.store == Store::kSiluMulBf16) == call.weight->gated &&
         call.weight->k % UnitOfK(kernel) == 0 && call.weight->n < INT32_MAX / 2;
}

// Whether `next` reads what `step` writes, and nothing else.
bool Follows(const ChainStep& step, const ChainStep& next) {
  if (step.call.weight->out_features() != next.call.weight->k) return false;
  if (next.norm_weight != nullptr) {
    return step.call.store == Store::kAccumulateF32 && Aligned(next.norm_weight);
  }
  return (step.call.store == Store::kBf16 || step.call.store == Store::kSiluMulBf16) &&
         next.call.x == step.call.y;
}

// Words in which a step's input waits.
int64_t WordsOf(const ChainStep& step) {
  return step.norm_weight != nullptr ? step.call.weight->k : step.call.weight->k / 2;
}

int InputBytes(std::span<const ChainStep> steps, const OneTokenKernel& kernel) {
  int bytes = 0;
  for (const ChainStep& step : steps) {
    bytes = std::max(bytes, DivideUp(step.call.weight->k, kernel.stage_k()) * kernel.block_k * 2);
  }
  return bytes;
}

// Stages of a ring beside the token.
int RingOf(std::span<const ChainStep> steps, const OneTokenKernel& kernel) {
  const bool alone = steps.size() > 1 || steps[0].call.weight->n >= kHeadRows;
  const int shared = alone ? kSharedOfChain : kSharedOfOne;
  const int left = shared - kernel.fixed_bytes - InputBytes(steps, kernel) * kernel.warps;
  return std::min(kTokenMaxRing, left / kernel.stage_bytes);
}

Result<CUtensorMap> WeightMap(const TensorMaps& maps, const PackedWeight& w,
                              const OneTokenKernel& kernel) {
  using Dimension = TensorMaps::Dimension;
  if (w.format == WeightFormat::kNvfp4) {
    const int64_t group = Nvfp4GroupBytes(w.k);
    const std::array dimensions = {
        Dimension{128, 4, 128}, Dimension{4, 512, 1},
        Dimension{group / kNvfp4ChunkBytes, kNvfp4ChunkBytes, kernel.stage_k() / 64},
        Dimension{DivideUp(w.n, kNvfp4GroupRows), group, 1}};
    return maps.Box(w.data, dimensions, CU_TENSOR_MAP_SWIZZLE_NONE);
  }
  const int64_t bytes = w.format == WeightFormat::kBf16 ? 2 : 1;
  const std::array dimensions = {
      Dimension{kernel.block_k, bytes, kernel.block_k}, Dimension{w.n, w.k * bytes, kTokenRows},
      Dimension{w.k / kernel.block_k, kernel.block_k * bytes, kernel.warps}};
  return maps.Box(w.data, dimensions, CU_TENSOR_MAP_SWIZZLE_128B);
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
  step.n = static_cast<int32_t>(w.n);
  step.k = static_cast<int32_t>(w.k);
  step.tiles = DivideUp(w.n, kTokenRows);
  step.stages = DivideUp(w.k, kernel.stage_k());
  step.scale_columns = DivideUp(w.k, 128);
  return step;
}

}  // namespace

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
        FromCuda(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      kSharedOfChain),
                 "asking for shared memory"));
    // Another kernel's CTA fits beside each.
    AISP_RETURN_IF_ERROR(FromCuda(
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
  left_ = awaited_ = nullptr;
  AISP_RETURN_IF_ERROR(
      FromCuda(cudaMemsetAsync(launches(), 0, kLaunchesBytes, stream), "clearing the workspace"));
  static_assert(kTokenNothing == 0xffffffffu);
  return FromCuda(cudaMemsetAsync(sets(), 0xff, kSetsBytes, stream), "clearing the workspace");
}

bool OneToken::Fits(std::span<const ChainStep> steps) const {
  if (region_ == nullptr || steps.empty() || steps.size() > kMaxChainSteps) return false;
  if (steps[0].call.weight == nullptr || steps[0].norm_weight != nullptr) return false;
  const OneTokenKernel kernel = OneTokenKernelOf(steps[0].call.weight->format);
  int64_t words = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    const LinearCall& call = steps[i].call;
    if (call.weight == nullptr || call.weight->format != steps[0].call.weight->format ||
        !Takes(call, kernel)) {
      return false;
    }
    if (i > 0 && !Follows(steps[i - 1], steps[i])) return false;
    if (i > 0) words += WordsOf(steps[i]);
  }
  return words <= kTokenStepWords && RingOf(steps, kernel) >= kTokenLeastRing;
}

bool OneToken::Fits(const LinearCall& call) const {
  const ChainStep step{call, nullptr};
  return Fits(std::span(&step, 1));
}

Result<TokenWords> OneToken::Offer(const void* qkv, int64_t qkv_features, const void* row,
                                   int64_t row_features, cudaStream_t stream) {
  const auto fits = [](int64_t features) {
    return features % 8 == 0 && features / 2 <= kTokenEdgeWords;
  };
  if (region_ == nullptr || !fits(qkv_features) || !fits(row_features)) return TokenWords{};
  if (awaited_ != nullptr) {
    // Nobody took the last row's words: a model whose layers do not go on so, and for which they would have to be emptied each time.
    offers_ = false;
    awaited_ = nullptr;
    AISP_RETURN_IF_ERROR(
        FromCuda(cudaMemsetAsync(sets(), 0xff, kSetsBytes, stream), "emptying words"));
  }
  if (!offers_) return TokenWords{};
  if (left_ != qkv) {
    if (std::find(wanted_.begin(), wanted_.end(), qkv) == wanted_.end()) {
      wanted_[next_wanted_++ % wanted_.size()] = qkv;
    }
    return TokenWords{};
  }
  left_ = nullptr;
  awaited_ = row;
  awaited_features_ = row_features;
  return TokenWords{sets(), launches()};
}

void OneToken::Withdraw() { awaited_ = nullptr; }
void OneToken::Forget() {
  left_ = nullptr;
  awaited_features_ = kNotNext;
}

bool OneToken::Awaits(const LinearCall& first) const {
  return awaited_ != nullptr && first.x == awaited_ && first.weight->k == awaited_features_;
}

bool OneToken::Leaves(const LinearCall& last) const {
  return last.store == Store::kBf16 && last.weight->out_features() / 2 <= kTokenEdgeWords &&
         std::find(wanted_.begin(), wanted_.end(), last.y) != wanted_.end();
}

Status OneToken::Launch(std::span<const ChainStep> steps, cudaStream_t stream) {
  const OneTokenKernel kernel = OneTokenKernelOf(steps[0].call.weight->format);
  OneTokenParams p;
  int64_t words = kTokenStepsAt;
  for (size_t i = 0; i < steps.size(); ++i) {
    AISP_ASSIGN_OR_RETURN(p.steps[i], StepOf(maps_, steps[i], kernel));
    p.steps[i].words = i > 0 ? static_cast<int32_t>(words) : kTokenInputAt;
    if (i > 0) words += WordsOf(steps[i]);
  }
  p.x = static_cast<const __nv_bfloat16*>(steps[0].call.x);
  p.awaits = Awaits(steps.front().call);
  p.leaves = Leaves(steps.back().call);
  awaited_features_ = kNotNext;
  if (steps.size() > 1 || p.awaits || p.leaves) {
    p.sets = sets();
    p.launches = launches();
  }
  p.count = static_cast<int32_t>(steps.size());
  p.ring = RingOf(steps, kernel);
  p.input_bytes = InputBytes(steps, kernel);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(multiprocessors_));
  config.blockDim = dim3(static_cast<unsigned>(kernel.threads));
  const int shared_bytes =
      kernel.fixed_bytes + p.ring * kernel.stage_bytes + p.input_bytes * kernel.warps;
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = overlap_ ? 1 : 0;
  void* arguments[] = {&p};
  left_ = nullptr;
  AISP_RETURN_IF_ERROR(
      FromCuda(cudaLaunchKernelExC(&config, kernel.function, arguments), "launching"));
  if (p.awaits) awaited_ = nullptr;
  if (p.leaves) left_ = steps.back().call.y;
  return {};
}

}  // namespace aisp::cuda
