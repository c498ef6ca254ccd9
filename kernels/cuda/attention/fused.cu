// Decode attention in one launch: normalises and rotates q and k, appends k and v, attends over all keys, adds up what CTAs share.
//
// A CTA is four warps, each with a ring of its own: it copies, waits and computes alone, and meets the others at an item's end.
// One CTA keeps to 48 KiB of shared memory and 21.5K registers, so that the next kernel's can sit beside it and fetch its weights.
//
// What is read before the kernel before this one is known to be done (griddepcontrol.wait), and why that is right. Spans, block
// tables, positions and slots are copied to the device before the step's first kernel starts, and no kernel of a step writes
// them. A layer's pool is written by this kernel alone while a step runs, in the slot of the step's own position, which is never
// copied before the wait (it is zeros in the ring, then what this CTA computed). All older slots were written in earlier steps,
// by copies, or by the prompt's kernels: a step is a graph of its own, or follows a copy, on the same stream, and neither
// overlaps with what is before it; early starts (programmatic dependent launch) happen only between kernels of one step. So the
// writer need not be the kernel before: whoever it is, it was complete before this step's first kernel began.
// What must not be: a kernel that lets its successors start early and writes older slots, and then the kernels of a step, with no
// upload, event or start of a graph between them.
// All else - qkv, and the partials, which the launch before may still be emptying - is touched after the wait. Every CTA waits,
// with or without work: the next kernel relies on it.
#include "kernels/cuda/attention/fused.cuh"

#include "kernels/cuda/attention/fused_core.cuh"

namespace aisp::cuda {
namespace fused {
namespace {

struct MergeScratch {
  float2 norms[kWarps][16];  // {m, l} of a warp's rows
  uint32_t at[kWarps];       // where its result lies in the ring
};

__device__ __forceinline__ uint32_t NotEmpty(uint32_t bits) {
  return bits == 0xffffffffu ? 0x7fffffffu : bits;
}
__device__ __forceinline__ void StorePart(float4* to, float4 v) {
  asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to),
               "r"(NotEmpty(__float_as_uint(v.x))), "r"(NotEmpty(__float_as_uint(v.y))),
               "r"(NotEmpty(__float_as_uint(v.z))), "r"(NotEmpty(__float_as_uint(v.w)))
               : "memory");
}
__device__ __forceinline__ void StorePart(float2* to, float2 v) {
  asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};" ::"l"(to),
               "r"(NotEmpty(__float_as_uint(v.x))), "r"(NotEmpty(__float_as_uint(v.y)))
               : "memory");
}
// If `there`; else `v` stays as it is.
__device__ __forceinline__ void LoadPart(bool there, const float4* from, float4& v) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
      "@p ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
      : "+f"(v.x), "+f"(v.y), "+f"(v.z), "+f"(v.w)
      : "l"(from), "r"(static_cast<int>(there))
      : "memory");
}
__device__ __forceinline__ void LoadPart(bool there, const float2* from, float2& v) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n"
      "@p ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];\n}"
      : "+f"(v.x), "+f"(v.y)
      : "l"(from), "r"(static_cast<int>(there))
      : "memory");
}
// All ones if a word is empty.
__device__ __forceinline__ uint32_t Emptiest(float2 v) {
  return max(__float_as_uint(v.x), __float_as_uint(v.y));
}
__device__ __forceinline__ uint32_t Emptiest(float4 v) {
  return max(max(__float_as_uint(v.x), __float_as_uint(v.y)),
             max(__float_as_uint(v.z), __float_as_uint(v.w)));
}

// Makes a wait that would never end a failed launch, where a build asks for it.
struct WaitLimit {
#ifdef AISP_ATTENTION_WAIT_LIMIT
  int32_t left = 1 << 22;
  __device__ __forceinline__ void Count() {
    if (--left == 0) __trap();
  }
#else
  __device__ __forceinline__ void Count() {}
#endif
};

// A row's four elements, relative to `m`.
struct Piece {
  float m = -INFINITY;
  float l = 0.0f;
  float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

  // Makes it relative to `top`, which is not below m and finite.
  __device__ __forceinline__ void Scale(float top) {
    const float factor = ptx::Exp2(m - top);
    m = top;
    l *= factor;
    o = make_float4(o.x * factor, o.y * factor, o.z * factor, o.w * factor);
  }
  __device__ __forceinline__ void Add(const float4& more, float factor) {
    o.x += more.x * factor;
    o.y += more.y * factor;
    o.z += more.z * factor;
    o.w += more.w * factor;
  }
};

template <int kDim, bool kFp8, int kRowTiles>
struct Worker {
  using C = Core<kDim, kFp8, kRowTiles>;
  using S = typename C::S;
  static constexpr int kLanesPerRow = kDim / 4;  // in a merge: a thread has four elements
  static constexpr int kRowsAtOnce = kThreads / kLanesPerRow;

  const FusedArgs& a;
  uint8_t* ring;  // of the CTA
  MergeScratch& merge;
  int32_t share;
  float v_scale = 1.0f;

  // Where a warp's element {row, dim} lies in its result.
  static __device__ __forceinline__ int ResultAt(int row, int dim) {
    return row * kDim + (dim ^ ((row >> 1 & 3) << 3));
  }

  __device__ __forceinline__ void Work(Walk<S::kStepKeys> walk, Feed<S>& feed) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    uint8_t* mine = ring + warp * kUnits * kUnitBytes;
    const uint32_t slots = ptx::SharedAddress(mine);
    uint32_t slot = 0;
    const auto next_slot = [&] { slot = slot == kUnits - 1 ? 0 : slot + 1; };
    int owed = kUnits;  // free slots that nothing is on its way to
    C core{a, lane, a.scale_log2};
    do {
#pragma unroll 1
      for (; owed > 0; --owed) {
        feed.Copy(slots + slot * kUnitBytes);
        next_slot();
      }
      const Segment& at = walk.at;
      const int32_t top = walk.Top();
      const bool owns_last = top == at.count - 1;
      const auto angles = core.LoadAngles(at);
      ptx::WaitForPredecessor();  // the first time
      const NewKey fresh = Prepare(core, at, angles, owns_last);
      const int32_t low = a.window > 0 ? max(0, at.span.context_len - a.window) : 0;
      uint32_t p[C::kKeyTiles][kRowTiles][2];
      bool values = false;
#pragma unroll 1
      for (int32_t j = top; j >= at.lo;) {
        const int32_t key0 = (at.first + j) * S::kStepKeys;
        uint32_t x[8][4];
        asm volatile("cp.async.wait_group %0;" ::"n"(kUnits - 1) : "memory");
        __syncwarp();
        if (owns_last && j == top) {
          const uint32_t pairs[2] = {values ? fresh.v[0] : fresh.k[0],
                                     values ? fresh.v[1] : fresh.k[1]};
          core.Patch(mine + slot * kUnitBytes,
                     static_cast<uint32_t>(at.span.context_len - 1 - key0), pairs);
        }
        if (values) {
          core.template LoadUnit<true>(slots + slot * kUnitBytes, x);
        } else {
          core.template LoadUnit<false>(slots + slot * kUnitBytes, x);
        }
        __syncwarp();
        if (values && j - kWarps < at.lo) {
          owed = 1;  // the last values' place is the result's
        } else {
          feed.Copy(slots + slot * kUnitBytes);
          next_slot();
        }
        if (values) {
          core.Values(x, p);
          j -= kWarps;
        } else {
          float s[C::kKeyTiles][kRowTiles][4];
          core.Scores(x, s);
          if (key0 < low || key0 + S::kStepKeys > at.span.context_len)
            core.Mask(key0, low, at.span.context_len, s);
          core.Softmax(s, p);
        }
        values = !values;
      }
      Finish(core, at, reinterpret_cast<float*>(mine + slot * kUnitBytes), owed > 0);
    } while (walk.Next(a));
  }

  // An item's query rows and, by the warp that has its last step, its new key.
  __device__ __forceinline__ NewKey Prepare(C& core, const Segment& at,
                                            const typename C::Angles& angles, bool owns_last) {
    const float k_scale = a.device_scales != nullptr ? a.device_scales[0] : a.k_scale;
    v_scale = a.device_scales != nullptr ? a.device_scales[1] : a.v_scale;
    core.score_scale = a.scale_log2 * (kFp8 ? k_scale : 1.0f);
    core.LoadQ(at, angles);
    NewKey fresh{};
    if (owns_last) fresh = core.Append(at, angles, k_scale, v_scale);
    core.Clear();
    return fresh;
  }

  // Adds up the warps' results of a segment: the item's rows, or a part of them. By the whole CTA.
  __device__ __forceinline__ void Finish(C& core, const Segment& at, float* result, bool held) {
    const int lane = core.lane;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int r = lane / 4;
    const int c = lane % 4;
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int step = 4; step < 32; step *= 2)
          core.l[n][j] += __shfl_xor_sync(~0u, core.l[n][j], step);
        if (r == 0) {
          merge.norms[warp][8 * n + 2 * c + j] = make_float2(core.m[n][j], core.l[n][j]);
        }
      }
    }
    if (lane == 0)
      merge.at[warp] = static_cast<uint32_t>(reinterpret_cast<uint8_t*>(result) - ring);
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      if (held) {
#pragma unroll
        for (int i = 0; i < kDim / 16; ++i) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const float x = core.o[n][i][j], y = core.o[n][i][2 + j];
            if constexpr (kFp8) {
              *reinterpret_cast<float2*>(result + ResultAt(2 * c + j, 16 * i + 2 * r)) =
                  make_float2(x, y);
            } else {
              result[ResultAt(2 * c + j, 16 * i + r)] = x;
              result[ResultAt(2 * c + j, 16 * i + r + 8)] = y;
            }
          }
        }
      }
      __syncthreads();
#pragma unroll 1
      for (int pass = 0; pass < 8 / kRowsAtOnce; ++pass) {
        const int row = pass * kRowsAtOnce + static_cast<int>(threadIdx.x) / kLanesPerRow;
        if (8 * n + row < a.group && at.hi > 0) FinishRow(at, row, 8 * n + row);
      }
      __syncthreads();
    }
  }

  __device__ __forceinline__ void FinishRow(const Segment& at, int row, int group_row) {
    const int chunk = static_cast<int>(threadIdx.x) % kLanesPerRow;
    Piece piece;
    float2 norms[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      norms[w] = merge.norms[w][group_row];
      piece.m = fmaxf(piece.m, norms[w].x);
    }
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (norms[w].x == -INFINITY) continue;  // had no step
      const float factor = ptx::Exp2(norms[w].x - piece.m);
      piece.l += norms[w].y * factor;
      piece.Add(*reinterpret_cast<const float4*>(ring + merge.at[w] +
                                                 sizeof(float) * ResultAt(row, 4 * chunk)),
                factor);
    }
    if (at.hi < at.count) {
      const int64_t place = static_cast<int64_t>(blockIdx.x) * a.group + group_row;
      StorePart(reinterpret_cast<float4*>(a.partials + place * kDim) + chunk, piece.o);
      if (chunk == 0) StorePart(Norms() + place, make_float2(piece.m, piece.l));
      return;
    }
    if (at.lo > 0) AddParts(at, group_row, chunk, piece);
    Write(at, group_row, chunk, piece);
  }

  __device__ __forceinline__ float2* Norms() const {
    return reinterpret_cast<float2*>(a.partials + static_cast<int64_t>(gridDim.x) * a.group * kDim);
  }

  // The parts of the item that CTAs before this one have left, in their order, and empties their places. Each lane of a row looks
  // after one part's norm.
  __device__ __forceinline__ void AddParts(const Segment& at, int group_row, int chunk,
                                           Piece& piece) const {
    constexpr int kAtOnce = 16;
    const float nothing = __uint_as_float(~0u);
    const int32_t end = static_cast<int32_t>(blockIdx.x);
    const uint32_t row_lanes =
        kLanesPerRow == 32 ? ~0u : 0xffffu << (threadIdx.x % 32 / kLanesPerRow * kLanesPerRow);
    Piece sum;
#pragma unroll 1
    for (int32_t base = at.place / share; base < end; base += kAtOnce) {
      const int64_t place = static_cast<int64_t>(base) * a.group + group_row;
      float2* const norm_at = Norms() + place + chunk * a.group;
      float4* const values = reinterpret_cast<float4*>(a.partials + place * kDim) + chunk;
      const int32_t stride = a.group * (kDim / 4);
      const bool has_norm = chunk < kAtOnce && base + chunk < end;
      float2 norm = make_float2(-INFINITY, 0.0f);
      float4 o[kAtOnce] = {};
      uint32_t emptiest;
      WaitLimit limit;
      do {
        LoadPart(has_norm, norm_at, norm);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) LoadPart(base + i < end, values + i * stride, o[i]);
        emptiest = Emptiest(norm);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) emptiest = max(emptiest, Emptiest(o[i]));
        limit.Count();
      } while (__any_sync(row_lanes, emptiest == ~0u));
      if (has_norm) *norm_at = make_float2(nothing, nothing);
      float top = fmaxf(norm.x, sum.m);
#pragma unroll
      for (int step = 1; step < kLanesPerRow; step *= 2)
        top = fmaxf(top, __shfl_xor_sync(row_lanes, top, step));
      const float weight = ptx::Exp2(norm.x - top);
      float l = norm.y * weight;
#pragma unroll
      for (int step = 1; step < kLanesPerRow; step *= 2) l += __shfl_xor_sync(row_lanes, l, step);
      sum.Scale(top);
      sum.l += l;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        sum.Add(o[i], __shfl_sync(row_lanes, weight, i, kLanesPerRow));
        if (base + i < end) values[i * stride] = make_float4(nothing, nothing, nothing, nothing);
      }
    }
    const float top = fmaxf(sum.m, piece.m);
    sum.Scale(top);
    const float factor = ptx::Exp2(piece.m - top);
    sum.l += piece.l * factor;
    sum.Add(piece.o, factor);
    piece = sum;
  }

  __device__ __forceinline__ void Write(const Segment& at, int group_row, int chunk,
                                        const Piece& piece) const {
    const float inverse = __fdividef(kFp8 ? v_scale : 1.0f, piece.l);
    const int64_t to = at.span.row_begin * a.out_row_stride +
                       static_cast<int64_t>(at.head * a.group + group_row) * kDim + 4 * chunk;
    const float4 v = make_float4(piece.o.x * inverse, piece.o.y * inverse, piece.o.z * inverse,
                                 piece.o.w * inverse);
    if (a.out_is_f32) {
      *reinterpret_cast<float4*>(static_cast<float*>(a.out) + to) = v;
    } else {
      *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(a.out) + to) =
          make_uint2(ptx::Pack2<false>(v.x, v.y), ptx::Pack2<false>(v.z, v.w));
    }
  }
};

template <int kDim, bool kFp8, int kRowTiles>
__global__ void __launch_bounds__(kThreads, kRowTiles == 1 ? 3 : 2)
    FusedKernel(const __grid_constant__ FusedArgs a) {
  using S = Shape<kDim, kFp8, kRowTiles>;
  extern __shared__ __align__(1024) uint8_t ring[];
  __shared__ LineScratch scratch;
  __shared__ MergeScratch merge;
  ptx::LetSuccessorStart();
  const Line line = ScanLine<S::kStepKeys>(a, scratch);
  const int32_t begin = static_cast<int32_t>(blockIdx.x) * line.share;
  const int32_t end = min(begin + line.share, line.total);
  if (begin >= end) {
    ptx::WaitForPredecessor();
    return;
  }
  __shared__ __align__(16) uint8_t walks[kWarps][sizeof(Walk<S::kStepKeys>)];
  const Walk<S::kStepKeys> walk(a, line, scratch, begin, end);
  auto* feed_walk = reinterpret_cast<Walk<S::kStepKeys>*>(walks[threadIdx.x / 32]);
  *feed_walk = walk;  // all lanes the same
  __syncwarp();
  Feed<S> feed(a, *feed_walk);
  Worker<kDim, kFp8, kRowTiles> worker{a, ring, merge, line.share};
  worker.Work(walk, feed);
  asm volatile("cp.async.wait_all;" ::: "memory");
}

using Kernel = void (*)(FusedArgs);

Kernel Find(int32_t head_dim, bool fp8, int32_t group) {
  if (group < 1 || group > 16) return nullptr;
  const bool wide = group > 8;
  if (head_dim == 128 && !fp8)
    return wide ? FusedKernel<128, false, 2> : FusedKernel<128, false, 1>;
  if (head_dim == 128 && fp8) return wide ? FusedKernel<128, true, 2> : FusedKernel<128, true, 1>;
#ifndef AISP_FUSED_ONLY_128
  if (head_dim == 64 && !fp8) return wide ? FusedKernel<64, false, 2> : FusedKernel<64, false, 1>;
  if (head_dim == 64 && fp8) return wide ? FusedKernel<64, true, 2> : FusedKernel<64, true, 1>;
#endif
  return nullptr;
}

}  // namespace
}  // namespace fused

bool HasFused(int32_t head_dim, int32_t group) {
  return fused::Find(head_dim, false, group) != nullptr;
}

int64_t FusedPartialBytes(int32_t head_dim, int32_t group, int32_t ctas) {
  return static_cast<int64_t>(ctas) * group * (head_dim * 4 + 8);
}

int32_t FusedCtasPerProcessor(int32_t group) { return group > 8 ? 2 : 3; }

cudaError_t PrepareFused(int32_t head_dim, bool fp8, int32_t group) {
  const fused::Kernel kernel = fused::Find(head_dim, fp8, group);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  const void* function = reinterpret_cast<const void*>(kernel);
  const cudaError_t code = cudaFuncSetAttribute(
      function, cudaFuncAttributeMaxDynamicSharedMemorySize, fused::kRingBytes);
  if (code != cudaSuccess) return code;
  // All of it shared memory: a multiprocessor cannot change its division while anything runs there, and the next kernel wants much.
  return cudaFuncSetAttribute(function, cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared);
}

cudaError_t LaunchFused(int32_t head_dim, bool fp8, int32_t ctas, const FusedArgs& args,
                        cudaStream_t stream) {
  const fused::Kernel kernel = fused::Find(head_dim, fp8, args.group);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<uint32_t>(ctas));
  config.blockDim = dim3(fused::kThreads);
  config.dynamicSmemBytes = fused::kRingBytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace aisp::cuda
