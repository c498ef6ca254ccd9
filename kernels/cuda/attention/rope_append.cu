// RoPE and KV append: a warp takes one head of one row: normalises it (where there are norm weights), rotates it, and stores it to
// the query rows or to the pool. Every element is read once and written once.
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/rope_head.cuh"
#include "kernels/cuda/cuda_error.h"

namespace aisp::cuda {
namespace {

constexpr int kWarps = 8;

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

template <int kDim, typename In, typename Out, typename Kv>
__global__ void __launch_bounds__(32 * kWarps)
    RopeAppendKernel(const __grid_constant__ RopeArgs a) {
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  const int32_t head =
      static_cast<int32_t>(blockIdx.y) * kWarps + static_cast<int32_t>(threadIdx.x) / 32;
  ptx::WaitForPredecessor();
  ptx::LetSuccessorStart();
  if (head >= a.num_heads + 2 * a.num_kv_heads) return;
  const int32_t position = a.positions[row];
  if (position < 0) return;
  Head<kDim> x;
  x.template Load<In>(a.qkv, row * a.qkv_row_stride + static_cast<int64_t>(head) * kDim);
  const float* angles = a.cos_sin + static_cast<int64_t>(position) * kDim;
  if (head < a.num_heads) {
    if (a.q_norm != nullptr) x.Normalise(a.q_norm, a.norm_epsilon);
    x.Rotate(angles);
    x.template Store<Out>(a.q_out, row * a.q_out_row_stride + static_cast<int64_t>(head) * kDim,
                          1.0f);
    return;
  }
  const int32_t part = (head - a.num_heads) / a.num_kv_heads;  // K, V
  const int32_t kv_head = (head - a.num_heads) % a.num_kv_heads;
  if (part == 0) {
    if (a.k_norm != nullptr) x.Normalise(a.k_norm, a.norm_epsilon);
    x.Rotate(angles);
  }
  float scale = 1.0f;
  if constexpr (sizeof(Kv) == 1) {
    scale = 1.0f / (a.device_scales != nullptr ? a.device_scales[part]
                    : part == 0                ? a.k_scale
                                               : a.v_scale);
  }
  const int32_t slot = a.kv_slots[row];
  const int64_t block = slot / a.block_tokens;
  const int64_t at =
      (((block * a.num_kv_heads + kv_head) * 2 + part) * a.block_tokens + slot % a.block_tokens) *
      kDim;
  x.template Store<Kv>(a.pool, at, scale);
}

template <int kDim, typename In, typename Out, typename Kv>
cudaError_t Launch(const RopeArgs& args, cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  const int32_t heads = args.num_heads + 2 * args.num_kv_heads;
  config.gridDim =
      dim3(static_cast<uint32_t>(args.rows), static_cast<uint32_t>((heads + kWarps - 1) / kWarps));
  config.blockDim = dim3(32 * kWarps);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, RopeAppendKernel<kDim, In, Out, Kv>, args);
}

template <int kDim, typename In, typename Out>
cudaError_t LaunchKv(DType kv, const RopeArgs& args, cudaStream_t stream) {
  if (kv == DType::kF32) return Launch<kDim, In, Out, float>(args, stream);
  if (kv == DType::kBF16) return Launch<kDim, In, Out, __nv_bfloat16>(args, stream);
  return Launch<kDim, In, Out, __nv_fp8_e4m3>(args, stream);
}

template <int kDim>
cudaError_t LaunchDim(const RopeAppendCall& call, const RopeArgs& args, cudaStream_t stream) {
  const bool in32 = call.qkv_type == DType::kF32;
  const bool out32 = call.q_out_type == DType::kF32;
  if (in32 && out32) return LaunchKv<kDim, float, float>(call.kv.dtype, args, stream);
  if (in32) return LaunchKv<kDim, float, __nv_bfloat16>(call.kv.dtype, args, stream);
  if (out32) return LaunchKv<kDim, __nv_bfloat16, float>(call.kv.dtype, args, stream);
  return LaunchKv<kDim, __nv_bfloat16, __nv_bfloat16>(call.kv.dtype, args, stream);
}

bool IsRowType(DType t) { return t == DType::kF32 || t == DType::kBF16; }

}  // namespace

Status RopeAppend(const RopeAppendCall& call, cudaStream_t stream) {
  const int32_t dim = call.kv.head_dim;
  if (dim != 64 && dim != 128 && dim != 256) {
    return InvalidArgument("CUDA RoPE has kernels for head_dim 64, 128 and 256, not " +
                           std::to_string(dim));
  }
  if (!IsRowType(call.qkv_type) || !IsRowType(call.q_out_type)) {
    return InvalidArgument("CUDA RoPE takes and gives rows of bf16 or f32");
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
