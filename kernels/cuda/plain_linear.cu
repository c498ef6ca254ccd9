// Matrix products without tensor cores: f32 (small models, expert routers), odd shapes, and the
// experts' MLPs. One warp per output and eight rows; sums have a fixed order, so a row's result
// does not depend on other rows.
#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.h"

namespace aisp::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kRows = 8;

template <typename T>
struct Vector;
template <>
struct Vector<float> {
  using Word = float4;
  static constexpr int kSize = 4;
  static __device__ void Widen(const Word& w, float* out) {
    out[0] = w.x, out[1] = w.y, out[2] = w.z, out[3] = w.w;
  }
};
template <>
struct Vector<__nv_bfloat16> {
  using Word = uint4;
  static constexpr int kSize = 8;
  static __device__ void Widen(const Word& w, float* out) {
    const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = __uint_as_float(words[i] << 16);
      out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
};

// Dot products of one weight row with up to kRows rows of x, by a warp; every lane gets them.
template <typename T, int N>
__device__ __forceinline__ void Dot(const T* w, const T* const (&x)[N], int64_t k, bool aligned,
                                    float (&sum)[N]) {
  using V = Vector<T>;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < N; ++r) sum[r] = 0;
  int64_t done = 0;
  if (aligned) {
    const int64_t words = k / V::kSize;
    for (int64_t i = lane; i < words; i += 32) {
      float a[V::kSize], b[V::kSize];
      V::Widen(reinterpret_cast<const typename V::Word*>(w)[i], a);
#pragma unroll
      for (int r = 0; r < N; ++r) {
        V::Widen(reinterpret_cast<const typename V::Word*>(x[r])[i], b);
#pragma unroll
        for (int j = 0; j < V::kSize; ++j) sum[r] = fmaf(a[j], b[j], sum[r]);
      }
    }
    done = words * V::kSize;
  }
  for (int64_t i = done + lane; i < k; i += 32) {
    const float a = ToFloat(w[i]);
#pragma unroll
    for (int r = 0; r < N; ++r) sum[r] = fmaf(a, ToFloat(x[r][i]), sum[r]);
  }
#pragma unroll
  for (int r = 0; r < N; ++r) sum[r] = WarpSum(sum[r]);
}

template <typename T>
__device__ __forceinline__ bool Aligned(int64_t k) {
  return k % Vector<T>::kSize == 0;
}

template <typename T, typename Out>
__global__ void __launch_bounds__(kWarps * 32)
    PlainLinearKernel(const T* weight, const float* bias, const T* x, Out* y, bool accumulate,
                      int64_t n, int64_t k, int rows) {
  BeginOverlapped();
  const int64_t column = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (column >= n) return;
  const int first = blockIdx.y * kRows, count = min(kRows, rows - first);
  const T* row_of[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) row_of[r] = x + (first + min(r, count - 1)) * k;
  float sum[kRows];
  Dot<T, kRows>(weight + column * k, row_of, k, Aligned<T>(k), sum);
  const int lane = threadIdx.x % 32;
  const float shift = bias != nullptr ? bias[column] : 0.0f;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (lane == r && r < count) {
      Out* to = y + (first + r) * n + column;
      *to = FromFloat<Out>(sum[r] + shift + (accumulate ? ToFloat(*to) : 0.0f));
    }
  }
}

template <typename T, typename Out>
Status PlainLinear(const PlainLinearCall& c, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((c.n + kWarps - 1) / kWarps),
                  static_cast<unsigned>((c.rows + kRows - 1) / kRows));
  return Check(LaunchOverlapped(PlainLinearKernel<T, Out>, grid, kWarps * 32, 0, stream,
                                static_cast<const T*>(c.weight), c.bias, static_cast<const T*>(c.x),
                                static_cast<Out*>(c.y), c.accumulate, c.n, c.k, c.rows),
               "plain linear");
}

// activation[row, choice, i] = silu(gate_i x) * (up_i x)
template <typename T>
__global__ void __launch_bounds__(kWarps * 32)
    ExpertGateUpKernel(const T* gate_up, const T* x, const int32_t* experts, int top_k,
                       int64_t hidden, int64_t intermediate, T* activation) {
  BeginOverlapped();
  const int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (i >= intermediate) return;
  const int64_t choice = blockIdx.y;
  const T* expert = gate_up + int64_t{experts[choice]} * 2 * intermediate * hidden;
  const T* row[1] = {x + choice / top_k * hidden};
  float gate[1], up[1];
  Dot<T, 1>(expert + i * hidden, row, hidden, Aligned<T>(hidden), gate);
  Dot<T, 1>(expert + (intermediate + i) * hidden, row, hidden, Aligned<T>(hidden), up);
  if (threadIdx.x % 32 == 0)
    activation[choice * intermediate + i] = FromFloat<T>(gate[0] / (1.0f + expf(-gate[0])) * up[0]);
}

template <typename T>
__global__ void __launch_bounds__(kWarps * 32)
    ExpertDownKernel(const T* down, const T* activation, const int32_t* experts,
                     const float* weights, int top_k, int64_t hidden, int64_t intermediate,
                     float* y) {
  BeginOverlapped();
  const int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (i >= hidden) return;
  const int64_t row = blockIdx.y;
  float total = 0;
  for (int c = 0; c < top_k; ++c) {
    const int64_t choice = row * top_k + c;
    const T* x[1] = {activation + choice * intermediate};
    float sum[1];
    Dot<T, 1>(down + (int64_t{experts[choice]} * hidden + i) * intermediate, x, intermediate,
              Aligned<T>(intermediate), sum);
    total = fmaf(weights[choice], sum[0], total);
  }
  if (threadIdx.x % 32 == 0) y[row * hidden + i] += total;
}

template <typename T>
Status Experts(const ExpertsCall& c, cudaStream_t stream) {
  const auto blocks = [](int64_t n) { return static_cast<unsigned>((n + kWarps - 1) / kWarps); };
  auto* activation = static_cast<T*>(c.activation);
  AISP_RETURN_IF_ERROR(
      Check(LaunchOverlapped(ExpertGateUpKernel<T>,
                             dim3(blocks(c.intermediate), static_cast<unsigned>(c.rows * c.top_k)),
                             kWarps * 32, 0, stream, static_cast<const T*>(c.gate_up),
                             static_cast<const T*>(c.x), c.experts, c.top_k, c.hidden,
                             c.intermediate, activation),
            "gate and up of experts"));
  return Check(
      LaunchOverlapped(ExpertDownKernel<T>, dim3(blocks(c.hidden), static_cast<unsigned>(c.rows)),
                       kWarps * 32, 0, stream, static_cast<const T*>(c.down),
                       static_cast<const T*>(activation), c.experts, c.weights, c.top_k, c.hidden,
                       c.intermediate, c.y),
      "down of experts");
}

constexpr int kMaxExperts = 1024;

// Index of the largest of values[0, count), the lower index for ties; NaN counts as smallest. By a
// warp.
__device__ __forceinline__ int IndexOfBest(const float* values, int count, int lane) {
  float best = -INFINITY;
  int index = count;
  for (int i = lane; i < count; i += 32) {
    if (values[i] > best || index == count) {
      best = values[i];
      index = i;
    }
  }
#pragma unroll
  for (int o = 16; o > 0; o /= 2) {
    const float other = __shfl_xor_sync(~0u, best, o);
    const int other_index = __shfl_xor_sync(~0u, index, o);
    if (other_index < count &&
        (index == count || other > best || (other == best && other_index < index))) {
      best = other;
      index = other_index;
    }
  }
  return index;
}

// A group's score is the sum of its two best experts; all groups except the best become minus
// infinity. By a warp.
__device__ __forceinline__ void KeepTopGroups(float* choice, float* groups, int n, int num_groups,
                                              int top_groups, int lane) {
  const int size = n / num_groups;
  for (int g = lane; g < num_groups; g += 32) {
    float first = -INFINITY, second = -INFINITY;
    for (int i = g * size; i < (g + 1) * size; ++i) {
      if (choice[i] > first) {
        second = first;
        first = choice[i];
      } else if (choice[i] > second) {
        second = choice[i];
      }
    }
    groups[g] = size > 1 ? first + second : first;
  }
  __syncwarp();
  uint64_t kept_low = 0, kept_high = 0;  // bit sets for up to 128 groups
  for (int k = 0; k < top_groups; ++k) {
    const int g = IndexOfBest(groups, num_groups, lane);
    (g < 64 ? kept_low : kept_high) |= uint64_t{1} << (g % 64);
    __syncwarp();
    if (lane == 0) groups[g] = -INFINITY;
    __syncwarp();
  }
  for (int i = lane; i < n; i += 32) {
    const int g = i / size;
    if (((g < 64 ? kept_low : kept_high) >> (g % 64) & 1) == 0) choice[i] = -INFINITY;
  }
  __syncwarp();
}

// One warp per row.
__global__ void __launch_bounds__(32)
    SelectExpertsKernel(const float* logits, const float* bias, int n, ExpertScore kind, int top_k,
                        int num_groups, int top_groups, bool normalise, float scale,
                        int32_t* experts, float* weights) {
  __shared__ float scores[kMaxExperts], choice[kMaxExperts], groups[kMaxExperts];
  BeginOverlapped();
  const int lane = threadIdx.x;
  const float* row = logits + int64_t{blockIdx.x} * n;
  float max = -INFINITY, sum = 0;
  for (int i = lane; i < n; i += 32) max = fmaxf(max, row[i]);
#pragma unroll
  for (int o = 16; o > 0; o /= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, o));
  for (int i = lane; i < n; i += 32) {
    scores[i] = kind == ExpertScore::kSigmoid ? 1.0f / (1.0f + expf(-row[i])) : expf(row[i] - max);
    sum += scores[i];
  }
  sum = WarpSum(sum);
  for (int i = lane; i < n; i += 32) {
    if (kind == ExpertScore::kSoftmax) scores[i] /= sum;
    choice[i] = scores[i] + (bias != nullptr ? bias[i] : 0.0f);
  }
  __syncwarp();
  if (num_groups > 1) KeepTopGroups(choice, groups, n, num_groups, top_groups, lane);
  int mine = n;  // lane k holds the k-th choice
  float total = 0;
  for (int k = 0; k < top_k; ++k) {
    const int e = IndexOfBest(choice, n, lane);
    if (lane == k) mine = e;
    total += scores[e];
    __syncwarp();
    // Chosen ones must not be chosen again, even if all others are minus infinity.
    if (lane == 0) choice[e] = -__int_as_float(0x7f800000);
    __syncwarp();
  }
  if (lane >= top_k) return;
  // Sorts by expert.
  int rank = 0;
  const unsigned active = top_k == 32 ? ~0u : (1u << top_k) - 1;
  for (int k = 0; k < top_k; ++k) rank += __shfl_sync(active, mine, k) < mine ? 1 : 0;
  experts[int64_t{blockIdx.x} * top_k + rank] = mine;
  weights[int64_t{blockIdx.x} * top_k + rank] =
      scores[mine] * scale / (normalise ? fmaxf(total, 1e-20f) : 1.0f);
}

}  // namespace

Status LaunchPlainLinear(const PlainLinearCall& c, cudaStream_t stream) {
  if (c.rows == 0) return {};
  if (c.type == DType::kBF16) {
    return c.y_type == DType::kBF16 ? PlainLinear<__nv_bfloat16, __nv_bfloat16>(c, stream)
                                    : PlainLinear<__nv_bfloat16, float>(c, stream);
  }
  return c.y_type == DType::kBF16 ? PlainLinear<float, __nv_bfloat16>(c, stream)
                                  : PlainLinear<float, float>(c, stream);
}

Status LaunchExperts(const ExpertsCall& c, cudaStream_t stream) {
  if (c.rows == 0) return {};
  return c.type == DType::kBF16 ? Experts<__nv_bfloat16>(c, stream) : Experts<float>(c, stream);
}

Status LaunchSelectExperts(const SelectExpertsParams& p, cudaStream_t stream) {
  const auto n = static_cast<int>(p.logits.cols());
  return Check(
      LaunchOverlapped(SelectExpertsKernel, static_cast<unsigned>(p.rows), 32, 0, stream,
                       p.logits.as<const float>(),
                       p.correction_bias.data != nullptr ? p.correction_bias.as<const float>()
                                                         : static_cast<const float*>(nullptr),
                       n, p.score, p.top_k, p.num_groups, p.top_groups, p.normalise, p.scale,
                       p.experts.as<int32_t>(), p.weights.as<float>()),
      "choosing experts");
}

}  // namespace aisp::cuda
