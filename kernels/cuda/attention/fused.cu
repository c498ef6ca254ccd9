// Decode attention in one launch: norms and rotates q and k, appends k and v, attends over all
// keys, and adds the parts that CTAs share.
//
// A CTA is four warps, each with its own ring: it copies, waits and computes alone, and meets the
// others only at the end of an item. A CTA uses at most 48 KiB of shared memory and 21.5K
// registers, so that the next kernel's CTA can run beside it and prefetch its weights.
//
// Reads before griddepcontrol.wait, while the previous kernel may still run, and why they are safe:
// - Spans, block tables, positions and slots are copied to the device before the step's first
// kernel starts, and no kernel of a step writes them. The plan is complete when the step's first
// attention starts, which uses plain stream order. - While a step runs, only this kernel writes a
// layer's pool, in the slots of the step's own positions. These slots are never copied: zeros are
// put in the ring, then each CTA that needs them adds what it has computed. All older slots were
// written in earlier steps, by copies, or by the prompt's kernels. A step is a graph of its own or
// follows a copy on the same stream, and neither overlaps with earlier work: early starts
// (programmatic dependent launch) happen only between kernels of one step. So whatever wrote an old
// slot was complete before this step's first kernel began. - Not allowed: a kernel that lets its
// successors start early and writes old slots, followed by a step's kernels without an upload,
// event or graph start in between. Everything else (qkv, and the partials, which the previous
// launch may still be emptying) is accessed after the wait. Every CTA waits, with or without work,
// since the next kernel relies on it.
#include "kernels/cuda/attention/fused.cuh"

#include "kernels/cuda/attention/fused_parts.cuh"
#include "kernels/cuda/attention/fused_plan.cuh"
#include "kernels/cuda/attention/fused_worker.cuh"

namespace aisp::cuda {
namespace fused {
namespace {

// An item that continues in another CTA is published in parts; the CTA with its end adds them.
template <int kDim, bool kSeveral>
struct PartsInOrder {
  static constexpr bool kStages = false;
  static constexpr int kLanesPerRow = kDim / 4;

  const FusedArgs& a;
  int32_t share;

  template <bool kFp8>
  __device__ __forceinline__ void Store(const Segment& at, int item_row, int chunk, Piece piece) {
    if (at.hi < at.count) {
      const int64_t part_row = static_cast<int64_t>(blockIdx.x) * a.item_rows + item_row;
      StorePart(reinterpret_cast<float4*>(a.partials + part_row * kDim) + chunk, piece.o);
      if (chunk == 0) StorePart(Norms() + part_row, make_float2(piece.m, piece.l));
      return;
    }
    if (at.lo > 0) AddParts(at, item_row, chunk, piece);
    StoreRow<kDim, kFp8, kSeveral>(a, at, item_row, chunk, piece, nullptr);
  }

  __device__ __forceinline__ float2* Norms() const {
    return reinterpret_cast<float2*>(a.partials +
                                     static_cast<int64_t>(gridDim.x) * a.item_rows * kDim);
  }

  // Adds the parts of the item published by earlier CTAs, in order, and empties their slots. Each
  // lane of a row loads one part's norm.
  __device__ __forceinline__ void AddParts(const Segment& at, int item_row, int chunk,
                                           Piece& piece) const {
    constexpr int kAtOnce = 4;  // items rarely have more parts
    const float nothing = __uint_as_float(~0u);
    const int32_t end = static_cast<int32_t>(blockIdx.x);
    const uint32_t row_lanes =
        kLanesPerRow == 32 ? ~0u : 0xffffu << (threadIdx.x % 32 / kLanesPerRow * kLanesPerRow);
    Piece sum;
#pragma unroll 1
    for (int32_t base = at.flat_begin / share; base < end; base += kAtOnce) {
      const int64_t part_row = static_cast<int64_t>(base) * a.item_rows + item_row;
      float2* const norm_at = Norms() + part_row + chunk * a.item_rows;
      float4* const values = reinterpret_cast<float4*>(a.partials + part_row * kDim) + chunk;
      const int32_t stride = a.item_rows * (kDim / 4);
      const bool has_norm = chunk < kAtOnce && base + chunk < end;
      float2 norm = make_float2(-INFINITY, 0.0f);
      float4 o[kAtOnce] = {};
      uint32_t emptiest;
      PollLimit<PollSite::kAttentionParts> limit;
      do {
        LoadPart(has_norm, norm_at, norm);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) LoadPart(base + i < end, values + i * stride, o[i]);
        emptiest = Emptiest(norm);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) emptiest = max(emptiest, Emptiest(o[i]));
        limit.Count(a.poll);
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
};

template <int kDim, bool kFp8, int kRowTiles, bool kSeveral>
__global__ void __launch_bounds__(kThreads, kRowTiles == 1 ? 3 : 2)
    FusedKernel(const __grid_constant__ FusedArgs a) {
  using S = Shape<kDim, kFp8, kRowTiles, kSeveral>;
  extern __shared__ __align__(1024) uint8_t ring[];
  __shared__ MergeScratch merge;
  __shared__ __align__(16) uint8_t iterators[kWarps][sizeof(typename S::Segments)];
  ptx::LetSuccessorStart();
  const CtaPlan& plan = static_cast<const CtaPlan*>(a.plan)[blockIdx.x];
  const PlannedCta cta = LoadPlanned(&plan.cta);
  const PlannedWarp warp = LoadPlanned(&plan.warps[threadIdx.x / 32]);
  const uint4 lane = __ldcg(&plan.lanes[threadIdx.x]);
  if (static_cast<int32_t>(blockIdx.x) * cta.share >= cta.total) {
    ptx::WaitForPredecessor();
    return;
  }
  const auto segments = LoadSegments<typename S::Segments>(cta.segments);
  auto* copied = reinterpret_cast<typename S::Segments*>(iterators[threadIdx.x / 32]);
  *copied = LoadSegments<typename S::Segments>(warp.segments);  // all lanes store the same
  __syncwarp();
  KvCopies<S> copies(a, *copied, {warp.top, warp.left, warp.next_left, lane});
  using Parts = PartsInOrder<kDim, kSeveral>;
  Parts parts{a, cta.share};
  Worker<kDim, kFp8, kRowTiles, false, kSeveral, Parts> worker{a, ring, merge, parts};
  worker.Work(segments, copies);
  asm volatile("cp.async.wait_all;" ::: "memory");
}

using Kernel = void (*)(FusedArgs);

template <int kDim, bool kFp8>
Kernel Of(const FusedShape& shape) {
  const bool wide = shape.item_rows > 8;
  if (shape.several)
    return wide ? FusedKernel<kDim, kFp8, 2, true> : FusedKernel<kDim, kFp8, 1, true>;
  return wide ? FusedKernel<kDim, kFp8, 2, false> : FusedKernel<kDim, kFp8, 1, false>;
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

bool HasFused(const FusedShape& shape) { return fused::Find(shape) != nullptr; }

int64_t FusedPartialBytes(int32_t head_dim, int32_t item_rows, int32_t ctas) {
  return static_cast<int64_t>(ctas) * item_rows * (head_dim * 4 + 8 * kFusedSlicesPerRow);
}

int32_t FusedCtasPerProcessor(int32_t item_rows) { return item_rows > 8 ? 2 : 3; }

cudaError_t PrepareFused(const FusedShape& shape) {
  const auto many = reinterpret_cast<const void*>(fused::Find(shape));
  for (const void* const kernel : {many, OneSequenceKernelOf(shape)}) {
    if (kernel == nullptr) return cudaErrorInvalidValue;
    cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            fused::kRingBytes);
    // Requests the maximum of shared memory: a multiprocessor cannot change its carve-out while
    // anything runs there, and the next kernel needs much.
    if (code == cudaSuccess) {
      code = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared);
    }
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

cudaError_t LaunchFused(const FusedShape& shape, int32_t ctas, bool overlap, const FusedArgs& args,
                        cudaStream_t stream) {
  const bool one = IsOneSequence(args, ctas);
  const void* const kernel =
      one ? OneSequenceKernelOf(shape) : reinterpret_cast<const void*>(fused::Find(shape));
  if (kernel == nullptr || (args.token_slots.sets != nullptr && !one)) return cudaErrorInvalidValue;
  if (one && shape.several && args.most_rows > fused::kMostStaged) return cudaErrorInvalidValue;
  if (one) ctas -= ctas % MostItems(args);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<uint32_t>(ctas));
  config.blockDim = dim3(fused::kThreads);
  config.dynamicSmemBytes = fused::kRingBytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  FusedArgs copy = args;
  void* arguments[] = {&copy};
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

}  // namespace aisp::cuda
