// Decode attention. Four producer warps stream key tiles (32 keys and their values) with the copy
// engine into a ring of stages. Four consumer warps take tiles in turn, each with its own running
// softmax, so that the main loop has no CTA-wide wait. The query rows of a warp are the {token,
// head} pairs that share a KV head, packed into 16-row matrix tiles. FP8 values are converted to
// f16 in registers, exactly; bf16 is used as it is.
#include <algorithm>

#include "kernels/cuda/attention/decode_consumer.cuh"

namespace aisp::cuda {
namespace decode {
namespace {

template <int kDim, bool kFp8, int kRowTiles>
__global__ void __launch_bounds__((Traits<kDim, kFp8, kRowTiles>::kThreads), 1)
    DecodeKernel(const __grid_constant__ CUtensorMap map, const __grid_constant__ KernelArgs args,
                 int32_t stages) {
  using T = Traits<kDim, kFp8, kRowTiles>;
  extern __shared__ __align__(1024) uint8_t shared[];
  Control* control = reinterpret_cast<Control*>(shared);
  const uint32_t ring = ptx::SharedAddress(shared) + kControlBytes;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  Trace(0);
  if (threadIdx.x == 0) {
    ptx::PrefetchMap(&map);
    for (int s = 0; s < stages; ++s) {
      ptx::BarrierInit(ptx::SharedAddress(&control->full[s]), 1);
      ptx::BarrierInit(ptx::SharedAddress(&control->empty[s]),
                       static_cast<uint32_t>(args.row_groups));
    }
    for (int s = 0; s < 2; ++s) {
      ptx::BarrierInit(ptx::SharedAddress(&control->range_full[s]), 1);
      ptx::BarrierInit(ptx::SharedAddress(&control->range_empty[s]), T::kWarps + kProducers);
    }
    ptx::BarrierInitFence();
  }
  __syncthreads();
  ptx::WaitForPredecessor();
  ptx::LetSuccessorStart();
  Trace(1);
  const int32_t chunk_rows = 16 * kRowTiles * args.row_groups;
  if (warp >= T::kWarps) {
    if constexpr (T::kWarps == 8) ptx::RegistersDown<40>();
    Produce<T>(args, &map, control, ring, stages, chunk_rows, warp - T::kWarps);
  } else {
    if constexpr (T::kWarps == 8) ptx::RegistersUp<232>();
    Consumer<kDim, kFp8, kRowTiles> consumer{
        args,
        control,
        ring,
        reinterpret_cast<float4*>(shared + kControlBytes + stages * T::kStageBytes),
        stages,
        warp,
        static_cast<int32_t>(threadIdx.x) % 32,
        T::kWarps / args.row_groups,
        warp / args.row_groups,
        warp % args.row_groups,
        chunk_rows};
    const float k_scale = args.device_scales != nullptr ? args.device_scales[0] : args.k_scale;
    const float v_scale = args.device_scales != nullptr ? args.device_scales[1] : args.v_scale;
    consumer.score_scale = args.scale_log2 * (kFp8 ? k_scale : 1.0f);
    consumer.out_scale = kFp8 ? v_scale : 1.0f;
    consumer.Work();
    Trace(5);
  }
}

// Adds the parts of split items in order: one CTA per item and row group, one warp per pair of
// columns.
// Long: splitting the function changes register allocation even if all parts are inlined.
template <int kDim, bool kFp8, int kRowTiles>
__global__ void __launch_bounds__(kDim * 2) CombineKernel(const __grid_constant__ KernelArgs a) {
  using T = Traits<kDim, kFp8, kRowTiles>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int pair = static_cast<int>(threadIdx.x) / 32;
  const int row_group = static_cast<int>(blockIdx.y);
  ptx::WaitForPredecessor();
  ptx::LetSuccessorStart();
  const float v_scale = !kFp8 ? 1.0f : a.device_scales != nullptr ? a.device_scales[1] : a.v_scale;
  const int32_t at = static_cast<int32_t>(blockIdx.x);
  const CutItem cut = a.plan->cut[at];  // loaded together with the number of cut items, without
                                        // waiting for it
  constexpr int64_t kVectors = T::kStateBytes / 16;
  if (at < a.plan->cut_items) {
    const float4* head =
        a.partials +
        ((static_cast<int64_t>(cut.first) * 2 + 1) * a.row_groups + row_group) * kVectors + lane;
    const float4* rest =
        a.partials +
        (static_cast<int64_t>(cut.first + 1) * 2 * a.row_groups + row_group) * kVectors + lane;
    const int64_t stride = 2 * a.row_groups * kVectors;
    const int32_t count = cut.last - cut.first + 1;
    constexpr int kBatch = kDim == 256 ? 4 : 8;
    for (int i = 0; i < kRowTiles; ++i) {
      const int norm_at = (kRowTiles * (kDim / 8) + i) * 32;
      const int pair_at = (i * (kDim / 8) + 2 * pair) * 32;
      float top[2] = {-INFINITY, -INFINITY};
      float norms[2] = {};
      float sums[8] = {};
      // Loads of a batch are issued together; indices past the end load the last part with weight
      // zero.
      for (int32_t base = 0; base < count; base += kBatch) {
        float4 norm[kBatch], even[kBatch], odd[kBatch];
        float old[2] = {top[0], top[1]};
#pragma unroll
        for (int s = 0; s < kBatch; ++s) {
          const int32_t index = min(base + s, count - 1);
          const float4* part = index == 0 ? head : rest + (index - 1) * stride;
          norm[s] = part[norm_at];
          even[s] = part[pair_at];
          odd[s] = part[pair_at + 32];
        }
#pragma unroll
        for (int s = 0; s < kBatch; ++s) {
          top[0] = fmaxf(top[0], norm[s].x);
          top[1] = fmaxf(top[1], norm[s].y);
        }
        const float safe[2] = {top[0] == -INFINITY ? 0.0f : top[0],
                               top[1] == -INFINITY ? 0.0f : top[1]};
        const float factor[2] = {ptx::Exp2(old[0] - safe[0]), ptx::Exp2(old[1] - safe[1])};
        norms[0] *= factor[0];
        norms[1] *= factor[1];
#pragma unroll
        for (int k = 0; k < 8; ++k) sums[k] *= factor[k / 2 % 2];
#pragma unroll
        for (int s = 0; s < kBatch; ++s) {
          const bool there = base + s < count;
          const float x = there ? ptx::Exp2(norm[s].x - safe[0]) : 0.0f;
          const float y = there ? ptx::Exp2(norm[s].y - safe[1]) : 0.0f;
          norms[0] += norm[s].z * x;
          norms[1] += norm[s].w * y;
          sums[0] += even[s].x * x;
          sums[1] += even[s].y * x;
          sums[2] += even[s].z * y;
          sums[3] += even[s].w * y;
          sums[4] += odd[s].x * x;
          sums[5] += odd[s].y * x;
          sums[6] += odd[s].z * y;
          sums[7] += odd[s].w * y;
        }
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        int32_t token, query_head;
        if (!FindRow(a, cut.span, cut.item, 16 * kRowTiles * a.row_groups,
                     row_group * kRowTiles * 16, 2 * i + j, lane, token, query_head)) {
          continue;
        }
        WriteRow<kDim, kFp8>(a, cut.span, token, query_head, pair, sums + 2 * j, sums + 4 + 2 * j,
                             v_scale / norms[j]);
      }
    }
  }
}

using Kernel = void (*)(CUtensorMap, KernelArgs, int32_t);
using Combine = void (*)(KernelArgs);

struct Variant {
  int32_t head_dim;
  bool fp8;
  int32_t row_tiles;
  Kernel kernel;
  Combine combine;
  int32_t warps;
  int32_t stage_bytes, fixed_bytes, state_bytes;
};

template <int kDim, bool kFp8, int kRowTiles>
constexpr Variant MakeVariant() {
  using T = Traits<kDim, kFp8, kRowTiles>;
  return {kDim,
          kFp8,
          kRowTiles,
          DecodeKernel<kDim, kFp8, kRowTiles>,
          CombineKernel<kDim, kFp8, kRowTiles>,
          T::kWarps,
          T::kStageBytes,
          T::kFixedBytes,
          T::kStateBytes};
}

constexpr Variant kVariants[] = {
    MakeVariant<64, false, 1>(), MakeVariant<64, false, 2>(),  MakeVariant<64, true, 1>(),
    MakeVariant<64, true, 2>(),  MakeVariant<128, false, 1>(), MakeVariant<128, false, 2>(),
    MakeVariant<128, true, 1>(), MakeVariant<128, true, 2>(),  MakeVariant<256, false, 1>(),
    MakeVariant<256, true, 1>(),
};

const Variant* Find(int32_t head_dim, bool fp8, int32_t row_tiles) {
  for (const Variant& v : kVariants) {
    if (v.head_dim == head_dim && v.fp8 == fp8 && v.row_tiles == row_tiles) return &v;
  }
  return nullptr;
}

}  // namespace
}  // namespace decode

using namespace decode;

#ifdef AISP_ATTENTION_TRACE
cudaError_t ReadDecodeTrace(uint64_t (*to)[8]) {
  return cudaMemcpyFromSymbol(to, decode::trace, sizeof(decode::trace));
}
#endif

DecodeTuning TuneDecode(int32_t head_dim, bool fp8, int32_t rows, int32_t shared_limit) {
  DecodeTuning tuning;
  tuning.row_tiles = rows > 16 && head_dim < 256 ? 2 : 1;
  const Variant* v = Find(head_dim, fp8, tuning.row_tiles);
  if (v == nullptr) return tuning;
  while (tuning.row_groups < v->warps && tuning.chunk_rows() < rows) tuning.row_groups *= 2;
  tuning.splits = v->warps / tuning.row_groups;
  // A multiple of the warps, so that a stage always belongs to the same warps. Otherwise a warp
  // waiting for a stage could mistake the phase before the last for the next one.
  tuning.stages = std::min(kMaxStages, (shared_limit - v->fixed_bytes) / v->stage_bytes);
  tuning.stages -= tuning.stages % v->warps;
  tuning.shared_bytes = v->fixed_bytes + tuning.stages * v->stage_bytes;
  return tuning;
}

int64_t DecodePartialBytes(int32_t head_dim, const DecodeTuning& tuning, int32_t ranges) {
  const Variant* v = Find(head_dim, false, tuning.row_tiles);
  return v == nullptr ? 0 : static_cast<int64_t>(v->state_bytes) * 2 * tuning.row_groups * ranges;
}

cudaError_t PrepareDecode(int32_t head_dim, bool fp8, const DecodeTuning& tuning) {
  const Variant* v = Find(head_dim, fp8, tuning.row_tiles);
  if (v == nullptr) return cudaErrorInvalidValue;
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(v->kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, tuning.shared_bytes);
}

cudaError_t LaunchDecode(int32_t head_dim, bool fp8, const DecodeTuning& tuning, int32_t ctas,
                         int32_t num_sequences, const CUtensorMap& map, const KernelArgs& args,
                         cudaStream_t stream) {
  const Variant* v = Find(head_dim, fp8, tuning.row_tiles);
  if (v == nullptr) return cudaErrorInvalidValue;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<uint32_t>(ctas));
  config.blockDim = dim3(static_cast<uint32_t>(32 * (v->warps + kProducers)));
  config.dynamicSmemBytes = static_cast<size_t>(tuning.shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const cudaError_t code = cudaLaunchKernelEx(&config, v->kernel, map, args, tuning.stages);
  if (code != cudaSuccess) return code;
  // At most every item is cut, and at most every range cuts one.
  const int32_t chunks =
      (args.decode_tokens * args.group + tuning.chunk_rows() - 1) / tuning.chunk_rows();
  const int64_t items = static_cast<int64_t>(num_sequences) * args.num_kv_heads * chunks;
  config.gridDim =
      dim3(static_cast<uint32_t>(std::clamp<int64_t>(items, 1, tuning.max_ranges(ctas))),
           static_cast<uint32_t>(tuning.row_groups));
  config.blockDim = dim3(static_cast<uint32_t>(2 * head_dim));
  config.dynamicSmemBytes = 0;
  return cudaLaunchKernelEx(&config, v->combine, args);
}

}  // namespace aisp::cuda
