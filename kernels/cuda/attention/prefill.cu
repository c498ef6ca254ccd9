// Prefill attention: the kernel, its variants and their launch. A producer warpgroup loads tiles of
// keys and values into shared memory with the copy engine (FP8: another warpgroup converts them to
// f16) and queries with ordinary copies. Two consumer warpgroups of 64 query rows each multiply
// them with wgmma. The two alternate in issuing products, so that the softmax of one overlaps with
// the products of the other. This is FlashAttention-3's schedule (arXiv:2407.08608), continued over
// all items of a CTA without a gap.
#include "kernels/cuda/attention/prefill_consumer.cuh"

namespace aisp::cuda {
namespace prefill {
namespace {

// By one thread.
template <class T, bool kFp8>
__device__ __forceinline__ void InitBarriers(Control* control) {
  const uint32_t releases = kConsumerWarps * (kFp8 ? 1 : ptx::ClusterSize());
  for (int s = 0; s < T::kStages; ++s) {
    ptx::BarrierInit(ptx::SharedAddress(&control->k_full[s]), kFp8 ? 128 : 1);
    ptx::BarrierInit(ptx::SharedAddress(&control->v_full[s]), kFp8 ? 128 : 1);
    ptx::BarrierInit(ptx::SharedAddress(&control->k_empty[s]), releases);
    ptx::BarrierInit(ptx::SharedAddress(&control->v_empty[s]), releases);
  }
  for (int s = 0; s < kRawStages; ++s) {
    ptx::BarrierInit(ptx::SharedAddress(&control->raw_full[s]), 1);
    ptx::BarrierInit(ptx::SharedAddress(&control->raw_empty[s]), 4 * ptx::ClusterSize());
  }
  for (int b = 0; b < T::kQBuffers; ++b) {
    ptx::BarrierInit(ptx::SharedAddress(&control->q_full[b]), 32 * kQueryWarps);
  }
  ptx::BarrierInitFence();
}

template <int kDim, bool kFp8>
__global__ void __launch_bounds__((Traits<kDim, kFp8>::kThreads), 1)
    PrefillKernel(const __grid_constant__ CUtensorMap map,
                  const __grid_constant__ KernelArgs args) {
  using T = Traits<kDim, kFp8>;
  extern __shared__ __align__(1024) uint8_t shared[];
  Control* control = reinterpret_cast<Control*>(shared);
  const uint32_t q_area = ptx::SharedAddress(shared) + T::kControlBytes;
  const uint32_t k_ring = q_area + T::kQBuffers * T::kQBytes;
  const uint32_t v_ring = k_ring + T::kStages * T::kTileBytes;
  const uint32_t raw_ring = v_ring + T::kStages * T::kTileBytes;
  if (threadIdx.x == 0) {
    ptx::PrefetchMap(&map);
    InitBarriers<T, kFp8>(control);
  }
  ptx::ClusterSync();
  ptx::WaitForPredecessor();
  ptx::LetSuccessorStart();
  // A shuffle, so that the compiler knows that it is uniform within a warp.
  const int32_t warpgroup = __shfl_sync(~0u, static_cast<int32_t>(threadIdx.x) / 128, 0);
  if (warpgroup == 2) {
    ptx::RegistersDown<40>();
    if (threadIdx.x / 32 == kConsumerWarps) {
      Produce<T>(args, &map, control, k_ring, v_ring, raw_ring);
    } else {
      ProduceQueries<T>(args, control, q_area);
    }
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
  ptx::ClusterSync();  // no CTA may exit while the other writes to it
}

struct Variant {
  int32_t head_dim;
  bool fp8;
  void (*kernel)(CUtensorMap, KernelArgs);
  int32_t threads;
  int32_t keys;  // per tile
  int32_t shared_bytes;
};

template <int kDim, bool kFp8>
constexpr Variant MakeVariant() {
  return {kDim,
          kFp8,
          PrefillKernel<kDim, kFp8>,
          Traits<kDim, kFp8>::kThreads,
          Traits<kDim, kFp8>::kKeys,
          static_cast<int32_t>(Traits<kDim, kFp8>::kSharedBytes)};
}

constexpr Variant kVariants[] = {
    MakeVariant<64, false>(), MakeVariant<64, true>(),   MakeVariant<128, false>(),
    MakeVariant<128, true>(), MakeVariant<256, false>(), MakeVariant<256, true>(),
};

// `attributes`: two, referenced by the configuration.
cudaLaunchConfig_t Configure(const Variant& v, int32_t ctas, int32_t cluster,
                             cudaLaunchAttribute* attributes, cudaStream_t stream) {
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<uint32_t>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<uint32_t>(ctas));
  config.blockDim = dim3(static_cast<uint32_t>(v.threads));
  config.dynamicSmemBytes = static_cast<size_t>(v.shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return config;
}

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

int32_t PrefillCluster(int32_t head_dim, bool fp8, int32_t group, int32_t ctas) {
  const prefill::Variant* v = prefill::Find(head_dim, fp8);
  // Two adjacent tiles have the same key tiles only if their tokens fit into one.
  if (v == nullptr || ctas % 2 != 0 || 2 * (kPrefillRows / group) > v->keys) return 1;
  cudaLaunchAttribute attributes[2] = {};
  const cudaLaunchConfig_t config = prefill::Configure(*v, ctas, 2, attributes, nullptr);
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, v->kernel, &config) != cudaSuccess) {
    cudaGetLastError();
    return 1;
  }
  return 2 * clusters >= ctas ? 2 : 1;
}

cudaError_t LaunchPrefill(int32_t head_dim, bool fp8, int32_t ctas, int32_t cluster,
                          const CUtensorMap& map, const KernelArgs& args, cudaStream_t stream) {
  const prefill::Variant* v = prefill::Find(head_dim, fp8);
  if (v == nullptr) return cudaErrorInvalidValue;
  cudaLaunchAttribute attributes[2] = {};
  const cudaLaunchConfig_t config = prefill::Configure(*v, ctas, cluster, attributes, stream);
  return cudaLaunchKernelEx(&config, v->kernel, map, args);
}

}  // namespace aisp::cuda
