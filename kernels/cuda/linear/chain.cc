#include "kernels/cuda/linear/chain.h"

#include <algorithm>
#include <string>

#include "kernels/cuda/linear/chain_kernels.h"
#include "kernels/cuda/linear/nvfp4_layout.h"

namespace aisp::cuda {
namespace {

// The region: counters, sums of squares of each step, parts.
constexpr size_t kCounterBytes = 256;
constexpr size_t kSquareBytes = size_t{512} << 10;  // of a step

int32_t DivideUp(int64_t a, int64_t b) { return static_cast<int32_t>((a + b - 1) / b); }

std::span<const StreamKernel> ChainKernels(WeightFormat format) {
  switch (format) {
    case WeightFormat::kFp8:
      return Fp8ChainKernels();
    case WeightFormat::kFp8Block:
      return Fp8BlockChainKernels();
    case WeightFormat::kNvfp4:
      return Nvfp4ChainKernels();
    case WeightFormat::kBf16:
      break;
  }
  return Bf16ChainKernels();
}

const StreamKernel* FindKernel(WeightFormat format, int32_t rows) {
  for (const StreamKernel& kernel : ChainKernels(format)) {
    if (kernel.tokens >= rows) return &kernel;
  }
  return nullptr;
}

Status FromCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return Internal(std::string("linear layers in one launch: ") + what + ": " +
                  cudaGetErrorString(error));
}

StreamParams ParamsOf(const LinearCall& call, const StreamKernel& kernel) {
  const PackedWeight& w = *call.weight;
  StreamParams p;
  p.nvfp4 = static_cast<const uint8_t*>(w.data);
  p.scales = w.scales;
  p.bias = w.bias;
  p.y = call.y;
  p.y_stride = call.y_stride > 0 ? call.y_stride : w.out_features();
  p.group_bytes = Nvfp4GroupBytes(w.k);
  p.row_groups = DivideUp(w.n, kNvfp4GroupRows);
  p.n = static_cast<int32_t>(w.n);
  p.rows = call.rows;
  p.k_units = DivideUp(w.k, kernel.stage_k);
  p.units = DivideUp(w.n, kernel.rows) * p.k_units;
  p.scale_columns = DivideUp(w.k, 128);
  p.store = call.store;
  p.poll = call.poll;
  return p;
}

}  // namespace

Result<Chains> Chains::Create(int multiprocessors, bool overlap) {
  Chains chains;
  AISP_ASSIGN_OR_RETURN(chains.maps_, TensorMaps::Find());
  chains.multiprocessors_ = multiprocessors;
  chains.overlap_ = overlap;
  for (const WeightFormat format :
       {WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kFp8Block, WeightFormat::kNvfp4}) {
    for (const StreamKernel& kernel : ChainKernels(format)) {
      AISP_RETURN_IF_ERROR(FromCuda(
          cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               kernel.shared_bytes),
          "asking for shared memory"));
      // A small kernel fits beside each CTA.
      AISP_RETURN_IF_ERROR(FromCuda(
          cudaFuncSetAttribute(kernel.function, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared),
          "asking for shared memory"));
      chains.part_bytes_ = std::max(
          chains.part_bytes_, static_cast<size_t>(multiprocessors) *
                                  static_cast<size_t>(kernel.rows * kernel.tokens) * sizeof(float));
    }
  }
  chains.region_bytes_ = kCounterBytes + kMaxChainSteps * kSquareBytes + chains.part_bytes_;
  return chains;
}

Status Chains::SetRegion(void* memory, cudaStream_t stream) {
  region_ = static_cast<char*>(memory);
  AISP_RETURN_IF_ERROR(
      FromCuda(cudaMemsetAsync(region_, 0, kCounterBytes, stream), "clearing the workspace"));
  static_assert(kChainNoSum == 0xffffffffu);
  return FromCuda(cudaMemsetAsync(region_ + kCounterBytes + kMaxChainSteps * kSquareBytes, 0xff,
                                  part_bytes_, stream),
                  "clearing the workspace");
}

Status Chains::Launch(std::span<const ChainStep> steps, cudaStream_t stream) const {
  const StreamKernel* const kernel = FindKernel(steps[0].call.weight->format, steps[0].call.rows);
  if (kernel == nullptr || region_ == nullptr)
    return Internal("linear layers in one launch that no kernel takes");
  // Each warp counts the quads of tokens that it finishes (chain_tile.cuh).
  const auto arrivals = static_cast<uint32_t>(kernel->rows / 16 * kernel->tokens / 8);
  ChainParams chain;
  chain.count = static_cast<int32_t>(steps.size());
  chain.counters = reinterpret_cast<uint32_t*>(region_);
  chain.parts = reinterpret_cast<float*>(region_ + kCounterBytes + kMaxChainSteps * kSquareBytes);
  for (size_t i = 0; i < steps.size(); ++i) {
    const LinearCall& call = steps[i].call;
    const PackedWeight& w = *call.weight;
    ChainStepParams& step = chain.steps[i];
    step.p = ParamsOf(call, *kernel);
    AISP_ASSIGN_OR_RETURN(
        step.input, maps_.Box(call.x, 2, w.k, call.rows, kernel->input_box_k, kernel->tokens));
    if (kernel->weight_box_k > 0) {
      AISP_ASSIGN_OR_RETURN(step.weight, maps_.Box(w.data, w.format == WeightFormat::kBf16 ? 2 : 1,
                                                   w.k, w.n, kernel->weight_box_k, kernel->rows));
    }
    if (i == 0) continue;
    ChainStepParams& before = chain.steps[i - 1];
    step.input_ready = static_cast<uint32_t>(before.p.units / before.p.k_units) * arrivals;
    if (steps[i].norm_weight == nullptr) continue;
    before.gain = steps[i].norm_weight;
    before.normed = static_cast<__nv_bfloat16*>(const_cast<void*>(call.x));
    before.squares = reinterpret_cast<float*>(region_ + kCounterBytes + (i - 1) * kSquareBytes);
    step.input_squares = before.squares;
    step.epsilon = steps[i].norm_epsilon;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(multiprocessors_));
  config.blockDim = dim3(static_cast<unsigned>(kernel->threads));
  config.dynamicSmemBytes = static_cast<size_t>(kernel->shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = overlap_ ? 1 : 0;
  void* arguments[] = {&chain};
  return FromCuda(cudaLaunchKernelExC(&config, kernel->function, arguments), "launching");
}

}  // namespace aisp::cuda
