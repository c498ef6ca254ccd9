#include "kernels/cuda/block_scaled.h"

#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "kernels/cuda/block_scaled_kernels.h"
#include "kernels/cuda/rows.h"

namespace aisp::cuda {
namespace {

constexpr size_t kWorkspace = size_t{32} << 20;
constexpr int64_t kColumnsUnit = 64;  // a tile of scales
constexpr int64_t kRowsUnit = 16;     // keeps parts of an output aligned

Status Check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return Internal(fmt::format("cuBLASLt, {}: {}", what, cublasLtGetStatusString(status)));
}

// The descriptors of one product: y^T [n, rows] = scale * W [n, k] x^T [k, rows] (+ y^T),
// column-major for the library.
struct Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};

  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    if (y != nullptr) cublasLtMatrixLayoutDestroy(y);
    if (x != nullptr) cublasLtMatrixLayoutDestroy(x);
    if (weight != nullptr) cublasLtMatrixLayoutDestroy(weight);
    if (operation != nullptr) cublasLtMatmulDescDestroy(operation);
  }
  Status Set(cublasLtMatmulDescAttributes_t attribute, const auto& value) const {
    return Check(cublasLtMatmulDescSetAttribute(operation, attribute,
                                                static_cast<const void*>(&value), sizeof(value)),
                 "setting an attribute");
  }
};

class BlockScaledImpl final : public BlockScaledLinear {
 public:
  BlockScaledImpl(Device& device, CudaStream& stream, int32_t max_rows)
      : device_(device), stream_(stream), max_rows_(max_rows) {}
  ~BlockScaledImpl() override {
    plans_.clear();
    if (handle_ != nullptr) cublasLtDestroy(handle_);
  }

  Status Open() {
    AISP_RETURN_IF_ERROR(Check(cublasLtCreate(&handle_), "creating a handle"));
    AISP_ASSIGN_OR_RETURN(workspace_, device_.Allocate(kWorkspace, MemoryKind::kDevice));
    return {};
  }

  Result<std::unique_ptr<BlockScaledWeight>> Pack(const LinearSource& source) override {
    AISP_RETURN_IF_ERROR(CheckSource(source));
    auto weight = std::make_unique<BlockScaledWeight>();
    weight->epilogue = source.epilogue;
    weight->output = source.epilogue == Epilogue::kAccumulate ? DType::kF32 : source.output_dtype;
    weight->k = 2 * source.parts[0].cols();
    for (size_t i = 0; i < source.parts.size(); ++i) {
      AISP_RETURN_IF_ERROR(PackPart(source.parts[i], source.scales[i], weight.get()));
    }
    AISP_RETURN_IF_ERROR(GrowScratch(*weight));
    // Unsupported shapes are refused here rather than in the first step.
    const bool gated = source.epilogue == Epilogue::kGatedSilu;
    for (const BlockScaledWeight::Part& part : weight->parts) {
      AISP_RETURN_IF_ERROR(
          PlanFor(part.n, weight->k, max_rows_, weight->n, gated ? DType::kF32 : weight->output));
    }
    return weight;
  }

  Status Run(const BlockScaledWeight& w, const LinearParams& p, cudaStream_t stream) override {
    auto* codes = static_cast<uint8_t*>(codes_.data());
    auto* scales = static_cast<uint8_t*>(scales_.data());
    AISP_RETURN_IF_ERROR(LaunchQuantizeBlockScaled(p.x.data, p.rows, w.k, codes, scales, stream));
    const bool gated = w.epilogue == Epilogue::kGatedSilu;
    const DType type = gated ? DType::kF32 : w.output;
    auto* y = static_cast<std::byte*>(gated ? wide_.data() : p.y.data);
    for (const BlockScaledWeight::Part& part : w.parts) {
      AISP_ASSIGN_OR_RETURN(const Plan* plan, PlanFor(part.n, w.k, p.rows, w.n, type));
      AISP_RETURN_IF_ERROR(Multiply(*plan, part, y, w.epilogue == Epilogue::kAccumulate, stream));
      y += static_cast<size_t>(part.n) * DTypeBytes(type);
    }
    if (!gated) return {};
    const TensorView both = TensorView::Dense(wide_.data(), DType::kF32, {p.rows, w.n});
    return LaunchSiluMul({both, p.y, p.rows}, stream);
  }

 private:
  static Status CheckSource(const LinearSource& source) {
    const auto refuse = [](std::string what) {
      return Unimplemented(fmt::format(
          "block-scaled NVFP4 {}; checkpoints stored as NVFP4 run here, others with --device cpu",
          what));
    };
    if (source.scales.empty()) return refuse("does not quantise on load");
    if (std::any_of(source.biases.begin(), source.biases.end(),
                    [](const TensorView& b) { return b.data != nullptr; }))
      return refuse("has no bias");
    for (const TensorView& part : source.parts) {
      if (2 * part.cols() % kColumnsUnit != 0 || part.rows() % kRowsUnit != 0) {
        return refuse(fmt::format("takes columns in multiples of {} and rows of {}, not [{}, {}]",
                                  kColumnsUnit, kRowsUnit, part.rows(), 2 * part.cols()));
      }
    }
    return {};
  }

  Status PackPart(const TensorView& codes, const PartScales& scales, BlockScaledWeight* weight) {
    BlockScaledWeight::Part part;
    part.n = codes.rows();
    part.scale = scales.scale;
    const auto groups = static_cast<size_t>(part.n * (weight->k / kScaleGroup));
    AISP_ASSIGN_OR_RETURN(part.codes, device_.Allocate(codes.bytes(), MemoryKind::kDevice));
    AISP_ASSIGN_OR_RETURN(
        part.scales, device_.Allocate(TiledScaleBytes(part.n, weight->k), MemoryKind::kDevice));
    AISP_ASSIGN_OR_RETURN(const Buffer plain, device_.Allocate(groups, MemoryKind::kDevice));
    AISP_RETURN_IF_ERROR(device_.Copy(part.codes.data(), codes.data, codes.bytes(), stream_));
    AISP_RETURN_IF_ERROR(device_.Copy(plain.data(), scales.group_scales, groups, stream_));
    AISP_RETURN_IF_ERROR(LaunchTileScales(static_cast<const uint8_t*>(plain.data()), part.n,
                                          weight->k, static_cast<uint8_t*>(part.scales.data()),
                                          stream_.handle));
    AISP_RETURN_IF_ERROR(device_.Synchronize(stream_));
    weight->n += part.n;
    weight->parts.push_back(std::move(part));
    return {};
  }

  // Scratch for the widest weight.
  Status GrowScratch(const BlockScaledWeight& w) {
    const auto grow = [&](Buffer& buffer, size_t bytes) -> Status {
      if (buffer.bytes() >= bytes) return {};
      buffer = {};
      AISP_ASSIGN_OR_RETURN(buffer, device_.Allocate(bytes, MemoryKind::kDevice));
      return {};
    };
    const auto rows = static_cast<size_t>(max_rows_);
    AISP_RETURN_IF_ERROR(grow(codes_, rows * static_cast<size_t>(w.k) / 2));
    AISP_RETURN_IF_ERROR(grow(scales_, TiledScaleBytes(max_rows_, w.k)));
    if (w.epilogue != Epilogue::kGatedSilu) return {};
    return grow(wide_, rows * static_cast<size_t>(w.n) * sizeof(float));
  }

  Result<const Plan*> PlanFor(int64_t n, int64_t k, int32_t rows, int64_t stride, DType output) {
    auto& plan = plans_[{n, k, rows, stride, output}];
    if (plan != nullptr) return plan.get();
    auto made = std::make_unique<Plan>();
    const auto width = static_cast<uint64_t>(k);
    AISP_RETURN_IF_ERROR(
        Check(cublasLtMatmulDescCreate(&made->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "plan"));
    AISP_RETURN_IF_ERROR(Check(cublasLtMatrixLayoutCreate(&made->weight, CUDA_R_4F_E2M1, width,
                                                          static_cast<uint64_t>(n), k),
                               "layout"));
    AISP_RETURN_IF_ERROR(Check(
        cublasLtMatrixLayoutCreate(&made->x, CUDA_R_4F_E2M1, width, static_cast<uint64_t>(rows), k),
        "layout"));
    AISP_RETURN_IF_ERROR(Check(
        cublasLtMatrixLayoutCreate(&made->y, output == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF,
                                   static_cast<uint64_t>(n), static_cast<uint64_t>(rows), stride),
        "layout"));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cublasLtMatmulMatrixScale_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
    AISP_RETURN_IF_ERROR(made->Set(CUBLASLT_MATMUL_DESC_TRANSA, transposed));
    AISP_RETURN_IF_ERROR(made->Set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode));
    AISP_RETURN_IF_ERROR(made->Set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode));
    AISP_RETURN_IF_ERROR(ChooseAlgorithm(made.get(), n, k, rows));
    plan = std::move(made);
    return plan.get();
  }

  Status ChooseAlgorithm(Plan* plan, int64_t n, int64_t k, int32_t rows) {
    cublasLtMatmulPreference_t preference = nullptr;
    AISP_RETURN_IF_ERROR(Check(cublasLtMatmulPreferenceCreate(&preference), "preference"));
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &kWorkspace, sizeof(kWorkspace));
    cublasLtMatmulHeuristicResult_t choice{};
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_, plan->operation, plan->weight, plan->x, plan->y,
                                       plan->y, preference, 1, &choice, &found);
    cublasLtMatmulPreferenceDestroy(preference);
    if (status != CUBLAS_STATUS_SUCCESS || found == 0) {
      return Unimplemented(fmt::format(
          "cuBLASLt has no block-scaled NVFP4 product of [{}, {}] and {} rows on this GPU", n, k,
          rows));
    }
    plan->algorithm = choice.algo;
    return {};
  }

  Status Multiply(const Plan& plan, const BlockScaledWeight::Part& part, void* y, bool add,
                  cudaStream_t stream) {
    const void* weight_scales = part.scales.data();
    const void* x_scales = scales_.data();
    AISP_RETURN_IF_ERROR(plan.Set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, weight_scales));
    AISP_RETURN_IF_ERROR(plan.Set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x_scales));
    const float beta = add ? 1.0f : 0.0f;
    return Check(cublasLtMatmul(handle_, plan.operation, &part.scale, part.codes.data(),
                                plan.weight, codes_.data(), plan.x, &beta, y, plan.y, y, plan.y,
                                &plan.algorithm, workspace_.data(), kWorkspace, stream),
                 "multiplying");
  }

  using Key = std::tuple<int64_t, int64_t, int32_t, int64_t, DType>;

  Device& device_;
  CudaStream& stream_;
  const int32_t max_rows_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, std::unique_ptr<Plan>> plans_;
  Buffer workspace_, codes_, scales_, wide_;
};

}  // namespace

size_t BlockScaledWeight::bytes() const {
  size_t total = 0;
  for (const Part& part : parts) total += part.codes.bytes() + part.scales.bytes();
  return total;
}

Result<std::unique_ptr<BlockScaledLinear>> BlockScaledLinear::Create(Device& device,
                                                                     CudaStream& load_stream,
                                                                     int32_t max_rows) {
  auto linear = std::make_unique<BlockScaledImpl>(device, load_stream, max_rows);
  AISP_RETURN_IF_ERROR(linear->Open());
  return linear;
}

}  // namespace aisp::cuda
