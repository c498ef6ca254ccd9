// Prefill attention. A producer warpgroup brings tiles of keys and values into shared memory by the
// copy engine (FP8: another warpgroup widens them to bf16 on the way); two consumer warpgroups of 64 query rows each multiply them with wgmma. While the tensor cores work on
// one tile's values, a warpgroup computes the next tile's softmax, and the two warpgroups take turns in issuing products, so
// that one's softmax runs under the other's products. This is the schedule of FlashAttention-3 (arXiv:2407.08608).
#include "kernels/cuda/attention/prefill_core.cuh"
#include "kernels/cuda/attention/wgmma.cuh"

namespace aisp::cuda {
namespace prefill {
namespace {

template <class T>
struct Consumer {
  static constexpr int kScores = T::kKeys / 2;  // registers of a 64 x kKeys tile
  static constexpr int kParts =
      T::kDim == 256 ? 2 : 1;  // products that the columns of the result take
  static constexpr int kOut = T::kDim / kParts / 2;

  const KernelArgs& a;
  Control* control;
  uint32_t q_area, k_ring, v_ring;
  int32_t group_index;  // of the warpgroup: 0 or 1
  int32_t thread;       // in the warpgroup
  float score_scale, out_scale;

  float o[kParts][kOut];
  float m[2], l[2];
  int32_t position[2];

  // Of row 8 * j + thread's own in the query tile.
  __device__ __forceinline__ int32_t RowOf(int j) const {
    return group_index * 64 + thread / 32 * 16 + j * 8 + thread % 32 / 4;
  }
  __device__ __forceinline__ void SyncGroup() const { ptx::NamedSync(4 + group_index, 128); }
  // The warpgroups take turns in issuing products.
  __device__ __forceinline__ void TakeTurn() const { ptx::NamedSync(2 + group_index, 256); }
  __device__ __forceinline__ void PassTurn() const { ptx::NamedArrive(2 + (group_index ^ 1), 256); }

  // This warpgroup's 64 rows to shared memory, as bf16. Rows past the tile's end are copies of its last.
  __device__ __forceinline__ void LoadQ(const Work& w) {
    constexpr int kChunks = T::kDim / 8;
    constexpr int kPasses = 64 * kChunks / 128;
    SyncGroup();  // nobody's products read the old rows any more
#pragma unroll 4
    for (int i = 0; i < kPasses; ++i) {
      const int32_t index = i * 128 + thread;
      const uint32_t row = group_index * 64 + index / kChunks;
      const uint32_t chunk = index % kChunks;
      const int32_t token =
          min(w.token_begin + static_cast<int32_t>(row) / a.group, w.span.num_rows - 1);
      const int32_t head = w.kv_head * a.group + static_cast<int32_t>(row) % a.group;
      const int64_t offset = (w.span.row_begin + static_cast<int64_t>(token)) * a.q_row_stride +
                             static_cast<int64_t>(head) * T::kDim + chunk * 8;
      uint4 v;
      if (a.q_is_f32) {
        const float4* from =
            reinterpret_cast<const float4*>(static_cast<const float*>(a.q) + offset);
        const float4 x = from[0];
        const float4 y = from[1];
        v = make_uint4(ptx::Pack2<false>(x.x, x.y), ptx::Pack2<false>(x.z, x.w),
                       ptx::Pack2<false>(y.x, y.y), ptx::Pack2<false>(y.z, y.w));
      } else {
        v = *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(a.q) + offset);
      }
      const uint32_t at =
          q_area + chunk / 8 * T::kQColumnBytes + row * 128 + (((chunk % 8) ^ (row & 7)) << 4);
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y),
                   "r"(v.z), "r"(v.w)
                   : "memory");
    }
    ptx::FenceProxyAsync();
    SyncGroup();
  }

  // s = Q K^T, issued only.
  __device__ __forceinline__ void IssueScores(float (&s)[kScores], int32_t stage) const {
    const uint32_t q = q_area + group_index * 64 * 128;
    const uint32_t k = k_ring + stage * T::kTileBytes;
    wgmma::Fence();
#pragma unroll
    for (int step = 0; step < T::kDim / 16; ++step) {
      const uint32_t inside = step % 4 * 32;
      wgmma::Scores(s, wgmma::RowsDescriptor(q + step / 4 * T::kQColumnBytes + inside),
                    wgmma::RowsDescriptor(k + step / 4 * T::kColumnBytes + inside), step > 0);
    }
    wgmma::Commit();
  }

  // o += P V, issued only.
  __device__ __forceinline__ void IssueValues(const uint32_t (&p)[kScores / 8][4], int32_t stage,
                                              bool add) {
    const uint32_t v = v_ring + stage * T::kTileBytes;
    wgmma::Fence();
#pragma unroll
    for (int step = 0; step < T::kKeys / 16; ++step) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const uint32_t columns = v + part * (T::kColumns / kParts) * T::kColumnBytes;
        wgmma::Values(o[part], p[step],
                      wgmma::ColumnsDescriptor(columns + step * 16 * 128, T::kColumnBytes),
                      add || step > 0);
      }
    }
    wgmma::Commit();
  }

  __device__ __forceinline__ void PinOut() {
#pragma unroll
    for (int part = 0; part < kParts; ++part) wgmma::Pin(o[part]);
  }

  __device__ __forceinline__ void Release(uint64_t* empty) const {
    if (thread % 32 == 0) ptx::BarrierArrive(ptx::SharedAddress(empty));
  }

  __device__ __forceinline__ void Mask(float (&s)[kScores], int32_t tile) const {
    const int32_t key0 = tile * T::kKeys + 2 * (thread % 4);
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int32_t key = key0 + i / 4 * 8 + i % 2;
      const int32_t pos = position[i / 2 % 2];
      if (key > pos || (a.window > 0 && key <= pos - a.window)) s[i] = -INFINITY;
    }
  }

  // Folds the tile's maxima and sums into the state, turns scores into weights; `factor`: what o is to be multiplied with.
  __device__ __forceinline__ void Softmax(float (&s)[kScores], float (&factor)[2]) {
    constexpr int kChains = 4;  // independent ones, for the latency
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float tops[kChains];
#pragma unroll
      for (int i = 0; i < kScores / 4; ++i) {
        const float two = fmaxf(s[4 * i + 2 * j], s[4 * i + 2 * j + 1]);
        tops[i % kChains] = i < kChains ? two : fmaxf(tops[i % kChains], two);
      }
      float top = fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      top = fmaxf(m[j], top * score_scale);
      const float safe = top == -INFINITY ? 0.0f : top;
      factor[j] = ptx::Exp2(m[j] - safe);
      m[j] = top;
      float sums[kChains] = {};
#pragma unroll
      for (int i = 0; i < kScores / 4; ++i) {
        float& x = s[4 * i + 2 * j];
        float& y = s[4 * i + 2 * j + 1];
        x = ptx::Exp2(fmaf(x, score_scale, -safe));
        y = ptx::Exp2(fmaf(y, score_scale, -safe));
        sums[i % kChains] += x + y;
      }
      l[j] = l[j] * factor[j] + ((sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
  }

  __device__ __forceinline__ void Pack(const float (&s)[kScores],
                                       uint32_t (&p)[kScores / 8][4]) const {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i)
      p[i / 4][i % 4] = ptx::Pack2<false>(s[2 * i], s[2 * i + 1]);
  }

  __device__ __forceinline__ void Rescale(const float (&factor)[2]) {
    if (!__any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < kOut; ++i) o[part][i] *= factor[i / 2 % 2];
    }
  }

  __device__ __forceinline__ bool NeedsMask(const Work& w, int32_t tile) const {
    const int32_t first = w.first_position + group_index * 64 / a.group;
    const int32_t last = w.first_position + (group_index * 64 + 63) / a.group;
    return (tile + 1) * T::kKeys - 1 > first ||
           (a.window > 0 && tile * T::kKeys <= last - a.window);
  }

  // Values past the context may be anything, NaN too, and zero times NaN is not zero.
  __device__ __forceinline__ void ZeroTail(const Work& w, int32_t tile, int32_t stage) const {
    if constexpr (T::kFp8) return;
    const int32_t valid = w.span.context_len - tile * T::kKeys;
    if (valid >= T::kKeys) return;
    const uint32_t v = v_ring + stage * T::kTileBytes;
    for (int32_t i = thread; i < (T::kKeys - valid) * T::kDim / 8; i += 128) {
      const int32_t row = valid + i / (T::kDim / 8);
      const int32_t chunk = i % (T::kDim / 8);
      const uint32_t at = v + chunk / 8 * T::kColumnBytes + row * 128 + chunk % 8 * 16;
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
    }
    ptx::FenceProxyAsync();
    SyncGroup();
  }

  __device__ __forceinline__ void Write(const Work& w) const {
    const int32_t tokens = kPrefillRows / a.group;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int32_t row = RowOf(j);
      const int32_t local = row / a.group;
      const int32_t token = w.token_begin + local;
      if (local >= tokens || token >= w.span.num_rows) continue;
      const float inverse = out_scale / l[j];
      const int64_t base = (w.span.row_begin + static_cast<int64_t>(token)) * a.out_row_stride +
                           static_cast<int64_t>(w.kv_head * a.group + row % a.group) * T::kDim +
                           2 * (thread % 4);
#pragma unroll
      for (int n = 0; n < T::kDim / 8; ++n) {
        const int part = n / (kOut / 4);
        const int at = n % (kOut / 4) * 4 + 2 * j;
        const float x = o[part][at] * inverse;
        const float y = o[part][at + 1] * inverse;
        if (a.out_is_f32) {
          *reinterpret_cast<float2*>(static_cast<float*>(a.out) + base + 8 * n) = make_float2(x, y);
        } else {
          *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(a.out) + base + 8 * n) =
              ptx::Pack2<false>(x, y);
        }
      }
    }
  }

  // One piece of work; its queries are there already, and those of `next` (if there is `more`) are brought under the last product.
  __device__ __forceinline__ void One(const Work& w, bool more, const Work& next,
                                      Place<T::kStages>& k, Place<T::kStages>& v) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int32_t token = min(w.token_begin + RowOf(j) / a.group, w.span.num_rows - 1);
      position[j] = w.span.context_len - w.span.num_rows + token;
    }
    m[0] = m[1] = -INFINITY;
    l[0] = l[1] = 0.0f;
    float s[kScores];
    float factor[2];
    uint32_t p[kScores / 8][4];

    int32_t tile = w.high_tile;
    ptx::BarrierWait(ptx::SharedAddress(&control->k_full[k.stage]), k.phase);
    TakeTurn();
    IssueScores(s, k.stage);
    PassTurn();
    wgmma::Wait<0>();
    wgmma::Pin(s);
    Release(&control->k_empty[k.stage]);
    k.Advance();
    if (NeedsMask(w, tile)) Mask(s, tile);
    Softmax(s, factor);
    Pack(s, p);
    bool first = true;
    for (--tile; tile >= w.low_tile; --tile) {
      ptx::BarrierWait(ptx::SharedAddress(&control->k_full[k.stage]), k.phase);
      TakeTurn();
      IssueScores(s, k.stage);
      ptx::BarrierWait(ptx::SharedAddress(&control->v_full[v.stage]), v.phase);
      if (first) ZeroTail(w, tile + 1, v.stage);
      IssueValues(p, v.stage, !first);
      first = false;
      PassTurn();
      wgmma::Wait<1>();
      wgmma::Pin(s);
      Release(&control->k_empty[k.stage]);
      k.Advance();
      if (NeedsMask(w, tile)) Mask(s, tile);
      Softmax(s, factor);
      wgmma::Wait<0>();
      PinOut();
      Release(&control->v_empty[v.stage]);
      v.Advance();
      Rescale(factor);
      Pack(s, p);
    }
    ptx::BarrierWait(ptx::SharedAddress(&control->v_full[v.stage]), v.phase);
    if (first) ZeroTail(w, w.low_tile, v.stage);
    IssueValues(p, v.stage, !first);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      l[j] += __shfl_xor_sync(~0u, l[j], 1);
      l[j] += __shfl_xor_sync(~0u, l[j], 2);
    }
    if (more) LoadQ(next);
    wgmma::Wait<0>();
    PinOut();
    Release(&control->v_empty[v.stage]);
    v.Advance();
    Write(w);
  }

  __device__ __forceinline__ void Run() {
    Place<T::kStages> k, v;
    if (group_index == 1) PassTurn();  // the first turn is warpgroup 0's
    Rounds rounds(a);
    if (rounds.Done()) return;
    Work w = LoadWork<T>(a, rounds.current());
    LoadQ(w);
    for (bool more = true; more;) {
      rounds.Next();
      more = !rounds.Done();
      const Work next = more ? LoadWork<T>(a, rounds.current()) : w;
      One(w, more, next, k, v);
      w = next;
    }
  }
};

template <int kDim, bool kFp8>
__global__ void __launch_bounds__((Traits<kDim, kFp8>::kThreads), 1)
    PrefillKernel(const __grid_constant__ CUtensorMap map,
                  const __grid_constant__ KernelArgs args) {
  using T = Traits<kDim, kFp8>;
  extern __shared__ __align__(1024) uint8_t shared[];
  Control* control = reinterpret_cast<Control*>(shared);
  const uint32_t q_area = ptx::SharedAddress(shared) + T::kControlBytes;
  const uint32_t k_ring = q_area + T::kQBytes;
  const uint32_t v_ring = k_ring + T::kStages * T::kTileBytes;
  const uint32_t raw_ring = v_ring + T::kStages * T::kTileBytes;
  if (threadIdx.x == 0) {
    ptx::PrefetchMap(&map);
    for (int s = 0; s < T::kStages; ++s) {
      ptx::BarrierInit(ptx::SharedAddress(&control->k_full[s]), kFp8 ? 128 : 1);
      ptx::BarrierInit(ptx::SharedAddress(&control->v_full[s]), kFp8 ? 128 : 1);
      ptx::BarrierInit(ptx::SharedAddress(&control->k_empty[s]), kConsumerWarps);
      ptx::BarrierInit(ptx::SharedAddress(&control->v_empty[s]), kConsumerWarps);
    }
    for (int s = 0; s < kRawStages; ++s) {
      ptx::BarrierInit(ptx::SharedAddress(&control->raw_full[s]), 1);
      ptx::BarrierInit(ptx::SharedAddress(&control->raw_empty[s]), 128);
    }
    ptx::BarrierInitFence();
  }
  __syncthreads();
  ptx::WaitForPredecessor();
  ptx::LetSuccessorStart();
  const int32_t warpgroup = static_cast<int32_t>(threadIdx.x) / 128;
  if (warpgroup == 2) {
    ptx::RegistersDown<40>();
    if (threadIdx.x / 32 == kConsumerWarps)
      Produce<T>(args, &map, control, k_ring, v_ring, raw_ring);
  } else if (warpgroup == 3) {
    ptx::RegistersDown<40>();
    if constexpr (kFp8) Widen<T>(args, control, k_ring, v_ring, raw_ring);
  } else {
    ptx::RegistersUp<T::kConsumerRegisters>();
    const float k_scale = args.device_scales != nullptr ? args.device_scales[0] : args.k_scale;
    const float v_scale = args.device_scales != nullptr ? args.device_scales[1] : args.v_scale;
    Consumer<T> consumer{args,
                         control,
                         q_area,
                         k_ring,
                         v_ring,
                         warpgroup,
                         static_cast<int32_t>(threadIdx.x) % 128,
                         args.scale_log2 * (kFp8 ? k_scale : 1.0f),
                         kFp8 ? v_scale : 1.0f};
    consumer.Run();
  }
}

struct Variant {
  int32_t head_dim;
  bool fp8;
  void (*kernel)(CUtensorMap, KernelArgs);
  int32_t threads;
  int32_t shared_bytes;
};

template <int kDim, bool kFp8>
constexpr Variant MakeVariant() {
  return {kDim, kFp8, PrefillKernel<kDim, kFp8>, Traits<kDim, kFp8>::kThreads,
          static_cast<int32_t>(Traits<kDim, kFp8>::kSharedBytes)};
}

constexpr Variant kVariants[] = {
    MakeVariant<64, false>(), MakeVariant<64, true>(),   MakeVariant<128, false>(),
    MakeVariant<128, true>(), MakeVariant<256, false>(), MakeVariant<256, true>(),
};

const Variant* Find(int32_t head_dim, bool fp8) {
  for (const Variant& v : kVariants) {
    if (v.head_dim == head_dim && v.fp8 == fp8) return &v;
  }
  return nullptr;
}

}  // namespace
}  // namespace prefill

int32_t PrefillSharedBytes(int32_t head_dim, bool fp8) {
  const prefill::Variant* v = prefill::Find(head_dim, fp8);
  return v == nullptr ? 0 : v->shared_bytes;
}

cudaError_t PreparePrefill(int32_t head_dim, bool fp8) {
  const prefill::Variant* v = prefill::Find(head_dim, fp8);
  if (v == nullptr) return cudaErrorInvalidValue;
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(v->kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, v->shared_bytes);
}

cudaError_t LaunchPrefill(int32_t head_dim, bool fp8, int32_t ctas, const CUtensorMap& map,
                          const KernelArgs& args, cudaStream_t stream) {
  const prefill::Variant* v = prefill::Find(head_dim, fp8);
  if (v == nullptr) return cudaErrorInvalidValue;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<uint32_t>(ctas));
  config.blockDim = dim3(static_cast<uint32_t>(v->threads));
  config.dynamicSmemBytes = static_cast<size_t>(v->shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, v->kernel, map, args);
}

}  // namespace aisp::cuda
