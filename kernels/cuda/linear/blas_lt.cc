#include "kernels/cuda/linear/blas_lt.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "kernels/cuda/linear/host_launch.h"

namespace aisp::cuda {
namespace {

constexpr int kCandidates = 16;
constexpr const char* kHeuristic = "heuristic";
constexpr const char* kNeighbour = "as-for-the-nearest-rows";
constexpr double kNear = 2.0;  // ratio of row counts that may share an algorithm

Status Check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return Internal(std::string("cuBLASLt: ") + what + ": " + cublasLtGetStatusString(status));
}

template <typename T, cublasStatus_t (*kDestroy)(T)>
struct Handle {
  T value = nullptr;
  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (value != nullptr) kDestroy(value);
  }
};

// Descriptors of a product, column-major for the library: y^T [n, rows] = W [n, k] x^T [k, rows].
struct Plan {
  Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> operation;
  Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy> weight, x, y;

  Status Set(cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    return Check(cublasLtMatmulDescSetAttribute(operation.value, attribute,
                                                static_cast<const void*>(&value), sizeof(value)),
                 "setting an attribute");
  }
  Status Make(const LtProduct& p) {
    const cudaDataType_t in = p.fp8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    const auto n = static_cast<uint64_t>(p.n);
    const auto k = static_cast<uint64_t>(p.k);
    const auto rows = static_cast<uint64_t>(p.rows);
    AISP_RETURN_IF_ERROR(
        Check(cublasLtMatmulDescCreate(&operation.value, CUBLAS_COMPUTE_32F, CUDA_R_32F),
              "making a product"));
    AISP_RETURN_IF_ERROR(
        Check(cublasLtMatrixLayoutCreate(&weight.value, in, k, n, p.k), "making a layout"));
    AISP_RETURN_IF_ERROR(
        Check(cublasLtMatrixLayoutCreate(&x.value, in, k, rows, p.k), "making a layout"));
    AISP_RETURN_IF_ERROR(Check(
        cublasLtMatrixLayoutCreate(&y.value, p.f32 ? CUDA_R_32F : CUDA_R_16BF, n, rows, p.y_stride),
        "making a layout"));
    const cublasOperation_t transpose = CUBLAS_OP_T;
    AISP_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_TRANSA, transpose));
    if (!p.fp8) return {};
    const cublasLtMatmulMatrixScale_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    AISP_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode));
    AISP_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode));
    AISP_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.weight_scales));
    return Set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.x_scales);
  }
};

struct Choice {
  cublasLtMatmulAlgo_t algorithm = {};
  std::string note;
};

// Key of everything that an algorithm may depend on.
std::string ShapeOf(const LtProduct& p) {
  std::ostringstream key;
  key << (p.fp8 ? "fp8" : "bf16") << (p.f32 ? "-f32" : "-bf16") << (p.add ? "-add" : "") << "-n"
      << p.n << "-k" << p.k << "-ld" << p.y_stride;
  return key.str();
}
constexpr const char* kRowsMark = "-rows";
std::string KeyOf(const LtProduct& p) { return ShapeOf(p) + kRowsMark + std::to_string(p.rows); }

class BlasLtImpl : public BlasLt {
 public:
  explicit BlasLtImpl(std::string cache) : cache_(std::move(cache)) {}

  Status Open() {
    AISP_RETURN_IF_ERROR(Check(cublasLtCreate(&handle_.value), "creating a handle"));
    LoadCache();
    return {};
  }

  Status Run(const LtProduct& product, void* workspace, size_t workspace_bytes,
             cudaStream_t stream) override {
    Plan plan;
    AISP_RETURN_IF_ERROR(plan.Make(product));
    AISP_ASSIGN_OR_RETURN(const Choice* const choice, Find(product, plan, workspace_bytes));
    return Multiply(product, plan, choice->algorithm, workspace, workspace_bytes, stream);
  }

  Status LookUp(const LtProduct& product, size_t workspace_bytes) override {
    Plan plan;
    AISP_RETURN_IF_ERROR(plan.Make(product));
    AISP_RETURN_IF_ERROR(Find(product, plan, workspace_bytes));
    return {};
  }

  Status Tune(const LtProduct& product, void* workspace, size_t workspace_bytes,
              cudaStream_t stream) override {
    const std::string key = KeyOf(product);
    if (Tuned(product)) return {};
    Plan plan;
    AISP_RETURN_IF_ERROR(plan.Make(product));
    AISP_ASSIGN_OR_RETURN(const auto candidates,
                          Candidates(plan, workspace_bytes, kCandidates, key));
    float best_us = 0.0f;
    size_t best = candidates.size();
    for (size_t i = 0; i < candidates.size(); ++i) {
      // A candidate that fails here is skipped.
      const auto us = Time(product, plan, candidates[i].algo, workspace, workspace_bytes, stream);
      if (us && (best == candidates.size() || *us < best_us)) {
        best = i;
        best_us = *us;
      }
    }
    if (best == candidates.size()) {
      return Internal("cuBLASLt: none of " + std::to_string(candidates.size()) +
                      " algorithms ran for " + key);
    }
    const std::string note = std::to_string(best + 1) + "-of-" + std::to_string(candidates.size()) +
                             "-" + std::to_string(std::lround(best_us)) + "us";
    choices_[key] = Choice{candidates[best].algo, note};
    tuned_rows_[ShapeOf(product)].insert(product.rows);
    SaveChoice(key, choices_[key]);
    return {};
  }

  bool Tuned(const LtProduct& product) const override {
    const auto known = choices_.find(KeyOf(product));
    return known != choices_.end() && known->second.note != kHeuristic &&
           known->second.note != kNeighbour;
  }

  std::string Describe(const LtProduct& product) const override {
    const auto choice = choices_.find(KeyOf(product));
    return "cublasLt " + KeyOf(product) + ": " +
           (choice == choices_.end() ? kHeuristic : choice->second.note);
  }

 private:
  Result<const Choice*> Find(const LtProduct& product, const Plan& plan, size_t workspace_bytes) {
    const std::string key = KeyOf(product);
    auto choice = choices_.find(key);
    if (choice == choices_.end()) {
      AISP_ASSIGN_OR_RETURN(Choice untuned, Untuned(product, plan, workspace_bytes));
      choice = choices_.emplace(key, std::move(untuned)).first;
    }
    return &choice->second;
  }

  Status Multiply(const LtProduct& p, const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                  void* workspace, size_t workspace_bytes, cudaStream_t stream) {
    const float alpha = 1.0f;
    const float beta = p.add ? 1.0f : 0.0f;
    return Check(cublasLtMatmul(handle_.value, plan.operation.value, &alpha, p.weight,
                                plan.weight.value, p.x, plan.x.value, &beta, p.y, plan.y.value, p.y,
                                plan.y.value, &algorithm, workspace, workspace_bytes, stream),
                 "multiplying");
  }

  // The algorithm tuned for the nearest number of rows, if the library accepts it for these; else
  // the heuristics' first choice.
  Result<Choice> Untuned(const LtProduct& p, const Plan& plan, size_t workspace_bytes) {
    const auto tuned = tuned_rows_.find(ShapeOf(p));
    if (tuned != tuned_rows_.end()) {
      const auto distance = [&](int32_t rows) {
        return std::abs(std::log(static_cast<double>(rows) / p.rows));
      };
      const int32_t rows =
          *std::min_element(tuned->second.begin(), tuned->second.end(),
                            [&](int32_t a, int32_t b) { return distance(a) < distance(b); });
      const Choice& known = choices_.at(ShapeOf(p) + kRowsMark + std::to_string(rows));
      cublasLtMatmulHeuristicResult_t result = {};
      const cublasStatus_t status = cublasLtMatmulAlgoCheck(
          handle_.value, plan.operation.value, plan.weight.value, plan.x.value, plan.y.value,
          plan.y.value, &known.algorithm, &result);
      if (distance(rows) <= std::log(kNear) && status == CUBLAS_STATUS_SUCCESS &&
          result.workspaceSize <= workspace_bytes) {
        return Choice{known.algorithm, kNeighbour};
      }
    }
    AISP_ASSIGN_OR_RETURN(const auto candidates, Candidates(plan, workspace_bytes, 1, KeyOf(p)));
    return Choice{candidates[0].algo, kHeuristic};
  }

  Result<std::vector<cublasLtMatmulHeuristicResult_t>> Candidates(const Plan& plan,
                                                                  size_t workspace_bytes, int most,
                                                                  const std::string& key) {
    Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
    AISP_RETURN_IF_ERROR(
        Check(cublasLtMatmulPreferenceCreate(&preference.value), "making a preference"));
    AISP_RETURN_IF_ERROR(Check(cublasLtMatmulPreferenceSetAttribute(
                                   preference.value, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                   &workspace_bytes, sizeof(workspace_bytes)),
                               "setting a preference"));
    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle_.value, plan.operation.value, plan.weight.value, plan.x.value, plan.y.value,
        plan.y.value, preference.value, most, results.data(), &found);
    if (status != CUBLAS_STATUS_SUCCESS || found == 0) {
      return NotFound("cuBLASLt has no algorithm for " + key);
    }
    results.resize(static_cast<size_t>(found));
    return results;
  }

  Result<float> Time(const LtProduct& p, const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                     void* workspace, size_t workspace_bytes, cudaStream_t stream) {
    return BestTimeUs(
        stream, [&] { return Multiply(p, plan, algorithm, workspace, workspace_bytes, stream); });
  }

  // A line: library version, key, note, algorithm in hexadecimal. Lines of other versions are
  // ignored.
  void LoadCache() {
    if (cache_.empty()) return;
    std::ifstream file(cache_);
    std::string line;
    while (std::getline(file, line)) {
      std::istringstream in(line);
      size_t version = 0;
      std::string key;
      std::string hex;
      Choice choice;
      if (!(in >> version >> key >> choice.note >> hex) || version != cublasLtGetVersion() ||
          hex.size() != 2 * sizeof(choice.algorithm)) {
        continue;
      }
      std::array<unsigned char, sizeof(choice.algorithm)> bytes = {};
      bool valid = true;
      for (size_t i = 0; i < bytes.size(); ++i) {
        const auto digit = [&](char c) -> unsigned {
          if (c >= '0' && c <= '9') return static_cast<unsigned>(c - '0');
          if (c >= 'a' && c <= 'f') return static_cast<unsigned>(c - 'a' + 10);
          valid = false;
          return 0;
        };
        bytes[i] = static_cast<unsigned char>(digit(hex[2 * i]) * 16 + digit(hex[2 * i + 1]));
      }
      if (!valid) continue;
      std::memcpy(&choice.algorithm, bytes.data(), bytes.size());
      const size_t mark = key.rfind(kRowsMark);
      if (mark == std::string::npos) continue;
      choices_[key] = choice;
      tuned_rows_[key.substr(0, mark)].insert(
          std::atoi(key.c_str() + mark + std::strlen(kRowsMark)));
    }
  }

  void SaveChoice(const std::string& key, const Choice& choice) const {
    if (cache_.empty()) return;
    std::array<unsigned char, sizeof(choice.algorithm)> bytes = {};
    std::memcpy(bytes.data(), &choice.algorithm, bytes.size());
    std::string hex;
    for (const unsigned char byte : bytes) {
      hex += "0123456789abcdef"[byte / 16];
      hex += "0123456789abcdef"[byte % 16];
    }
    // If the cache cannot be written, the next start tunes again; nothing else changes.
    std::ofstream(cache_, std::ios::app)
        << cublasLtGetVersion() << ' ' << key << ' ' << choice.note << ' ' << hex << '\n';
  }

  std::string cache_;
  Handle<cublasLtHandle_t, cublasLtDestroy> handle_;
  std::map<std::string, Choice> choices_;
  std::map<std::string, std::set<int32_t>> tuned_rows_;  // by shape
};

}  // namespace

Result<std::unique_ptr<BlasLt>> BlasLt::Create(const std::string& cache) {
  auto blas = std::make_unique<BlasLtImpl>(cache);
  AISP_RETURN_IF_ERROR(blas->Open());
  return blas;
}

}  // namespace aisp::cuda
