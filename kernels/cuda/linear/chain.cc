#include "kernels/cuda/linear/chain.h"

#include <algorithm>
#include <string_view>

#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/linear/chain_kernels.h"
#include "kernels/cuda/linear/host_launch.h"
#include "kernels/cuda/linear/nvfp4_layout.h"

namespace aisp::cuda {
namespace {

// Layout of the region: counters, sums of squares of each step, parts.
constexpr size_t kCounterBytes = 256;
constexpr size_t kSquareBytes = size_t{512} << 10;  // per step
// Minimum of a CTA's units for adapters' sums. Fewer units mean more CTAs' parts to add before the
// layer can end, more units a longer share per CTA (docs/notes/lora-adapters.md).
constexpr int32_t kUnitsOfSums = 4;

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

const StreamKernel* FindKernel(std::span<const StreamKernel> kernels, int32_t rows) {
  for (const StreamKernel& kernel : kernels) {
    if (kernel.tokens >= rows) return &kernel;
  }
  return nullptr;
}

// The value of a step's counter when all of its output is written: each warp counts the quads of
// tokens that it finishes (chain_tile.cuh).
uint32_t ReadyCount(const StreamKernel& kernel, const StreamParams& p) {
  return static_cast<uint32_t>(p.units / p.k_units) *
         static_cast<uint32_t>(kernel.rows / 16 * kernel.tokens / 8);
}

// Whether a step runs on no more CTAs than it needs (FewestCtas): where exchanging partial sums
// costs the most. Not measured with bf16 weights.
bool FewCtas(const StreamKernel& kernel) {
  return kernel.tokens == 64 && kernel.format != StreamFormat::kBf16;
}

constexpr std::string_view kPart = "linear layers in one launch";  // in errors

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
  const auto part_bytes = [&](const StreamKernel& kernel, int arrays) {
    return static_cast<size_t>(arrays) * static_cast<size_t>(chains.PartFloats(kernel)) *
           sizeof(float);
  };
  for (const WeightFormat format :
       {WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kFp8Block, WeightFormat::kNvfp4}) {
    for (const StreamKernel& kernel : ChainKernels(format)) {
      AISP_RETURN_IF_ERROR(chains.Prepare(kernel));
      chains.part_bytes_ = std::max(chains.part_bytes_, part_bytes(kernel, 1));
    }
  }
  for (const StreamKernel& kernel : AdaptedBf16ChainKernels()) {
    AISP_RETURN_IF_ERROR(chains.Prepare(kernel));
    chains.part_bytes_ = std::max(chains.part_bytes_, part_bytes(kernel, 2));
  }
  chains.region_bytes_ = kCounterBytes + kMaxChainSteps * kSquareBytes + chains.part_bytes_;
  return chains;
}

Status Chains::Prepare(const StreamKernel& kernel) {
  AISP_RETURN_IF_ERROR(
      CheckIn(kPart,
              cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   kernel.shared_bytes),
              "asking for shared memory"));
  // Leaves room for a small kernel beside each CTA.
  return CheckIn(
      kPart,
      cudaFuncSetAttribute(kernel.function, cudaFuncAttributePreferredSharedMemoryCarveout,
                           cudaSharedmemCarveoutMaxShared),
      "asking for shared memory");
}

// The smallest number of CTAs at which no CTA has more units than if all took part. Units often
// divide evenly then, so that no CTA works on two tiles and fewer partial sums are exchanged.
uint32_t Chains::FewestCtas(int32_t units) const {
  return static_cast<uint32_t>(DivideUp(units, DivideUp(units, multiprocessors_)));
}

// A CTA may publish sums of two tiles.
int64_t Chains::PartFloats(const StreamKernel& kernel) const {
  return int64_t{2} * multiprocessors_ * kernel.rows * kernel.tokens;
}

float* Chains::squares(size_t layer) const {
  return reinterpret_cast<float*>(region_ + kCounterBytes + layer * kSquareBytes);
}
float* Chains::parts() const { return squares(kMaxChainSteps); }

Status Chains::SetRegion(void* memory, cudaStream_t stream) {
  region_ = static_cast<char*>(memory);
  AISP_RETURN_IF_ERROR(
      CheckIn(kPart, cudaMemsetAsync(region_, 0, kCounterBytes, stream), "clearing the workspace"));
  static_assert(kChainNoSum == 0xffffffffu);
  return CheckIn(kPart, cudaMemsetAsync(parts(), 0xff, part_bytes_, stream),
                 "clearing the workspace");
}

Result<ChainStepParams> Chains::LayerOf(const StreamKernel& kernel, const ChainStep& step) const {
  const LinearCall& call = step.call;
  const PackedWeight& w = *call.weight;
  ChainStepParams params;
  params.p = ParamsOf(call, kernel);
  AISP_ASSIGN_OR_RETURN(params.input,
                        maps_.Box(call.x, 2, w.k, call.rows, kernel.input_box_k, kernel.tokens));
  if (kernel.weight_box_k > 0) {
    AISP_ASSIGN_OR_RETURN(params.weight, maps_.Box(w.data, w.format == WeightFormat::kBf16 ? 2 : 1,
                                                   w.k, w.n, kernel.weight_box_k, kernel.rows));
  }
  return params;
}

void Chains::Follow(const StreamKernel& kernel, const ChainStep& step, size_t layer,
                    ChainStepParams& before, ChainStepParams& params) const {
  params.input_ready = ReadyCount(kernel, before.p);
  if (step.norm_weight == nullptr) return;
  before.gain = step.norm_weight;
  before.normed = static_cast<__nv_bfloat16*>(const_cast<void*>(step.call.x));
  before.squares = squares(layer - 1);
  params.input_squares = before.squares;
  params.epsilon = step.norm_epsilon;
}

Status Chains::Launch(std::span<const ChainStep> steps, const int32_t* adapter_of_row,
                      cudaStream_t stream) const {
  const LinearCall& first = steps[0].call;
  const bool adapted = std::any_of(steps.begin(), steps.end(),
                                   [](const ChainStep& step) { return step.adapters != nullptr; });
  const WeightFormat format = first.weight->format;
  if (adapted && (format != WeightFormat::kBf16 || adapter_of_row == nullptr))
    return Internal("layers in one launch with adapters that it does not take");
  const StreamKernel* const kernel =
      FindKernel(adapted ? AdaptedBf16ChainKernels() : ChainKernels(format), first.rows);
  if (kernel == nullptr || region_ == nullptr)
    return Internal("linear layers in one launch that no kernel takes");
  return adapted ? LaunchAdapted(*kernel, steps, adapter_of_row, stream)
                 : LaunchPlain(*kernel, steps, stream);
}

Status Chains::LaunchPlain(const StreamKernel& kernel, std::span<const ChainStep> steps,
                           cudaStream_t stream) const {
  ChainParams chain;
  chain.count = static_cast<int32_t>(steps.size());
  chain.counters = counters();
  chain.parts = parts();
  for (size_t i = 0; i < steps.size(); ++i) {
    AISP_ASSIGN_OR_RETURN(chain.steps[i], LayerOf(kernel, steps[i]));
    if (FewCtas(kernel)) chain.steps[i].most_ctas = FewestCtas(chain.steps[i].p.units);
    if (i > 0) Follow(kernel, steps[i], i, chain.steps[i - 1], chain.steps[i]);
  }
  return Run(kernel, &chain, stream);
}

// v = x down^T: a step of its own that reads the same input.
Result<AdaptedStepParams> Chains::SumsOf(const StreamKernel& kernel, const ChainStep& step,
                                         const ChainStepParams& layer,
                                         const int32_t* adapter_of_row) const {
  const ChainAdapters& adapters = *step.adapters;
  const int64_t k = step.call.weight->k;
  AdaptedStepParams sums;
  sums.p = layer.p;
  sums.p.bias = nullptr;
  sums.p.y = adapters.v;
  sums.p.y_stride = adapters.width;
  sums.p.n = adapters.width;
  sums.p.units = DivideUp(adapters.width, kernel.rows) * layer.p.k_units;
  sums.p.store = Store::kBf16;
  sums.input = layer.input;
  AISP_ASSIGN_OR_RETURN(sums.weight, maps_.Box(adapters.down, 2, k, adapters.width,
                                               kernel.weight_box_k, kernel.rows));
  sums.own_units = layer.p.k_units;
  sums.adapter_columns = adapters.columns;
  sums.adapter_of_row = adapter_of_row;
  sums.most_ctas = static_cast<uint32_t>(DivideUp(sums.p.units, kUnitsOfSums));
  return sums;
}

// Extends the layer's K by v and up.
Status Chains::AddAdapters(const StreamKernel& kernel, const ChainStep& step,
                           AdaptedStepParams& params, const AdaptedStepParams& sums) const {
  const ChainAdapters& adapters = *step.adapters;
  const int32_t tiles = params.p.units / params.p.k_units;
  params.p.k_units += DivideUp(adapters.width, kernel.stage_k);
  params.p.units = tiles * params.p.k_units;
  params.v_ready = ReadyCount(kernel, sums.p);
  AISP_ASSIGN_OR_RETURN(params.v, maps_.Box(adapters.v, 2, adapters.width, step.call.rows,
                                            kernel.input_box_k, kernel.tokens));
  AISP_ASSIGN_OR_RETURN(params.up, maps_.Box(adapters.up, 2, adapters.width, params.p.n,
                                             kernel.weight_box_k, kernel.rows));
  return {};
}

Status Chains::LaunchAdapted(const StreamKernel& kernel, std::span<const ChainStep> steps,
                             const int32_t* adapter_of_row, cudaStream_t stream) const {
  AdaptedChainParams chain;
  chain.counters = counters();
  chain.parts = parts();
  chain.parts_of_step = PartFloats(kernel);
  int32_t count = 0, before = -1;
  for (size_t i = 0; i < steps.size(); ++i) {
    AdaptedStepParams layer;
    AISP_ASSIGN_OR_RETURN(static_cast<ChainStepParams&>(layer), LayerOf(kernel, steps[i]));
    layer.own_units = layer.p.k_units;
    layer.input_step = before;
    if (before >= 0) Follow(kernel, steps[i], i, chain.steps[before], layer);
    if (steps[i].adapters != nullptr) {
      AdaptedStepParams& sums = chain.steps[count++];
      AISP_ASSIGN_OR_RETURN(sums, SumsOf(kernel, steps[i], layer, adapter_of_row));
      sums.input_step = layer.input_step;
      sums.input_ready = layer.input_ready;
      AISP_RETURN_IF_ERROR(AddAdapters(kernel, steps[i], layer, sums));
    }
    before = count;
    chain.steps[count++] = layer;
  }
  chain.count = count;
  return Run(kernel, &chain, stream);
}

Status Chains::Run(const StreamKernel& kernel, void* params, cudaStream_t stream) const {
  void* arguments[] = {params};
  return CheckIn(kPart,
                 LaunchShaped(kernel.function,
                              {multiprocessors_, kernel.threads,
                               static_cast<size_t>(kernel.shared_bytes), overlap_},
                              arguments, stream),
                 "launching");
}

}  // namespace aisp::cuda
