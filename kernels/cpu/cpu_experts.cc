#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "common/check.h"
#include "kernels/cpu/cpu_ops_impl.h"

namespace aisp {
namespace {

constexpr int32_t kMaxExperts = 1024;

class CpuExperts final : public PackedExperts {
 public:
  struct Expert {
    std::unique_ptr<PackedLinear> gate_up, down;
  };
  int32_t num_experts() const override { return static_cast<int32_t>(experts.size()); }
  size_t bytes() const override {
    size_t sum = 0;
    for (const Expert& e : experts) sum += e.gate_up->bytes() + e.down->bytes();
    return sum;
  }

  DType dtype = DType::kF32;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t max_rows = 0;
  std::vector<Expert> experts;
  // Scratch of one call for one expert's rows: gathered x, gate and up, activation, result.
  mutable std::vector<std::byte> x, activation;
  mutable std::vector<float> gate_up, y;
  mutable std::vector<int32_t> members;  // row * top_k + index of the choice
};

// Indices of the `k` largest of values[0, n), ties to the lower index, into best[0, k).
void TopK(const float* values, int32_t n, int32_t k, int32_t* best) {
  int32_t indices[kMaxExperts];
  std::iota(indices, indices + n, 0);
  std::partial_sort(indices, indices + k, indices + n, [&](int32_t a, int32_t b) {
    return values[a] > values[b] || (values[a] == values[b] && a < b);
  });
  std::copy(indices, indices + k, best);
}

// Keeps the scores of the best groups; sets the others to minus infinity.
void KeepTopGroups(float* choice, int32_t experts, int32_t num_groups, int32_t top_groups) {
  float group_scores[kMaxExperts];
  const int32_t size = experts / num_groups;
  for (int32_t g = 0; g < num_groups; ++g) {
    float first = -INFINITY, second = -INFINITY;
    for (int32_t i = g * size; i < (g + 1) * size; ++i) {
      if (choice[i] > first) {
        second = first;
        first = choice[i];
      } else if (choice[i] > second) {
        second = choice[i];
      }
    }
    group_scores[g] = size > 1 ? first + second : first;
  }
  int32_t kept[kMaxExperts];
  TopK(group_scores, num_groups, top_groups, kept);
  for (int32_t g = 0; g < num_groups; ++g) {
    if (std::find(kept, kept + top_groups, g) == kept + top_groups) {
      std::fill(choice + g * size, choice + (g + 1) * size, -INFINITY);
    }
  }
}

void Scores(const float* logits, int32_t n, ExpertScore kind, float* scores) {
  if (kind == ExpertScore::kSigmoid) {
    for (int32_t i = 0; i < n; ++i) scores[i] = 1.0f / (1.0f + std::exp(-logits[i]));
    return;
  }
  const float max = *std::max_element(logits, logits + n);
  float sum = 0;
  for (int32_t i = 0; i < n; ++i) sum += scores[i] = std::exp(logits[i] - max);
  for (int32_t i = 0; i < n; ++i) scores[i] /= sum;
}

}  // namespace

Status CpuOps::SelectExperts(const SelectExpertsParams& p, Stream&) {
  const auto n = static_cast<int32_t>(p.logits.cols());
  AISP_CHECK(n <= kMaxExperts && p.top_k <= n && p.num_groups >= 1 && n % p.num_groups == 0);
  ForRows(p.rows, [&](int64_t row) {
    float scores[kMaxExperts], choice[kMaxExperts];
    Scores(p.logits.as<float>() + row * n, n, p.score, scores);
    for (int32_t i = 0; i < n; ++i) {
      choice[i] =
          scores[i] + (p.correction_bias.data != nullptr ? p.correction_bias.as<float>()[i] : 0.0f);
    }
    if (p.num_groups > 1) KeepTopGroups(choice, n, p.num_groups, p.top_groups);
    int32_t* experts = p.experts.as<int32_t>() + row * p.top_k;
    float* weights = p.weights.as<float>() + row * p.top_k;
    TopK(choice, n, p.top_k, experts);
    float sum = 0;
    for (int32_t i = 0; i < p.top_k; ++i) sum += scores[experts[i]];
    std::sort(experts, experts + p.top_k);
    for (int32_t i = 0; i < p.top_k; ++i) {
      weights[i] = scores[experts[i]] * p.scale / (p.normalise ? std::max(sum, 1e-20f) : 1.0f);
    }
  });
  return {};
}

Result<std::unique_ptr<PackedExperts>> CpuOps::PackExperts(const ExpertsSource& source) {
  if (source.experts.empty() || source.experts.size() > kMaxExperts) {
    return InvalidArgument(
        fmt::format("{} experts; 1 to {} are possible", source.experts.size(), kMaxExperts));
  }
  auto packed = std::make_unique<CpuExperts>();
  packed->dtype = source.compute_dtype;
  packed->intermediate = source.experts[0].gate.rows();
  packed->hidden = source.experts[0].gate.cols();
  packed->max_rows = source.max_rows;
  for (const ExpertsSource::Expert& e : source.experts) {
    CpuExperts::Expert expert;
    const TensorView gate_up[] = {e.gate, e.up};
    const TensorView down[] = {e.down};
    AISP_ASSIGN_OR_RETURN(expert.gate_up,
                          linear_.Pack({gate_up, {}, source.compute_dtype, Epilogue::kStore}));
    AISP_ASSIGN_OR_RETURN(expert.down,
                          linear_.Pack({down, {}, source.compute_dtype, Epilogue::kStore}));
    if (expert.gate_up->out_features() != 2 * packed->intermediate ||
        expert.gate_up->in_features() != packed->hidden ||
        expert.down->in_features() != packed->intermediate ||
        expert.down->out_features() != packed->hidden) {
      return InvalidArgument("the experts of a layer differ in shape");
    }
    packed->experts.push_back(std::move(expert));
  }
  const auto rows = static_cast<size_t>(source.max_rows);
  const auto hidden = static_cast<size_t>(packed->hidden),
             intermediate = static_cast<size_t>(packed->intermediate);
  packed->x.resize(rows * hidden * DTypeBytes(packed->dtype));
  packed->gate_up.resize(rows * 2 * intermediate);
  packed->activation.resize(rows * intermediate * DTypeBytes(packed->dtype));
  packed->y.resize(rows * hidden);
  packed->members.reserve(static_cast<size_t>(source.max_rows));
  return packed;
}

Status CpuOps::ExpertMlp(const ExpertMlpParams& p, Stream&) {
  const auto& packed = static_cast<const CpuExperts&>(*p.packed);
  const int64_t top_k = p.experts.cols();
  AISP_CHECK(p.rows <= packed.max_rows && p.x.dtype == packed.dtype && p.x.cols() == packed.hidden);
  const size_t x_bytes = static_cast<size_t>(packed.hidden) * DTypeBytes(packed.dtype);
  const size_t a_bytes = static_cast<size_t>(packed.intermediate) * DTypeBytes(packed.dtype);
  const bool bf16 = packed.dtype == DType::kBF16;
  // Experts in ascending order: a row's sum over experts then does not depend on the batch.
  for (int32_t e = 0; e < packed.num_experts(); ++e) {
    std::vector<int32_t>& members = packed.members;
    members.clear();
    for (int64_t i = 0; i < p.rows * top_k; ++i) {
      if (p.experts.as<int32_t>()[i] == e) members.push_back(static_cast<int32_t>(i));
    }
    if (members.empty()) continue;
    const auto rows = static_cast<int64_t>(members.size());
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t row = members[static_cast<size_t>(i)] / top_k;
      std::memcpy(packed.x.data() + static_cast<size_t>(i) * x_bytes,
                  static_cast<const std::byte*>(p.x.data) + static_cast<size_t>(row) * x_bytes,
                  x_bytes);
    }
    const CpuExperts::Expert& expert = packed.experts[static_cast<size_t>(e)];
    linear_.Run(*expert.gate_up, packed.x.data(), packed.gate_up.data(), rows);
    ForRows(rows, [&](int64_t i) {
      kernels_.silu_mul(packed.gate_up.data() + i * 2 * packed.intermediate,
                        packed.activation.data() + static_cast<size_t>(i) * a_bytes, bf16,
                        packed.intermediate);
    });
    linear_.Run(*expert.down, packed.activation.data(), packed.y.data(), rows);
    ForRows(rows, [&](int64_t i) {
      const int32_t member = members[static_cast<size_t>(i)];
      kernels_.add_scaled(p.y.as<float>() + member / top_k * packed.hidden,
                          packed.y.data() + i * packed.hidden, p.weights.as<float>()[member],
                          packed.hidden);
    });
  }
  return {};
}

}  // namespace aisp
