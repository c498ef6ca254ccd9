// The decode plan of a step: each CTA computes its share of the tiles and the location of its first
// keys, as each layer's launch would, and stores them (fused_plan.cuh).
#include "kernels/cuda/attention/fused_plan.cuh"

namespace aisp::cuda {
namespace fused {
namespace {

// Must have the grid of the launches that it is for.
template <int kDim, bool kFp8, bool kSeveral>
__global__ void __launch_bounds__(kThreads) FusedPlanKernel(const __grid_constant__ FusedArgs a) {
  using S = Shape<kDim, kFp8, 1, kSeveral>;
  __shared__ FlatScratch scratch;
  __shared__ __align__(16) uint8_t iterators[kWarps][sizeof(typename S::Segments)];
  const FlatTiles flat = FlattenTiles<S::kKeysPerTile, kSeveral>(a, scratch);
  CtaPlan& plan = static_cast<CtaPlan*>(a.plan)[blockIdx.x];
  const int thread = static_cast<int>(threadIdx.x);
  const int32_t begin = static_cast<int32_t>(blockIdx.x) * flat.share;
  const int32_t end = min(begin + flat.share, flat.total);
  if (thread == 0) {
    plan.cta.share = flat.share;
    plan.cta.total = flat.total;
  }
  if (begin >= end) return;
  const typename S::Segments segments(a, flat, scratch, begin, end);
  auto* copied = reinterpret_cast<typename S::Segments*>(iterators[thread / 32]);
  *copied = segments;  // all lanes store the same
  __syncwarp();
  KvCopies<S> copies(a, *copied);
  copies.Switch();
  const Ahead ahead = copies.State();
  plan.lanes[thread] = ahead.lane;
  if (thread % 32 == 0) {
    PlannedWarp& warp = plan.warps[thread / 32];
    warp.top = ahead.top;
    warp.left = ahead.left;
    warp.next_left = ahead.next_left;
    StoreSegments(*copied, warp.segments);
  }
  if (thread == 0) StoreSegments(segments, plan.cta.segments);
}

using Kernel = void (*)(FusedArgs);

template <bool kSeveral>
Kernel Find(int32_t head_dim, bool fp8) {
  if (head_dim == 128)
    return fp8 ? FusedPlanKernel<128, true, kSeveral> : FusedPlanKernel<128, false, kSeveral>;
  if (head_dim == 64)
    return fp8 ? FusedPlanKernel<64, true, kSeveral> : FusedPlanKernel<64, false, kSeveral>;
  return nullptr;
}

}  // namespace
}  // namespace fused

int64_t FusedPlanBytes(int32_t ctas) {
  return static_cast<int64_t>(ctas) * static_cast<int64_t>(sizeof(fused::CtaPlan));
}

cudaError_t LaunchFusedPlan(const FusedShape& shape, int32_t ctas, const FusedArgs& args,
                            cudaStream_t stream) {
  const fused::Kernel kernel = shape.several ? fused::Find<true>(shape.head_dim, shape.fp8)
                                             : fused::Find<false>(shape.head_dim, shape.fp8);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  kernel<<<static_cast<uint32_t>(ctas), fused::kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace aisp::cuda
