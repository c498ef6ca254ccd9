#include "kernels/cuda/linear/many_rows.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>

#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/linear/host_launch.h"
#include "kernels/cuda/linear/pack_kernels.h"
#include "kernels/cuda/linear/quantize.h"

namespace aisp::cuda {
namespace {

// The workspace: parts of products (gemm_apart.cuh); cuBLASLt's own; activations in FP8 with scales
// or, in the same place, a part of the weight converted to bf16; gate and up before SiLU.
constexpr size_t kLtBytes = size_t{32} << 20;
constexpr size_t kExpandBytes = size_t{96} << 20;
// Between our instances, larger tiles win within 2 %: they read less from L2, and the clock of a
// card under a step's load falls with the power that it draws.
constexpr float kLargerTiles = 1.02f;
constexpr int32_t kGatedRows = 2048;  // of a product whose gate and up are stored before SiLU

constexpr size_t Align(size_t bytes) { return (bytes + 255) / 256 * 256; }

bool IsFp8(WeightFormat format) {
  return format == WeightFormat::kFp8 || format == WeightFormat::kFp8Block;
}

bool NeedsExpansion(const LinearCall& call) {
  return cuda::NeedsExpansion(TraitsOf(call).format, call.input == InputFormat::kFp8);
}

size_t OutputBytes(Store store) {
  return store == Store::kBf16 || store == Store::kSiluMulBf16 ? 2 : 4;
}

int64_t StrideOf(const LinearCall& call) {
  return call.y_stride > 0 ? call.y_stride : call.weight->out_features();
}

// Weight rows converted at a time: at least 16, in as few pieces as fit.
int64_t ExpandedRows(const PackedWeight& weight) {
  const int64_t row_bytes = weight.k * 2;
  const int64_t fitting = std::max<int64_t>(16, static_cast<int64_t>(kExpandBytes) / row_bytes);
  return std::min(weight.n, fitting / 16 * 16);
}

size_t ExpandBytes(const PackedWeight& weight) {
  if (weight.format == WeightFormat::kBf16) return 0;
  return Align(static_cast<size_t>(ExpandedRows(weight)) * static_cast<size_t>(weight.k) * 2);
}

std::string KeyOf(const LinearCall& call) {
  return TuningProfile::KeyOf(TraitsOf(call), call.input == InputFormat::kFp8);
}

constexpr std::string_view kPart = "linear layer of many rows";  // in errors

}  // namespace

Result<std::unique_ptr<ManyRows>> ManyRows::Create(const LinearOptions& options,
                                                   int multiprocessors) {
  std::unique_ptr<ManyRows> many(new ManyRows(options, multiprocessors));
  AISP_ASSIGN_OR_RETURN(many->gemm_, Gemm::Create());
  AISP_ASSIGN_OR_RETURN(many->blas_, BlasLt::Create(options.tuning_cache));
  if (!options.tuning_cache.empty()) {
    std::ifstream file(options.tuning_cache);
    many->profile_.Read(file);
  }
  return many;
}

size_t ManyRows::GatedBytes(const PackedWeight& weight) const {
  if (!weight.gated) return 0;
  return Align(static_cast<size_t>(std::min(options_.max_rows, kGatedRows)) *
               static_cast<size_t>(weight.n) * 2);
}

size_t ManyRows::QuantisedBytes(const PackedWeight& weight) const {
  if (!IsFp8(weight.format) || options_.fp8_activation_rows == 0) return 0;
  const auto rows = static_cast<size_t>(options_.max_rows);
  return Align(rows * sizeof(float)) + Align(rows * static_cast<size_t>(weight.k));
}

size_t ManyRows::WorkspaceBytes(const PackedWeight& weight) const {
  return Align(gemm_.PartBytes()) + kLtBytes +
         std::max(ExpandBytes(weight), QuantisedBytes(weight)) + GatedBytes(weight);
}

Status ManyRows::SetWorkspace(void* memory, size_t bytes, cudaStream_t stream) {
  const size_t part_bytes = gemm_.PartBytes();
  workspace_ = static_cast<char*>(memory) + Align(part_bytes);
  workspace_bytes_ = bytes;
  if (bytes < part_bytes) return ResourceExhausted("no room for parts of products");
  gemm_.SetParts(memory);
  static_assert(kGemmNoSum == 0xffffffffu);
  return CheckIn(kPart, cudaMemsetAsync(memory, 0xff, part_bytes, stream),
                 "clearing the workspace");
}

LinearCall ManyRows::Quantised(const LinearCall& call) const {
  LinearCall quantised = call;
  quantised.input = InputFormat::kFp8;
  quantised.x_scales = reinterpret_cast<float*>(workspace_ + kLtBytes);
  quantised.x =
      workspace_ + kLtBytes + Align(static_cast<size_t>(options_.max_rows) * sizeof(float));
  return quantised;
}

Status ManyRows::Launch(const LinearCall& call, int kernel, bool rounds, cudaStream_t stream) {
  if (workspace_bytes_ < WorkspaceBytes(*call.weight)) {
    return ResourceExhausted("a linear layer of " + std::to_string(call.rows) + " rows needs " +
                             std::to_string(WorkspaceBytes(*call.weight)) +
                             " bytes of workspace, has " + std::to_string(workspace_bytes_));
  }
  if (!rounds) return LaunchBy(kernel, call, stream);
  const LinearCall quantised = Quantised(call);
  AISP_RETURN_IF_ERROR(QuantizeRows(call.x, const_cast<void*>(quantised.x),
                                    const_cast<float*>(quantised.x_scales), call.rows,
                                    call.weight->k, stream));
  return LaunchBy(kernel, quantised, stream);
}

bool ManyRows::LtHas(const LinearTraits& w, int32_t rows, bool fp8_rows) {
  const auto key = std::pair(TuningProfile::KeyOf(w, fp8_rows), rows);
  const auto known = lt_has_.find(key);
  if (known != lt_has_.end()) return known->second;
  // Nothing is read: the library only needs sizes, and whether there are scales.
  PackedWeight weight;
  weight.data = workspace_;
  weight.scales = reinterpret_cast<float*>(workspace_);
  weight.format = static_cast<WeightFormat>(w.format);
  weight.gated = w.epilogue == Epilogue::kGatedSilu;
  weight.n = w.n;
  weight.k = w.k;
  LinearCall call;
  call.weight = &weight;
  call.rows = rows;
  call.store = static_cast<Store>(StoreOf(w));
  call.input = fp8_rows ? InputFormat::kFp8 : InputFormat::kBf16;
  call.x = call.y = workspace_;
  call.x_scales = reinterpret_cast<float*>(workspace_);
  weight.has_bias = w.bias;
  const bool has = LaunchLt(call, nullptr, LtUse::kLookUp).has_value();
  lt_has_.emplace(key, has);
  return has;
}

Status ManyRows::LaunchBy(int kernel, const LinearCall& call, cudaStream_t stream) {
  if (kernel != kLt) return gemm_.Launch(call, kernel, options_.overlap, stream);
  return LaunchLt(call, stream, LtUse::kRun);
}

Result<float> ManyRows::TimeBy(int choice, const LinearCall& call, cudaStream_t stream) {
  return BestTimeUs(stream, [&] { return LaunchBy(choice, call, stream); });
}

Status ManyRows::Prepare(const LinearCall& call, cudaStream_t stream) {
  const LinearTraits w = TraitsOf(call);
  const bool given_fp8 = call.input == InputFormat::kFp8;
  const bool rounds = !given_fp8 && options_.fp8_activation_rows > 0 &&
                      call.rows >= options_.fp8_activation_rows && IsFp8(call.weight->format) &&
                      call.weight->n < kHeadRows && SupportsManyRows(w, true);
  const bool fp8_rows = given_fp8 || rounds;
  const LinearCall quantised = rounds ? Quantised(call) : call;
  const std::string key = KeyOf(quantised);
  const auto* known = profile_.Of(key);
  if (known != nullptr && known->contains(call.rows)) return {};
  if (!LtSupports(w, fp8_rows) || !LtHas(w, call.rows, fp8_rows)) return {};
  // Only our instances are possible, and the estimate decides between them.
  if (!GemmSupports(w, fp8_rows)) return LaunchLt(quantised, stream, LtUse::kTune);
  if (NeedsExpansion(quantised)) return {};
  if (rounds) AISP_RETURN_IF_ERROR(Launch(call, kLt, true, stream));  // quantises the rows
  AISP_RETURN_IF_ERROR(LaunchLt(quantised, stream, LtUse::kTune));
  AISP_ASSIGN_OR_RETURN(float best_us, TimeBy(kLt, quantised, stream));
  int best = kLt;
  const int expected = gemm_.Choose(quantised);
  const double limit_us = 1.3 * gemm_.Estimate(quantised, expected);
  for (const int kernel : gemm_.Instances(quantised)) {
    if (gemm_.Estimate(quantised, kernel) > limit_us) continue;
    AISP_ASSIGN_OR_RETURN(const float us, TimeBy(kernel, quantised, stream));
    if (us < best_us * (best == kLt ? 1.0f : kLargerTiles)) {
      best_us = us;
      best = kernel;
    }
  }
  const int tokens =
      best == kLt ? TuningProfile::kLtTokens : GemmKernels()[static_cast<size_t>(best)].tokens;
  profile_.Add(key, call.rows, tokens);
  SaveChoice(key, call.rows, tokens);
  return {};
}

std::string ManyRows::Describe(const LinearCall& call, const LinearChoice& choice) const {
  const LinearCall quantised = choice.rounds ? Quantised(call) : call;
  const std::string prefix = quantised.input == InputFormat::kFp8 ? "FP8 activations, " : "";
  if (choice.kernel == LinearKernel::kGemm) return prefix + gemm_.Describe(choice.instance);
  const int32_t rows = call.weight->gated ? std::min(call.rows, kGatedRows) : call.rows;
  return prefix + (NeedsExpansion(quantised) ? "widened to bf16, " : "") +
         blas_->Describe(LtCall(quantised, 0, rows));
}

// ---- cuBLASLt ----

// Rows [begin, begin + rows) of a call as a product with the whole weight.
LtProduct ManyRows::LtCall(const LinearCall& call, int32_t begin, int32_t rows) const {
  const PackedWeight& w = *call.weight;
  LtProduct p;
  p.fp8 = call.input == InputFormat::kFp8;
  p.weight = w.data;
  p.n = w.n;
  p.k = w.k;
  p.rows = rows;
  p.x = static_cast<const char*>(call.x) +
        static_cast<size_t>(begin) * static_cast<size_t>(w.k) * (p.fp8 ? 1 : 2);
  p.weight_scales = w.scales;
  p.x_scales = call.x_scales == nullptr ? nullptr : call.x_scales + begin;
  p.f32 = OutputBytes(call.store) == 4;
  p.add = call.store == Store::kAccumulateF32 || (w.has_bias && !w.gated);
  if (w.gated) {
    p.y_stride = w.n;
    p.y = workspace_ + kLtBytes + std::max(ExpandBytes(w), QuantisedBytes(w));
  } else {
    p.y_stride = StrideOf(call);
    p.y = static_cast<char*>(call.y) +
          static_cast<size_t>(begin * p.y_stride) * OutputBytes(call.store);
  }
  return p;
}

Status ManyRows::LaunchLt(const LinearCall& call, cudaStream_t stream, LtUse use) {
  const PackedWeight& w = *call.weight;
  const bool launches = use != LtUse::kLookUp;
  if (w.has_bias && !w.gated && launches) {
    SpreadBias(w.bias, call.store == Store::kAccumulateF32, OutputBytes(call.store) == 4, call.rows,
               w.n, call.y, StrideOf(call), stream);
  }
  const int32_t step = w.gated ? kGatedRows : call.rows;
  for (int32_t begin = 0; begin < call.rows; begin += step) {
    const LtProduct product = LtCall(call, begin, std::min(step, call.rows - begin));
    AISP_RETURN_IF_ERROR(MultiplyLt(w, product, NeedsExpansion(call), stream, use));
    if (w.gated && launches) {
      SiluMulInterleaved(
          product.y, w.bias, product.rows, w.n,
          static_cast<char*>(call.y) + static_cast<size_t>(begin * StrideOf(call)) * 2,
          StrideOf(call), stream);
    }
  }
  return launches ? CheckIn(kPart, cudaGetLastError(), "launching") : Status{};
}

Status ManyRows::MultiplyLt(const PackedWeight& w, const LtProduct& product, bool expand,
                            cudaStream_t stream, LtUse use) {
  const auto run = [&](const LtProduct& p) {
    switch (use) {
      case LtUse::kTune:
        return blas_->Tune(p, workspace_, kLtBytes, stream);
      case LtUse::kLookUp:
        return blas_->LookUp(p, kLtBytes);
      case LtUse::kRun:
        break;
    }
    return blas_->Run(p, workspace_, kLtBytes, stream);
  };
  if (!expand) return run(product);
  void* const expanded = workspace_ + kLtBytes;
  const int64_t step = ExpandedRows(w);
  for (int64_t begin = 0; begin < w.n; begin += step) {
    LtProduct piece = product;
    piece.n = std::min(step, w.n - begin);
    piece.weight = expanded;
    piece.y = static_cast<char*>(product.y) + static_cast<size_t>(begin) * (product.f32 ? 4 : 2);
    if (use != LtUse::kLookUp) ExpandRows(w, begin, piece.n, expanded, stream);
    AISP_RETURN_IF_ERROR(run(piece));
  }
  return {};
}

// ---- the cache: cuBLASLt's lines (blas_lt.cc) and "choice.4 KEY ROWS TOKENS" ----

void ManyRows::SaveChoice(const std::string& key, int32_t rows, int tokens) const {
  if (options_.tuning_cache.empty()) return;
  // If the cache cannot be written, the next start tunes again; nothing else changes.
  std::ofstream(options_.tuning_cache, std::ios::app)
      << TuningProfile::kMark << ' ' << key << ' ' << rows << ' ' << tokens << '\n';
}

}  // namespace aisp::cuda
