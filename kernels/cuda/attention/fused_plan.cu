// Decode attention's plan of a step: each CTA finds its share of the line and looks its first keys
// up, as the launches of all layers would, and leaves what it has found (fused_plan.cuh).
#include "kernels/cuda/attention/fused_plan.cuh"

namespace aisp::cuda {
namespace fused {
namespace {

// With the grid of the launches that it is for.
template <int kDim, bool kFp8>
__global__ void __launch_bounds__(kThreads) FusedPlanKernel(const __grid_constant__ FusedArgs a) {
  using S = Shape<kDim, kFp8, 1>;
  __shared__ LineScratch scratch;
  __shared__ __align__(16) uint8_t walks[kWarps][sizeof(Walk<S::kStepKeys>)];
  const Line line = ScanLine<S::kStepKeys>(a, scratch);
  CtaPlan& plan = static_cast<CtaPlan*>(a.plan)[blockIdx.x];
  const int thread = static_cast<int>(threadIdx.x);
  const int32_t begin = static_cast<int32_t>(blockIdx.x) * line.share;
  const int32_t end = min(begin + line.share, line.total);
  if (thread == 0) {
    plan.cta.share = line.share;
    plan.cta.total = line.total;
  }
  if (begin >= end) return;
  const Walk<S::kStepKeys> walk(a, line, scratch, begin, end);
  auto* feed_walk = reinterpret_cast<Walk<S::kStepKeys>*>(walks[thread / 32]);
  *feed_walk = walk;  // all lanes the same
  __syncwarp();
  Feed<S> feed(a, *feed_walk);
  feed.Switch();
  const Ahead ahead = feed.State();
  plan.lanes[thread] = ahead.lane;
  if (thread % 32 == 0) {
    PlannedWarp& warp = plan.warps[thread / 32];
    warp.top = ahead.top;
    warp.left = ahead.left;
    warp.next_left = ahead.next_left;
    StoreWalk(*feed_walk, warp.walk);
  }
  if (thread == 0) StoreWalk(walk, plan.cta.walk);
}

using Kernel = void (*)(FusedArgs);

Kernel Find(int32_t head_dim, bool fp8) {
  if (head_dim == 128) return fp8 ? FusedPlanKernel<128, true> : FusedPlanKernel<128, false>;
  if (head_dim == 64) return fp8 ? FusedPlanKernel<64, true> : FusedPlanKernel<64, false>;
  return nullptr;
}

}  // namespace
}  // namespace fused

int64_t FusedPlanBytes(int32_t ctas) {
  return static_cast<int64_t>(ctas) * static_cast<int64_t>(sizeof(fused::CtaPlan));
}

cudaError_t LaunchFusedPlan(int32_t head_dim, bool fp8, int32_t ctas, const FusedArgs& args,
                            cudaStream_t stream) {
  const fused::Kernel kernel = fused::Find(head_dim, fp8);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  kernel<<<static_cast<uint32_t>(ctas), fused::kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace aisp::cuda
