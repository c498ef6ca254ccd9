#include "kernels/cuda/linear/gemm.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/linear/host_launch.h"
#include "kernels/cuda/linear/linear_kernels.h"
#include "kernels/cuda/linear/nvfp4_layout.h"

namespace aisp::cuda {
namespace {

// Tokens whose tiles are processed for all weight rows together: their activations stay in L2 while
// the weight streams past.
constexpr int kGroupTokens = 2048;

constexpr std::string_view kPart = "matrix product";  // in errors

int32_t DivideUp(int64_t a, int64_t b) { return static_cast<int32_t>((a + b - 1) / b); }

bool IsF32(Store store) { return store == Store::kF32 || store == Store::kAccumulateF32; }

int64_t StrideOf(const LinearCall& call) {
  return call.y_stride > 0 ? call.y_stride : call.weight->out_features();
}

int32_t StagesOf(const PackedWeight& w, const GemmKernel& kernel) {
  return DivideUp(w.k, kernel.step_k) * (kernel.step_k / kernel.stage_k);
}

size_t SplitIndex(int splits) {
  return static_cast<size_t>(std::find(std::begin(kGemmSplits), std::end(kGemmSplits), splits) -
                             std::begin(kGemmSplits));
}

Status AskForShared(const void* function, int bytes) {
  if (function == nullptr) return {};
  return CheckIn(kPart,
                 cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                 "asking for shared memory");
}

// Clusters of a split kernel that can run at once: a cluster must be within one partition of the
// device.
Result<int> ActiveClusters(const GemmKernel& kernel, size_t split, int multiprocessors) {
  const auto ctas = static_cast<unsigned>(kGemmCluster * kGemmSplits[split]);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(multiprocessors) / ctas * ctas);
  config.blockDim = dim3(kGemmThreads);
  config.dynamicSmemBytes = static_cast<size_t>(kernel.shared_bytes);
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {ctas, 1, 1};
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  AISP_RETURN_IF_ERROR(
      CheckIn(kPart, cudaOccupancyMaxActiveClusters(&clusters, kernel.split[split], &config),
              "counting clusters"));
  return clusters;
}

}  // namespace

std::span<const GemmKernel> GemmKernels() {
  static const std::vector<GemmKernel> all = [] {
    std::vector<GemmKernel> kernels;
    for (const auto some :
         {Bf16GemmKernels(), Fp8GemmKernels(), Fp8Bf16GemmKernels(), Nvfp4GemmKernels()}) {
      kernels.insert(kernels.end(), some.begin(), some.end());
    }
    return kernels;
  }();
  return all;
}

Result<Gemm> Gemm::Create() {
  Gemm gemm;
  cudaDriverEntryPointQueryResult found = {};
  void* encode = nullptr;
  AISP_RETURN_IF_ERROR(CheckIn(kPart,
                               cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode,
                                                                12000, cudaEnableDefault, &found),
                               "finding cuTensorMapEncodeTiled"));
  gemm.encode_ = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(encode);
  int device = 0;
  int multiprocessors = 0;
  AISP_RETURN_IF_ERROR(CheckIn(kPart, cudaGetDevice(&device), "no device"));
  AISP_RETURN_IF_ERROR(CheckIn(
      kPart, cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
      "looking at the device"));
  gemm.multiprocessors_ = multiprocessors;
  gemm.clusters_ = multiprocessors / kGemmCluster;
  for (const GemmKernel& kernel : GemmKernels()) {
    auto& active = gemm.split_clusters_.emplace_back();
    AISP_RETURN_IF_ERROR(AskForShared(kernel.function, kernel.shared_bytes));
    AISP_RETURN_IF_ERROR(AskForShared(kernel.apart, kernel.shared_bytes));
    for (const void* const function : kernel.split)
      AISP_RETURN_IF_ERROR(AskForShared(function, kernel.shared_bytes));
    for (size_t i = 0; i < active.size() && kernel.split[i] != nullptr; ++i) {
      AISP_ASSIGN_OR_RETURN(active[i], ActiveClusters(kernel, i, multiprocessors));
    }
  }
  return gemm;
}

bool Gemm::Supports(const LinearCall& call) const {
  const int64_t stride_bytes = StrideOf(call) * (IsF32(call.store) ? 4 : 2);
  const bool fp8 =
      call.weight->format == WeightFormat::kFp8 || call.weight->format == WeightFormat::kFp8Block;
  return (fp8 || call.input == InputFormat::kBf16) && stride_bytes % 16 == 0 &&
         reinterpret_cast<uintptr_t>(call.y) % 16 == 0;
}

size_t Gemm::PartBytes() const {
  return static_cast<size_t>(clusters_) * kGemmCluster * kGemmApartQuads * kGemmConsumers * 16;
}

Gemm::Division Gemm::Divide(const LinearCall& call, int kernel) const {
  const GemmKernel& instance = GemmKernels()[static_cast<size_t>(kernel)];
  const int wanted = GemmSplits(TraitsOf(call), call.rows, kernel, multiprocessors_);
  const int tiles =
      DivideUp(call.rows, instance.tokens) * DivideUp(call.weight->n, kGemmCluster * kGemmRows);
  Division division{wanted, false};
  const auto& active = split_clusters_[static_cast<size_t>(kernel)];
  while (division.splits > 1 && tiles > active[SplitIndex(division.splits)]) --division.splits;
  if (wanted > 1 && division.splits == 1 && instance.apart != nullptr && parts_ != nullptr &&
      2 * tiles <= clusters_)
    division = {2, true};
  return division;
}

double Gemm::Estimate(const LinearCall& call, int kernel) const {
  return GemmEstimate(TraitsOf(call), call.rows, kernel, multiprocessors_);
}

std::vector<int> Gemm::Instances(const LinearCall& call) const {
  return GemmInstancesOf(TraitsOf(call).format, call.input == InputFormat::kFp8);
}

int Gemm::Choose(const LinearCall& call) const {
  return ExpectedGemm(TraitsOf(call), call.rows, call.input == InputFormat::kFp8, multiprocessors_);
}

Status CheckGemmInstances() {
  const auto same = [](const GemmKernel& kernel, const GemmInstance& instance) {
    constexpr std::array kOfRows = {GemmFormat::kBf16, GemmFormat::kFp8Bf16,
                                    GemmFormat::kFp8BlockBf16, GemmFormat::kNvfp4};
    const auto format = static_cast<size_t>(instance.format);
    const GemmFormat wanted = !instance.fp8_rows                            ? kOfRows[format]
                              : instance.format == aisp::WeightFormat::kFp8 ? GemmFormat::kFp8
                                                                            : GemmFormat::kFp8Block;
    return kernel.format == wanted && kernel.tokens == instance.tokens &&
           kernel.stage_k == instance.stage_k && kernel.step_k == instance.step_k;
  };
  const auto kernels = GemmKernels();
  const auto instances = GemmInstances();
  if (std::equal(kernels.begin(), kernels.end(), instances.begin(), instances.end(), same))
    return {};
  return Internal("kernels/cuda/table/instances.cc has other sizes than the kernels for many rows");
}

Result<CUtensorMap> Gemm::Map(const void* data, CUtensorMapDataType type, int64_t columns,
                              int64_t rows, int64_t stride_bytes, int box_columns, int box_rows,
                              CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion) const {
  CUtensorMap map = {};
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride_bytes)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_columns),
                             static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  const CUresult result =
      encode_(&map, type, 2, const_cast<void*>(data), sizes, strides, box, steps,
              CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return Internal("matrix product: describing a matrix of " + std::to_string(rows) + " x " +
                    std::to_string(columns) + " failed with CUresult " + std::to_string(result));
  }
  return map;
}

Result<CUtensorMap> Gemm::OutputMap(const LinearCall& call) const {
  const bool f32 = IsF32(call.store);
  const bool gated = call.store == Store::kSiluMulBf16;
  return Map(call.y, f32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
             call.weight->out_features(), call.rows, StrideOf(call) * (f32 ? 4 : 2),
             f32 || gated ? 32 : 64, GemmStoreTokens(call.store),
             gated ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B);
}

Status Gemm::Launch(const LinearCall& call, int kernel, bool overlap, cudaStream_t stream) const {
  const GemmKernel& instance = GemmKernels()[static_cast<size_t>(kernel)];
  const PackedWeight& w = *call.weight;
  const bool x8 = call.input == InputFormat::kFp8;
  const auto type = [](bool fp8) {
    return fp8 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  };
  AISP_ASSIGN_OR_RETURN(CUtensorMap x,
                        Map(call.x, type(x8), w.k, call.rows, w.k * (x8 ? 1 : 2), instance.stage_k,
                            instance.tokens / 2, CU_TENSOR_MAP_SWIZZLE_128B));
  CUtensorMap weight = x;
  if (instance.weight_row_bytes > 0) {
    const bool w8 = w.format != WeightFormat::kBf16;
    // With few tokens the weight comes at memory's rate, which promotion lowers.
    const auto promotion = instance.tokens <= 64 ? CU_TENSOR_MAP_L2_PROMOTION_NONE
                                                 : CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
    AISP_ASSIGN_OR_RETURN(
        weight, Map(w.data, type(w8), w.k, w.n, w.k * (w8 ? 1 : 2), instance.stage_k, kGemmRows,
                    instance.weight_row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                    : CU_TENSOR_MAP_SWIZZLE_128B,
                    promotion));
  }
  AISP_ASSIGN_OR_RETURN(CUtensorMap y, OutputMap(call));
  GemmParams p;
  p.nvfp4 = static_cast<const uint8_t*>(w.data);
  p.scales = w.scales;
  p.bias = w.bias;
  p.x_scales = call.x_scales;
  p.group_bytes = Nvfp4GroupBytes(w.k);
  p.row_groups = DivideUp(w.n, kNvfp4GroupRows);
  p.n = static_cast<int32_t>(w.n);
  p.rows = call.rows;
  const auto [splits, apart] = Divide(call, kernel);
  p.k_units = StagesOf(w, instance);
  const int32_t step = instance.step_k / instance.stage_k;
  p.part_units = DivideUp(p.k_units / step, splits) * step;
  p.scale_columns = DivideUp(w.k, 128);
  p.token_tiles = DivideUp(call.rows, instance.tokens);
  p.row_pairs = DivideUp(w.n, kGemmCluster * kGemmRows);
  p.group_tokens = std::max(1, kGroupTokens / instance.tokens);
  p.store = call.store;
  p.parts = parts_;
  p.poll = call.poll;

  const int tiles = p.token_tiles * p.row_pairs;
  const int pairs = splits > 1 ? tiles * splits : std::min(clusters_, tiles);
  const void* const function = apart        ? instance.apart
                               : splits > 1 ? instance.split[SplitIndex(splits)]
                                            : instance.function;
  void* arguments[] = {&weight, &x, &y, &p};
  return CheckIn(kPart,
                 LaunchShaped(function,
                              {pairs * kGemmCluster, kGemmThreads,
                               static_cast<size_t>(instance.shared_bytes), overlap},
                              arguments, stream),
                 "launching");
}

std::string Gemm::Describe(int kernel) const {
  const GemmKernel& k = GemmKernels()[static_cast<size_t>(kernel)];
  return "gemm " + std::to_string(kGemmCluster * kGemmRows) + "x" + std::to_string(k.tokens) +
         ", " + std::to_string(k.stages) + " stages of " + std::to_string(k.stage_k);
}

}  // namespace aisp::cuda
