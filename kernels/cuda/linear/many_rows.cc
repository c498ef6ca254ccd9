#include "kernels/cuda/linear/many_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <sstream>

#include "kernels/cuda/linear/pack_kernels.h"
#include "kernels/cuda/linear/quantize.h"

namespace aisp::cuda {
namespace {

// The workspace: activations in FP8 and their scales or, in the same place, a part of the weight widened to bf16; gate and up before
// SiLU; cuBLASLt's own.
constexpr size_t kLtBytes = size_t{32} << 20;
constexpr size_t kExpandBytes = size_t{96} << 20;
constexpr int32_t kGatedRows = 2048;  // of a product whose gate and up are stored before SiLU
constexpr int kTimedRuns = 5;
// Measured (docs/performance.md): from these rows on ours are expected to be faster, where nothing near was measured.
constexpr int32_t kOwnRows = 640;
constexpr int32_t kOwnGatedRows = 256;
constexpr double kNear = 1.42;  // ratio of numbers of rows
constexpr const char* kCacheMark = "choice";
constexpr int kLtTokens =
    0;  // a choice is the number of tokens of our instance, or this for cuBLASLt

constexpr size_t Align(size_t bytes) { return (bytes + 255) / 256 * 256; }

bool IsFp8(WeightFormat format) {
  return format == WeightFormat::kFp8 || format == WeightFormat::kFp8Block;
}

bool NeedsExpansion(const LinearCall& call) {
  const WeightFormat format = call.weight->format;
  return format != WeightFormat::kBf16 &&
         !(format == WeightFormat::kFp8 && call.input == InputFormat::kFp8);
}

size_t OutputBytes(Store store) {
  return store == Store::kBf16 || store == Store::kSiluMulBf16 ? 2 : 4;
}

int64_t StrideOf(const LinearCall& call) {
  return call.y_stride > 0 ? call.y_stride : call.weight->out_features();
}

// Rows of a weight that are widened at a time: 16 or more, as few pieces as fit.
int64_t ExpandedRows(const PackedWeight& weight) {
  const int64_t row_bytes = weight.k * 2;
  const int64_t fitting = std::max<int64_t>(16, static_cast<int64_t>(kExpandBytes) / row_bytes);
  return std::min(weight.n, fitting / 16 * 16);
}

size_t ExpandBytes(const PackedWeight& weight) {
  if (weight.format == WeightFormat::kBf16) return 0;
  return Align(static_cast<size_t>(ExpandedRows(weight)) * static_cast<size_t>(weight.k) * 2);
}

// What a choice may depend on beside the rows.
std::string KeyOf(const LinearCall& call) {
  std::ostringstream key;
  key << "format" << static_cast<int>(call.weight->format) << "-input"
      << static_cast<int>(call.input) << "-store" << static_cast<int>(call.store) << "-n"
      << call.weight->n << "-k" << call.weight->k;
  return key.str();
}

Status Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return Internal(std::string("linear layer of many rows: ") + what + ": " +
                  cudaGetErrorString(error));
}

}  // namespace

Result<std::unique_ptr<ManyRows>> ManyRows::Create(const LinearOptions& options) {
  std::unique_ptr<ManyRows> many(new ManyRows(options));
  AISP_ASSIGN_OR_RETURN(many->gemm_, Gemm::Create());
  AISP_ASSIGN_OR_RETURN(many->blas_, BlasLt::Create(options.tuning_cache));
  many->LoadChoices();
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
  return kLtBytes + std::max(ExpandBytes(weight), QuantisedBytes(weight)) + GatedBytes(weight);
}

void ManyRows::SetWorkspace(void* memory, size_t bytes) {
  workspace_ = static_cast<char*>(memory);
  workspace_bytes_ = bytes;
}

LinearCall ManyRows::Quantised(const LinearCall& call) const {
  LinearCall quantised = call;
  if (options_.fp8_activation_rows == 0 || call.rows < options_.fp8_activation_rows ||
      call.input == InputFormat::kFp8 || !IsFp8(call.weight->format)) {
    return call;
  }
  quantised.input = InputFormat::kFp8;
  quantised.x_scales = reinterpret_cast<float*>(workspace_ + kLtBytes);
  quantised.x =
      workspace_ + kLtBytes + Align(static_cast<size_t>(options_.max_rows) * sizeof(float));
  return gemm_.Takes(quantised) || LtTakes(quantised) ? quantised : call;
}

bool ManyRows::LtTakes(const LinearCall& call) const {
  return call.input == InputFormat::kBf16 ||
         (call.weight->format == WeightFormat::kFp8 && call.weight->n % 16 == 0);
}

bool ManyRows::Takes(const LinearCall& call) const { return LtTakes(call) || gemm_.Takes(call); }

bool ManyRows::Prepared(const LinearCall& call) const {
  const auto known = measured_.find(KeyOf(Quantised(call)));
  return known != measured_.end() && known->second.contains(call.rows);
}

// Of a call that is quantised where it is to be.
int ManyRows::Choose(const LinearCall& call) const {
  if (!gemm_.Takes(call)) return kLt;
  if (!LtTakes(call) || NeedsExpansion(call)) return gemm_.Choose(call);
  const auto known = measured_.find(KeyOf(call));
  if (known != measured_.end()) {
    const auto exact = known->second.find(call.rows);
    if (exact != known->second.end()) {
      return exact->second == kLtTokens ? kLt : gemm_.WithTokens(call, exact->second);
    }
    const auto distance = [&](const auto& entry) {
      return std::abs(std::log(static_cast<double>(entry.first) / call.rows));
    };
    const auto nearest =
        std::min_element(known->second.begin(), known->second.end(),
                         [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
    if (distance(*nearest) < std::log(kNear)) {
      return nearest->second == kLtTokens ? kLt : gemm_.Choose(call);
    }
  }
  return call.rows >= (call.weight->gated ? kOwnGatedRows : kOwnRows) ? gemm_.Choose(call) : kLt;
}

Status ManyRows::Launch(const LinearCall& call, cudaStream_t stream) {
  if (workspace_bytes_ < WorkspaceBytes(*call.weight)) {
    return ResourceExhausted("a linear layer of " + std::to_string(call.rows) + " rows needs " +
                             std::to_string(WorkspaceBytes(*call.weight)) +
                             " bytes of workspace, has " + std::to_string(workspace_bytes_));
  }
  const LinearCall quantised = Quantised(call);
  if (quantised.input != call.input) {
    AISP_RETURN_IF_ERROR(QuantizeRows(call.x, const_cast<void*>(quantised.x),
                                      const_cast<float*>(quantised.x_scales), call.rows,
                                      call.weight->k, stream));
  }
  return LaunchBy(Choose(quantised), quantised, stream, false);
}

Status ManyRows::LaunchBy(int choice, const LinearCall& call, cudaStream_t stream, bool tune) {
  if (choice != kLt) return gemm_.Launch(call, choice, options_.overlap, stream);
  return LaunchLt(call, stream, tune);
}

Result<float> ManyRows::TimeBy(int choice, const LinearCall& call, cudaStream_t stream) {
  std::array<cudaEvent_t, 2> events = {};
  float best_ms = -1.0f;
  const auto run = [&]() -> Status {
    for (auto& event : events) AISP_RETURN_IF_ERROR(Check(cudaEventCreate(&event), "event"));
    for (int i = 0; i <= kTimedRuns; ++i) {
      AISP_RETURN_IF_ERROR(Check(cudaEventRecord(events[0], stream), "recording"));
      AISP_RETURN_IF_ERROR(LaunchBy(choice, call, stream, false));
      AISP_RETURN_IF_ERROR(Check(cudaEventRecord(events[1], stream), "recording"));
      AISP_RETURN_IF_ERROR(Check(cudaEventSynchronize(events[1]), "running"));
      float ms = 0.0f;
      AISP_RETURN_IF_ERROR(Check(cudaEventElapsedTime(&ms, events[0], events[1]), "reading"));
      if (i > 0 && (best_ms < 0.0f || ms < best_ms)) best_ms = ms;
    }
    return {};
  };
  Status status = run();
  for (cudaEvent_t event : events) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  AISP_RETURN_IF_ERROR(std::move(status));
  return best_ms * 1000.0f;
}

Status ManyRows::Prepare(const LinearCall& call, cudaStream_t stream) {
  if (workspace_bytes_ < WorkspaceBytes(*call.weight)) return Launch(call, stream);
  if (Prepared(call)) return {};
  const LinearCall quantised = Quantised(call);
  // Nothing to choose from but our instances, which the estimate tells apart.
  if (!gemm_.Takes(quantised)) return LaunchLt(call, stream, true);
  if (!LtTakes(quantised) || NeedsExpansion(quantised)) return {};
  AISP_RETURN_IF_ERROR(Launch(call, stream));  // quantises
  AISP_RETURN_IF_ERROR(LaunchLt(quantised, stream, true));
  AISP_ASSIGN_OR_RETURN(float best_us, TimeBy(kLt, quantised, stream));
  int best = kLt;
  const int expected = gemm_.Choose(quantised);
  const double limit_us = 1.3 * gemm_.Estimate(quantised, expected);
  for (const int kernel : gemm_.Instances(quantised)) {
    if (gemm_.Estimate(quantised, kernel) > limit_us) continue;
    AISP_ASSIGN_OR_RETURN(const float us, TimeBy(kernel, quantised, stream));
    if (us < best_us) {
      best_us = us;
      best = kernel;
    }
  }
  const std::string key = KeyOf(quantised);
  const int tokens = best == kLt ? kLtTokens : GemmKernels()[static_cast<size_t>(best)].tokens;
  measured_[key][call.rows] = tokens;
  SaveChoice(key, call.rows, tokens);
  return {};
}

std::string ManyRows::Describe(const LinearCall& call) const {
  const LinearCall quantised = Quantised(call);
  const std::string prefix = quantised.input != call.input ? "FP8 activations, " : "";
  const int choice = Choose(quantised);
  if (choice != kLt) return prefix + gemm_.Describe(choice);
  const int32_t rows = call.weight->gated ? std::min(call.rows, kGatedRows) : call.rows;
  return prefix + (NeedsExpansion(quantised) ? "widened to bf16, " : "") +
         blas_->Describe(LtCall(quantised, 0, rows));
}

// ---- cuBLASLt ----

// Rows [begin, begin + rows) of a call as a product of the whole weight.
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

Status ManyRows::LaunchLt(const LinearCall& call, cudaStream_t stream, bool tune) {
  const PackedWeight& w = *call.weight;
  if (w.has_bias && !w.gated) {
    SpreadBias(w.bias, call.store == Store::kAccumulateF32, OutputBytes(call.store) == 4, call.rows,
               w.n, call.y, StrideOf(call), stream);
  }
  const int32_t step = w.gated ? kGatedRows : call.rows;
  for (int32_t begin = 0; begin < call.rows; begin += step) {
    const LtProduct product = LtCall(call, begin, std::min(step, call.rows - begin));
    AISP_RETURN_IF_ERROR(MultiplyLt(w, product, NeedsExpansion(call), stream, tune));
    if (w.gated) {
      SiluMulInterleaved(
          product.y, w.bias, product.rows, w.n,
          static_cast<char*>(call.y) + static_cast<size_t>(begin * StrideOf(call)) * 2,
          StrideOf(call), stream);
    }
  }
  return Check(cudaGetLastError(), "launching");
}

Status ManyRows::MultiplyLt(const PackedWeight& w, const LtProduct& product, bool expand,
                            cudaStream_t stream, bool tune) {
  const auto run = [&](const LtProduct& p) {
    return tune ? blas_->Tune(p, workspace_, kLtBytes, stream)
                : blas_->Run(p, workspace_, kLtBytes, stream);
  };
  if (!expand) return run(product);
  void* const expanded = workspace_ + kLtBytes;
  const int64_t step = ExpandedRows(w);
  for (int64_t begin = 0; begin < w.n; begin += step) {
    LtProduct piece = product;
    piece.n = std::min(step, w.n - begin);
    piece.weight = expanded;
    piece.y = static_cast<char*>(product.y) + static_cast<size_t>(begin) * (product.f32 ? 4 : 2);
    ExpandRows(w, begin, piece.n, expanded, stream);
    AISP_RETURN_IF_ERROR(run(piece));
  }
  return {};
}

// ---- the cache: lines of cuBLASLt's (blas_lt.cc) and "choice KEY ROWS TOKENS" ----

void ManyRows::LoadChoices() {
  if (options_.tuning_cache.empty()) return;
  std::ifstream file(options_.tuning_cache);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream in(line);
    std::string mark;
    std::string key;
    int32_t rows = 0;
    int tokens = 0;
    if (in >> mark >> key >> rows >> tokens && mark == kCacheMark) measured_[key][rows] = tokens;
  }
}

void ManyRows::SaveChoice(const std::string& key, int32_t rows, int tokens) const {
  if (options_.tuning_cache.empty()) return;
  // A cache that cannot be written costs the tuning at the next start, nothing else.
  std::ofstream(options_.tuning_cache, std::ios::app)
      << kCacheMark << ' ' << key << ' ' << rows << ' ' << tokens << '\n';
}

}  // namespace aisp::cuda
