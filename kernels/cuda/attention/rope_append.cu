// RoPE and KV append: a CTA handles a row, and a few lanes handle a head: they norm it (if there
// are norm weights), rotate it, and store it to the query rows or to the pool, 16 bytes at a time.
// Every element is read once and written once; the angles are read once for all heads of a row.
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/ptx.cuh"
#include "kernels/cuda/cuda_error.h"

namespace aisp::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kAtOnce =
    3;  // heads per thread in flight: all of its own for a row of 48 heads of 128

struct RopeArgs {
  const void* qkv;
  void* q_out;
  const float* cos_sin;
  const float* q_norm;
  const float* k_norm;
  const int32_t* positions;
  const int32_t* kv_slots;
  uint8_t* pool;
  const float* device_scales;
  int64_t qkv_row_stride;
  int64_t q_out_row_stride;
  int32_t rows;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t block_tokens;
  float norm_epsilon;
  float k_scale;
  float v_scale;
};

// Eight adjacent elements of a row.
template <typename T>
struct Eight {
  uint4 bits[sizeof(T) / 2];

  __device__ __forceinline__ void Load(const void* from, int64_t at) {
    const auto* p = reinterpret_cast<const uint4*>(static_cast<const T*>(from) + at);
#pragma unroll
    for (uint4& b : bits) b = *p++;
  }
  __device__ __forceinline__ void Widen(float (&v)[8]) const {
    const auto* words = reinterpret_cast<const uint32_t*>(bits);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (sizeof(T) == 4) {
        v[i] = __uint_as_float(words[i]);
      } else {
        v[i] = __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
      }
    }
  }
};

template <typename T>
__device__ __forceinline__ void Store8(void* to, int64_t at, const float (&v)[8], float scale) {
  T* p = static_cast<T*>(to) + at;
  if constexpr (sizeof(T) == 4) {
    reinterpret_cast<float4*>(p)[0] = {v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale};
    reinterpret_cast<float4*>(p)[1] = {v[4] * scale, v[5] * scale, v[6] * scale, v[7] * scale};
  } else if constexpr (sizeof(T) == 2) {
    *reinterpret_cast<uint4*>(p) = {ptx::Pack2<false>(v[0] * scale, v[1] * scale),
                                    ptx::Pack2<false>(v[2] * scale, v[3] * scale),
                                    ptx::Pack2<false>(v[4] * scale, v[5] * scale),
                                    ptx::Pack2<false>(v[6] * scale, v[7] * scale)};
  } else {
    uint32_t words[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t low = __nv_cvt_float2_to_fp8x2({v[4 * i] * scale, v[4 * i + 1] * scale},
                                                    __NV_SATFINITE, __NV_E4M3);
      const uint32_t high = __nv_cvt_float2_to_fp8x2({v[4 * i + 2] * scale, v[4 * i + 3] * scale},
                                                     __NV_SATFINITE, __NV_E4M3);
      words[i] = low | high << 16;
    }
    *reinterpret_cast<uint2*>(p) = {words[0], words[1]};
  }
}

// A lane's part of a head: eight elements of the first half and their partners in the second.
template <int kDim>
struct Part {
  static constexpr int kLanes = kDim / 16;
  float low[8], high[8];

  // Collective: the lanes of a head add up.
  __device__ __forceinline__ float Inverse(float epsilon) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += low[i] * low[i] + high[i] * high[i];
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    return rsqrtf(sum / kDim + epsilon);
  }
  // Multiplies by the weights of the head's elements; this lane's start at `element`.
  __device__ __forceinline__ void Normalise(float inverse, const float* weights, int32_t element) {
    Eight<float> bits[2];
    float w[2][8];
    bits[0].Load(weights, element);
    bits[1].Load(weights, element + kDim / 2);
    bits[0].Widen(w[0]);
    bits[1].Widen(w[1]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      low[i] *= inverse * w[0][i];
      high[i] *= inverse * w[1][i];
    }
  }
  __device__ __forceinline__ void Rotate(const float (&cosine)[8], const float (&sine)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float x = low[i], y = high[i];
      low[i] = x * cosine[i] - y * sine[i];
      high[i] = y * cosine[i] + x * sine[i];
    }
  }
};

// Where a row's key (part 0) or value goes: the head's first element.
__device__ __forceinline__ int64_t PoolAt(const RopeArgs& a, int32_t slot, int32_t kv_head,
                                          int32_t part, int32_t dim) {
  const int64_t block = slot / a.block_tokens;
  return (((block * a.num_kv_heads + kv_head) * 2 + part) * a.block_tokens +
          slot % a.block_tokens) *
         dim;
}

template <typename Kv>
__device__ __forceinline__ float PoolScale(const RopeArgs& a, int32_t part) {
  if constexpr (sizeof(Kv) != 1) return 1.0f;
  return 1.0f / (a.device_scales != nullptr ? a.device_scales[part]
                 : part == 0                ? a.k_scale
                                            : a.v_scale);
}

template <int kDim, typename To>
__device__ __forceinline__ void StoreHalves(void* to, int64_t at, const Part<kDim>& x,
                                            float scale) {
  Store8<To>(to, at, x.low, scale);
  Store8<To>(to, at + kDim / 2, x.high, scale);
}

template <int kDim, typename Row, typename Kv, bool kNorm>
__global__ void __launch_bounds__(kThreads, kNorm || sizeof(Row) == 4 ? 5 : 7)
    RopeAppendKernel(const __grid_constant__ RopeArgs a) {
  constexpr int kLanes = Part<kDim>::kLanes, kHeads = kThreads / kLanes;
  const int32_t row = blockIdx.x;
  const int32_t first = static_cast<int32_t>(threadIdx.x) / kLanes;
  const int32_t element = static_cast<int32_t>(threadIdx.x) % kLanes * 8;
  ptx::WaitForPredecessor();
  ptx::LetSuccessorStart();
  const int32_t position = a.positions[row];
  const int32_t slot = a.kv_slots[row];
  if (position < 0) return;
  const int32_t heads = a.num_heads + 2 * a.num_kv_heads;
  const int64_t angle = static_cast<int64_t>(position) * kDim + element;
  Eight<float> angles[2];
  angles[0].Load(a.cos_sin, angle);
  angles[1].Load(a.cos_sin, angle + kDim / 2);
  // All lanes of a warp take part in all turns, since they exchange sums.
  for (int32_t turn = 0; turn < heads; turn += kHeads * kAtOnce) {
    Eight<Row> low[kAtOnce] = {}, high[kAtOnce] = {};
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int32_t head = turn + j * kHeads + first;
      if (head >= heads) continue;
      const int64_t at = row * a.qkv_row_stride + static_cast<int64_t>(head) * kDim + element;
      low[j].Load(a.qkv, at);
      high[j].Load(a.qkv, at + kDim / 2);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int32_t head = turn + j * kHeads + first;
      const int32_t kv_head = (head - a.num_heads) % a.num_kv_heads;
      const int32_t part = head < a.num_heads ? -1 : (head - a.num_heads) / a.num_kv_heads;
      Part<kDim> x;
      low[j].Widen(x.low);
      high[j].Widen(x.high);
      if constexpr (kNorm) {
        const float* norm = part < 0 ? a.q_norm : part == 0 ? a.k_norm : nullptr;
        const float inverse = x.Inverse(a.norm_epsilon);
        if (norm != nullptr) x.Normalise(inverse, norm, element);
      }
      if (head >= heads) continue;
      if (part < 1) {
        float cosine[8], sine[8];
        angles[0].Widen(cosine);
        angles[1].Widen(sine);
        x.Rotate(cosine, sine);
      }
      if (part < 0) {
        const int64_t at = row * a.q_out_row_stride + static_cast<int64_t>(head) * kDim + element;
        StoreHalves<kDim, Row>(a.q_out, at, x, 1.0f);
      } else {
        const int64_t at = PoolAt(a, slot, kv_head, part, kDim) + element;
        StoreHalves<kDim, Kv>(a.pool, at, x, PoolScale<Kv>(a, part));
      }
    }
  }
}

template <int kDim, typename Row, typename Kv>
cudaError_t Launch(const RopeArgs& args, cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<uint32_t>(args.rows));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const bool norm = args.q_norm != nullptr || args.k_norm != nullptr;
  return cudaLaunchKernelEx(
      &config,
      norm ? RopeAppendKernel<kDim, Row, Kv, true> : RopeAppendKernel<kDim, Row, Kv, false>, args);
}

template <int kDim, typename Row>
cudaError_t LaunchKv(DType kv, const RopeArgs& args, cudaStream_t stream) {
  if (kv == DType::kF32) return Launch<kDim, Row, float>(args, stream);
  if (kv == DType::kBF16) return Launch<kDim, Row, __nv_bfloat16>(args, stream);
  return Launch<kDim, Row, __nv_fp8_e4m3>(args, stream);
}

template <int kDim>
cudaError_t LaunchDim(const RopeAppendCall& call, const RopeArgs& args, cudaStream_t stream) {
  return call.qkv_type == DType::kF32 ? LaunchKv<kDim, float>(call.kv.dtype, args, stream)
                                      : LaunchKv<kDim, __nv_bfloat16>(call.kv.dtype, args, stream);
}

}  // namespace

Status RopeAppend(const RopeAppendCall& call, cudaStream_t stream) {
  const int32_t dim = call.kv.head_dim;
  if (dim != 64 && dim != 128 && dim != 256) {
    return InvalidArgument("CUDA RoPE has kernels for head_dim 64, 128 and 256, not " +
                           std::to_string(dim));
  }
  if (call.qkv_type != DType::kF32 && call.qkv_type != DType::kBF16) {
    return InvalidArgument("CUDA RoPE takes rows of bf16 or f32");
  }
  if (call.kv.dtype != DType::kF32 && call.kv.dtype != DType::kBF16 &&
      call.kv.dtype != DType::kF8E4M3) {
    return InvalidArgument("CUDA RoPE appends to pools of f32, bf16 or fp8_e4m3");
  }
  if (call.rows == 0) return {};
  RopeArgs args{};
  args.qkv = call.qkv;
  args.q_out = call.q_out;
  args.cos_sin = call.cos_sin;
  args.q_norm = call.q_norm;
  args.k_norm = call.k_norm;
  args.positions = call.positions;
  args.kv_slots = call.kv_slots;
  args.pool = static_cast<uint8_t*>(call.kv.layer);
  args.device_scales = call.device_scales;
  args.qkv_row_stride = call.qkv_row_stride;
  args.q_out_row_stride = call.q_out_row_stride;
  args.rows = call.rows;
  args.num_heads = call.num_heads;
  args.num_kv_heads = call.kv.num_kv_heads;
  args.block_tokens = call.kv.block_tokens;
  args.norm_epsilon = call.norm_epsilon;
  args.k_scale = call.k_scale;
  args.v_scale = call.v_scale;
  const cudaError_t code = dim == 64    ? LaunchDim<64>(call, args, stream)
                           : dim == 128 ? LaunchDim<128>(call, args, stream)
                                        : LaunchDim<256>(call, args, stream);
  return Check(code, "launch RoPE and append");
}

}  // namespace aisp::cuda
