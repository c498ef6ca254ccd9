// Decode attention in one launch for one sequence. Latency dominates, so all CTAs of an item share
// the addition of its parts.
//
// Every item has the same number of CTAs, each with a range of its keys. A CTA publishes its part
// of the rows in `partials`, as the kernel for many sequences does (fused.cu). Then it adds a
// slice, some elements of one row, over all CTAs of the item. No CTA waits before it has published,
// and all are resident: at most three per multiprocessor.
//
// Between the layers of one token (linear/one_token.cuh) q, k and v are polled and the row is
// published (token_slots.h). The wait for the previous kernel is then at the end: its outputs are
// polled, and it started this kernel only after the previous attention was complete, so the
// partials are empty. The head of fused.cu on pool, tables and positions applies here too.
#include <type_traits>

#include "kernels/cuda/attention/fused.cuh"
#include "kernels/cuda/attention/fused_parts.cuh"
#include "kernels/cuda/attention/fused_worker.cuh"

namespace aisp::cuda {
namespace fused {
namespace {

// Limit of slices per row. There is one copy of a part's {maximum, sum} for each, since a slot's
// consumer resets it.
constexpr int kMaxSlices = kFusedSlicesPerRow;

template <int kDim, bool kSeveral>
struct PartsInSlices {
  static constexpr bool kStages = kSeveral;
  // Several rows make more slices than CTAs, of few parts each.
  static constexpr int kTogether = kSeveral ? 2 : 1;  // slices
  static constexpr int kAtOnce = kSeveral ? 4 : 1;    // parts
  static constexpr int kChunks = kDim / 4;            // four elements each, per row

  const FusedArgs& a;
  uint32_t* published;
  int32_t parts;   // CTAs of an item that have keys
  int32_t stride;  // CTAs per item
  int32_t slices;  // per row: a power of two

  __device__ __forceinline__ float4* Values(int32_t cta, int row) const {
    return reinterpret_cast<float4*>(a.partials +
                                     (static_cast<int64_t>(cta) * a.item_rows + row) * kDim);
  }
  __device__ __forceinline__ float2* Norms(int32_t cta, int row) const {
    float* const all = a.partials + static_cast<int64_t>(gridDim.x) * a.item_rows * kDim;
    return reinterpret_cast<float2*>(all) +
           (static_cast<int64_t>(cta) * a.item_rows + row) * kMaxSlices;
  }

  template <bool kFp8>
  __device__ __forceinline__ void Store(const Segment& at, int row, int chunk, const Piece& piece) {
    if (parts == 1) {
      StoreRow<kDim, kFp8, kSeveral>(a, at, row, chunk, piece, published);
      return;
    }
    const auto cta = static_cast<int32_t>(blockIdx.x);
    StorePart(Values(cta, row) + chunk, piece.o);
    if (chunk < slices) StorePart(Norms(cta, row) + chunk, make_float2(piece.m, piece.l));
  }

  // Adds this CTA's slices, with all threads; `scratch` belongs to the CTA.
  template <bool kFp8>
  __device__ __forceinline__ void AddUp(const Segment& at, void* scratch) const {
    if (parts == 1) return;
    const int32_t first = static_cast<int32_t>(blockIdx.x) / stride * stride;
    const int32_t count = RowsOf<kSeveral>(a, at).count * a.group * slices;
    for (int32_t slice = static_cast<int32_t>(blockIdx.x) - first; slice < count;
         slice += kTogether * parts) {
      AddSlices<kFp8>(at, first, slice, count, scratch);
    }
  }

  // Some elements of an item's row.
  struct Slice {
    bool there;
    int32_t row, number, chunk;  // a thread's chunk
  };
  __device__ __forceinline__ Slice SliceAt(int32_t slice, int32_t count, int in_slice) const {
    const int32_t number = slice % slices;
    return {slice < count, slice / slices, number, number * (kChunks / slices) + in_slice};
  }

  // Adds slices `slice`, `slice` + parts, ..., at most kTogether.
  template <bool kFp8>
  __device__ __forceinline__ void AddSlices(const Segment& at, int32_t first, int32_t slice,
                                            int32_t count, void* scratch) const {
    const int chunks = kChunks / slices;
    const int thread = static_cast<int>(threadIdx.x);
    Slice added[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      added[i] = SliceAt(slice + i * parts, count, thread % chunks);
    Piece mine[kTogether];
    Gather(first, added, thread, mine);
    auto* const warps = static_cast<Piece*>(scratch);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      // Within the warp: distance between lanes with the same chunk.
      float top = mine[i].m;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
      if (top > -INFINITY) mine[i].Scale(top);
      for (int step = chunks; step < 32; step *= 2) {
        mine[i].l += __shfl_xor_sync(~0u, mine[i].l, step);
        mine[i].o.x += __shfl_xor_sync(~0u, mine[i].o.x, step);
        mine[i].o.y += __shfl_xor_sync(~0u, mine[i].o.y, step);
        mine[i].o.z += __shfl_xor_sync(~0u, mine[i].o.z, step);
        mine[i].o.w += __shfl_xor_sync(~0u, mine[i].o.w, step);
      }
      if (thread % 32 < chunks) warps[(i * kWarps + thread / 32) * chunks + thread % 32] = mine[i];
    }
    __syncthreads();
    // All threads have read what they polled.
    Empty(first, added, thread);
    // A warp for each.
    const int which = thread / 32;
    const Slice own = SliceAt(slice + which * parts, count, thread % 32);
    if (which < kTogether && own.there && thread % 32 < chunks) {
      const Piece* const from = warps + which * kWarps * chunks + thread % 32;
      Piece sum;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) sum.m = fmaxf(sum.m, from[w * chunks].m);
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const Piece& more = from[w * chunks];
        if (more.m == -INFINITY) continue;  // had no part
        const float factor = ptx::Exp2(more.m - sum.m);
        sum.l += more.l * factor;
        sum.Add(more.o, factor);
      }
      StoreRow<kDim, kFp8, kSeveral>(a, at, own.row, own.chunk, sum, published);
    }
    __syncthreads();
  }

  // Adds a thread's parts of its chunk in each slice, in their order: several in flight at once.
  __device__ __forceinline__ void Gather(int32_t first, const Slice (&added)[kTogether], int thread,
                                         Piece (&sums)[kTogether]) const {
    const int step = kThreads / (kChunks / slices);
#pragma unroll 1
    for (int32_t part = thread / (kChunks / slices); part < parts; part += kAtOnce * step) {
      float4 o[kTogether][kAtOnce] = {};
      float2 norm[kTogether][kAtOnce] = {};
      uint32_t emptiest;
      PollLimit<PollSite::kAttentionParts> limit;
      do {
        emptiest = 0;
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
#pragma unroll
          for (int k = 0; k < kAtOnce; ++k) {
            const int32_t cta = first + part + k * step;
            const bool there = added[i].there && part + k * step < parts;
            LoadPart(there, Values(cta, added[i].row) + added[i].chunk, o[i][k]);
            LoadPart(there, Norms(cta, added[i].row) + added[i].number, norm[i][k]);
          }
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
#pragma unroll
          for (int k = 0; k < kAtOnce; ++k)
            emptiest = max(emptiest, max(Emptiest(o[i][k]), Emptiest(norm[i][k])));
        }
        limit.Count(a.poll);
      } while (emptiest == ~0u);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          if (!added[i].there || part + k * step >= parts) continue;
          const float top = fmaxf(sums[i].m, norm[i][k].x);
          const float factor = ptx::Exp2(norm[i][k].x - top);
          sums[i].Scale(top);
          sums[i].l += norm[i][k].y * factor;
          sums[i].Add(o[i][k], factor);
        }
      }
    }
  }

  __device__ __forceinline__ void Empty(int32_t first, const Slice (&added)[kTogether],
                                        int thread) const {
    const float nothing = __uint_as_float(~0u);
    const int chunks = kChunks / slices;
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (!added[i].there) continue;
#pragma unroll 1
      for (int32_t part = thread / chunks; part < parts; part += kThreads / chunks) {
        Values(first + part, added[i].row)[added[i].chunk] =
            make_float4(nothing, nothing, nothing, nothing);
        if (thread % chunks == 0)
          Norms(first + part, added[i].row)[added[i].number] = make_float2(nothing, nothing);
      }
    }
  }
};

// Padding rows are polled as well.
__device__ __forceinline__ void PublishZeros(int32_t elements, uint32_t* published) {
  for (auto i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x); i < elements / 4;
       i += static_cast<int32_t>(gridDim.x) * kThreads) {
    StoreRelaxed(published + 2 * i, make_uint2(0, 0));
  }
}

// A run of tiles of the CTA's item.
template <int kKeysPerTile, bool kSeveral>
__device__ __forceinline__ Segment ShareOf(const FusedArgs& a, int32_t& stride, int32_t* parts) {
  Segment at;
  const int2 tiles = TilesOf<kKeysPerTile>(a, 0, at.span);
  if constexpr (kSeveral) stride /= ItemsOf<true>(a, at.span);
  const int32_t share = max(kWarps, (tiles.y + stride - 1) / stride);
  *parts = (tiles.y + share - 1) / share;
  at.seq = 0;
  at.head = static_cast<int32_t>(blockIdx.x) / stride;
  at.first = tiles.x;
  at.count = tiles.y;
  at.flat_begin = 0;
  at.lo = static_cast<int32_t>(blockIdx.x) % stride * share;
  at.hi = min(at.lo + share, at.count);
  return at;
}

// Limits the slices so that there are at most as many as CTAs.
__device__ __forceinline__ int32_t SlicesOf(int32_t parts, int32_t rows) {
  int32_t slices = 1;
  while (slices < kMaxSlices && 2 * slices * rows <= parts) slices *= 2;
  return slices;
}

// Registers leave room for the next kernel's CTA on each of the multiprocessor's partitions.
template <int kDim, bool kFp8, int kRowTiles, bool kSeveral>
__global__ void __maxnreg__(kRowTiles == 1 ? 152 : 232)
    OneSequenceKernel(const __grid_constant__ FusedArgs a) {
  using S = Shape<kDim, kFp8, kRowTiles, kSeveral>;
  using Parts = PartsInSlices<kDim, kSeveral>;
  extern __shared__ __align__(1024) uint8_t ring[];
  __shared__ MergeScratch merge;
  // Query rows of one row, or the new keys of several.
  __shared__ __align__(16) std::conditional_t<kSeveral, StagedRows, QueryRows<kDim, kRowTiles>>
      rows;
  __shared__ __align__(16) uint8_t iterators[kWarps][sizeof(typename S::Segments)];
  ptx::LetSuccessorStart();
  const auto* qkv = static_cast<const __nv_bfloat16*>(a.qkv);
  uint32_t* published = nullptr;
  if (a.token_slots.sets != nullptr) {
    // The next launch of layers increments the count only after this one is complete.
    const uint32_t launches = *static_cast<const volatile uint32_t*>(a.token_slots.launches);
    published = a.token_slots.sets + launches % 2 * kTokenSetSlots + kTokenInputAt;
    qkv = reinterpret_cast<const __nv_bfloat16*>(
        a.token_slots.sets + (launches + 1) % 2 * kTokenSetSlots + kTokenOutputAt);
  }
  const bool handed = published != nullptr;
  int32_t stride = static_cast<int32_t>(gridDim.x) / a.num_kv_heads;
  int32_t parts;
  const Segment at = ShareOf<S::kKeysPerTile, kSeveral>(a, stride, &parts);
  if (at.lo < at.hi) {
    const typename S::Segments segments(at);
    auto* copied = reinterpret_cast<typename S::Segments*>(iterators[threadIdx.x / 32]);
    *copied = segments;  // all lanes store the same
    __syncwarp();
    KvCopies<S> copies(a, *copied);
    Parts in_slices{a, published, parts, stride,
                    SlicesOf(parts, RowsOf<kSeveral>(a, at).count * a.group)};
    Worker<kDim, kFp8, kRowTiles, !kSeveral, kSeveral, Parts> worker{a,         ring, merge,
                                                                     in_slices, qkv,  handed};
    if constexpr (kSeveral) {
      worker.staged = &rows;
    } else {
      worker.rows = &rows;
    }
    worker.Work(segments, copies);
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    in_slices.template AddUp<kFp8>(at, ring);
  } else if (handed && at.count == 0) {
    PublishZeros(a.num_heads * kDim, published);
  }
  ptx::WaitForPredecessor();
}

using Kernel = void (*)(FusedArgs);

template <int kDim, bool kFp8>
Kernel Of(const FusedShape& shape) {
  const bool wide = shape.item_rows > 8;
  if (shape.several)
    return wide ? OneSequenceKernel<kDim, kFp8, 2, true> : OneSequenceKernel<kDim, kFp8, 1, true>;
  return wide ? OneSequenceKernel<kDim, kFp8, 2, false> : OneSequenceKernel<kDim, kFp8, 1, false>;
}

Kernel Find(const FusedShape& shape) {
  if (shape.item_rows < 1 || shape.item_rows > kFusedItemRows) return nullptr;
  if (shape.head_dim == 128) return shape.fp8 ? Of<128, true>(shape) : Of<128, false>(shape);
#ifndef AISP_FUSED_ONLY_128
  if (shape.head_dim == 64) return shape.fp8 ? Of<64, true>(shape) : Of<64, false>(shape);
#endif
  return nullptr;
}

}  // namespace
}  // namespace fused

const void* OneSequenceKernelOf(const FusedShape& shape) {
  return reinterpret_cast<const void*>(fused::Find(shape));
}

}  // namespace aisp::cuda
