// Decode attention in one launch, the work of a CTA's warps: each processes its tiles of an item,
// then they add their results.
#pragma once

#include "kernels/cuda/attention/fused_core.cuh"

namespace aisp::cuda::fused {

struct MergeScratch {
  float2 norms[kWarps][16];  // {m, l} of a warp's rows
  uint32_t at[kWarps];       // position of its result in the ring
};

__device__ __forceinline__ float VScale(const FusedArgs& a) {
  return a.device_scales != nullptr ? a.device_scales[1] : a.v_scale;
}

// Four elements of a row, relative to `m`.
struct Piece {
  float m = -INFINITY;
  float l = 0.0f;
  float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

  // Rescales to `top`, which is finite and not below m.
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

// Writes four elements of an item's complete row to `out` and, if not null, to `published`.
template <int kDim, bool kFp8, bool kSeveral>
__device__ __forceinline__ void StoreRow(const FusedArgs& a, const Segment& at, int item_row,
                                         int chunk, const Piece& piece, uint32_t* published) {
  const float inverse = __fdividef(kFp8 ? VScale(a) : 1.0f, piece.l);
  const ItemRows item = RowsOf<kSeveral>(a, at);
  const int row = kSeveral ? item_row / a.group : 0;
  const int head = item.head * a.group + item_row - row * a.group;
  const int64_t to = (at.span.row_begin + item.first + row) * a.out_row_stride +
                     static_cast<int64_t>(head) * kDim + 4 * chunk;
  const float4 v = make_float4(piece.o.x * inverse, piece.o.y * inverse, piece.o.z * inverse,
                               piece.o.w * inverse);
  if (a.out_is_f32) {
    *reinterpret_cast<float4*>(static_cast<float*>(a.out) + to) = v;
    return;
  }
  const uint2 packed = make_uint2(ptx::Pack2<false>(v.x, v.y), ptx::Pack2<false>(v.z, v.w));
  if (published != nullptr) StoreRelaxed(published + to / 2, packed);
  *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(a.out) + to) = packed;
}

// The joint work of a CTA's warps. Kernel decides what happens with an item's rows or parts of
// them: void Store<kFp8>(const Segment&, int item_row, int chunk, const Piece&): four elements,
// kDim / 4 threads per row. Kernel::kStages: a CTA has one item of several rows, and all its warps
// prepare the new keys.
template <int kDim, bool kFp8, int kRowTiles, bool kOne, bool kSeveral, class Kernel>
struct Worker {
  using C = Core<kDim, kFp8, kRowTiles, kOne, kSeveral>;
  using S = typename C::S;
  static constexpr int kLanesPerRow = kDim / 4;  // when merging: four elements per thread
  static constexpr int kRowsAtOnce = kThreads / kLanesPerRow;

  const FusedArgs& a;
  uint8_t* ring;  // of the CTA
  MergeScratch& merge;
  Kernel& kernel;
  // For kOne; see Core.
  const __nv_bfloat16* qkv = nullptr;
  bool await = false;
  QueryRows<kDim, kRowTiles>* rows = nullptr;
  StagedRows* staged = nullptr;  // for kStages

  // Offset of a warp's element {row, dim} in its result.
  static __device__ __forceinline__ int ResultAt(int row, int dim) {
    return row * kDim + (dim ^ ((row >> 1 & 3) << 3));
  }

  // Long: splitting the function changes register allocation and scheduling even if all parts are
  // inlined.
  __device__ __forceinline__ void Work(typename S::Segments segments, KvCopies<S>& copies) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    uint8_t* mine = ring + warp * kUnits * kUnitBytes;
    const uint32_t slots = ptx::SharedAddress(mine);
    uint32_t slot = 0;
    const auto next_slot = [&] { slot = slot == kUnits - 1 ? 0 : slot + 1; };
    int owed = kUnits;  // free slots without a copy in progress
    C core{{a, lane, qkv, await}, a.scale_log2, rows};
    do {
#pragma unroll 1
      for (; owed > 0; --owed) {
        copies.Copy(slots + slot * kUnitBytes);
        next_slot();
      }
      const Segment& at = segments.at;
      const int32_t top = segments.Top();
      const bool owns_last = top == at.count - 1;
      const auto angles = core.LoadAngles(at);
      if (!(kOne && await)) ptx::WaitForPredecessor();  // only has an effect the first time
      const NewKey fresh = Prepare(core, at, angles, owns_last);
      const int32_t low = LowestKey(a, at.span);
      uint32_t p[C::kKeyTiles][kRowTiles][2];
      bool values = false;
#pragma unroll 1
      for (int32_t j = top; j >= at.lo;) {
        const int32_t key0 = (at.first + j) * S::kKeysPerTile;
        uint32_t x[8][4];
        asm volatile("cp.async.wait_group %0;" ::"n"(kUnits - 1) : "memory");
        __syncwarp();
        if constexpr (Kernel::kStages) {
          if (key0 + S::kKeysPerTile > OldKeys(at.span))
            core.PatchStaged(at, key0, FirstNewKey(at), values, *staged, mine + slot * kUnitBytes);
        } else if constexpr (kSeveral) {
          if (key0 + S::kKeysPerTile > OldKeys(at.span))
            AppendRows(core, at, key0, values, mine + slot * kUnitBytes);
        } else if (owns_last && j == top) {
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
          owed = 1;  // the result was written where the last values were
        } else {
          copies.Copy(slots + slot * kUnitBytes);
          next_slot();
        }
        if (values) {
          core.Values(x, p);
          j -= kWarps;
        } else {
          float s[C::kKeyTiles][kRowTiles][4];
          core.Scores(x, s);
          if constexpr (kSeveral) {
            if (key0 + S::kKeysPerTile > OldKeys(at.span) ||
                (a.window > 0 && key0 < at.span.context_len - a.window))
              core.MaskRows(key0, s);
          } else if (key0 < low || key0 + S::kKeysPerTile > at.span.context_len) {
            core.Mask(key0, low, at.span.context_len, s);
          }
          core.Softmax(s, p);
        }
        values = !values;
      }
      Finish(core, at, reinterpret_cast<float*>(mine + slot * kUnitBytes), owed > 0);
    } while (segments.Next(a));
  }

  // Prepares an item's query rows and, in the warp with its last tile, the new key.
  __device__ __forceinline__ NewKey Prepare(C& core, const Segment& at,
                                            const typename C::Angles& angles, bool owns_last) {
    const float k_scale = a.device_scales != nullptr ? a.device_scales[0] : a.k_scale;
    const float v_scale = VScale(a);
    core.score_scale = a.scale_log2 * (kFp8 ? k_scale : 1.0f);
    NewKey fresh{};
    if constexpr (Kernel::kStages) {
      core.LoadQ(at);
      const int32_t end = min((at.first + at.hi) * S::kKeysPerTile, at.span.context_len);
      core.Stage(at, FirstNewKey(at), end, k_scale, v_scale, *staged);
      core.RotateQ(angles);
      __syncthreads();
    } else if constexpr (kSeveral) {
      LoadQ(core, at, angles);
    } else if constexpr (kOne) {
      if (owns_last) fresh = core.Append(at, angles.key_c, angles.key_s, k_scale, v_scale);
      // Done by a warp that need not wait for the new key.
      if (static_cast<int32_t>(threadIdx.x) / 32 == at.count % kWarps) {
        rows->Fetch(qkv + at.span.row_begin * a.qkv_row_stride +
                        static_cast<int64_t>(at.head) * a.group * kDim,
                    a.group, await, a.poll, core.lane);
      }
      __syncthreads();
      LoadQ(core, at, angles);
    } else {
      LoadQ(core, at, angles);
      if (owns_last) fresh = core.Append(at, angles.key_c, angles.key_s, k_scale, v_scale);
    }
    core.Clear();
    return fresh;
  }

  __device__ __forceinline__ void LoadQ(C& core, const Segment& at,
                                        const typename C::Angles& angles) const {
    core.LoadQ(at);
    core.RotateQ(angles);
  }

  // The first new key in the CTA's tiles.
  __device__ __forceinline__ int32_t FirstNewKey(const Segment& at) const {
    return max((at.first + at.lo) * S::kKeysPerTile, OldKeys(at.span));
  }

  __device__ __forceinline__ void AppendRows(const C& core, const Segment& at, int32_t key0,
                                             bool values, uint8_t* unit) const {
    if (values) {
      core.template AppendRows<true>(at, key0, VScale(a), unit);
    } else {
      core.template AppendRows<false>(
          at, key0, a.device_scales != nullptr ? a.device_scales[0] : a.k_scale, unit);
    }
  }

  // Adds the warps' results of a segment: the item's rows, or parts of them. Called by the whole
  // CTA.
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
    const int rows_there = RowsOf<kSeveral>(a, at).count * a.group;
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
        if (8 * n + row < rows_there && at.hi > 0) FinishRow(at, row, 8 * n + row);
      }
      __syncthreads();
    }
  }

  __device__ __forceinline__ void FinishRow(const Segment& at, int row, int item_row) {
    const int chunk = static_cast<int>(threadIdx.x) % kLanesPerRow;
    Piece piece;
    float2 norms[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      norms[w] = merge.norms[w][item_row];
      piece.m = fmaxf(piece.m, norms[w].x);
    }
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (norms[w].x == -INFINITY) continue;  // had no tile
      const float factor = ptx::Exp2(norms[w].x - piece.m);
      piece.l += norms[w].y * factor;
      piece.Add(*reinterpret_cast<const float4*>(ring + merge.at[w] +
                                                 sizeof(float) * ResultAt(row, 4 * chunk)),
                factor);
    }
    kernel.template Store<kFp8>(at, item_row, chunk, piece);
  }
};

}  // namespace aisp::cuda::fused
