// Converts LoRA factors from f32 to the layout that the products read.
#include <algorithm>

#include "kernels/cuda/adapter_tile.cuh"
#include "kernels/cuda/cuda_error.h"

namespace aisp::cuda {
namespace {

// Ranks are padded with zeros to a multiple of 16, the K of a product.
__device__ __forceinline__ int32_t PackedRank(int32_t rank) { return (rank + 15) / 16 * 16; }

template <typename T>
__global__ void PackDown(const float* from, int32_t rank, int32_t in, T* to) {
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  for (int32_t k = threadIdx.x; k < in; k += blockDim.x)
    to[int64_t{r} * in + k] = FromFloat<T>(r < rank ? from[int64_t{r} * in + k] : 0.0f);
}

template <typename T>
__global__ void PackUp(const float* from, int32_t rank, int32_t out, int32_t room, T* to) {
  const int32_t c = static_cast<int32_t>(blockIdx.x);
  for (int32_t r = threadIdx.x; r < PackedRank(rank); r += blockDim.x)
    to[int64_t{c} * room + r] = FromFloat<T>(r < rank ? from[int64_t{r} * out + c] : 0.0f);
}

template <typename T>
void Pack(const AdapterLayer& l, int32_t range, int32_t rank, const float* down, const float* up,
          void* slot, cudaStream_t stream) {
  T* const factors = static_cast<T*>(slot);
  const AdapterRange& to = l.ranges[range];
  const auto ranks = static_cast<unsigned>((rank + 15) / 16 * 16);
  PackDown<<<ranks, 256, 0, stream>>>(down, rank, l.in,
                                      factors + int64_t{range} * l.rank_room * l.in);
  PackUp<<<static_cast<unsigned>(to.out), 32, 0, stream>>>(up, rank, to.out, l.rank_room,
                                                           factors + to.up);
}

// Writes the adapter's rows into the matrix of all adapters; zeros beyond its rank.
__global__ void PackChainDown(const float* from, int32_t rank, int32_t in, Bf16* to) {
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  for (int32_t k = threadIdx.x; k < in; k += blockDim.x)
    to[int64_t{r} * in + k] = __float2bfloat16(r < rank ? from[int64_t{r} * in + k] : 0.0f);
}

// Writes the adapter's columns into the matrix of all. Gate and up alternate by eight rows.
__global__ void PackChainUp(const float* from, int32_t rank, int32_t room, int32_t out,
                            int32_t column, int gated_half, int32_t width, Bf16* to) {
  const int32_t c = static_cast<int32_t>(blockIdx.x);
  const int32_t row = gated_half < 0 ? column + c : c / 8 * 16 + gated_half * 8 + c % 8;
  for (int32_t r = threadIdx.x; r < room; r += blockDim.x)
    to[int64_t{row} * width + r] = __float2bfloat16(r < rank ? from[int64_t{r} * out + c] : 0.0f);
}

}  // namespace

Status LaunchPackChainAdapter(const AdapterLayer& l, const ChainAdapters& to, int32_t slot,
                              int32_t range, bool gated, int32_t rank, const float* down,
                              const float* up, cudaStream_t stream) {
  const int32_t first = slot * to.columns + range * l.rank_room;
  const AdapterRange& part = l.ranges[range];
  Bf16* const downs = static_cast<Bf16*>(const_cast<void*>(to.down)) + int64_t{first} * l.in;
  Bf16* const ups = static_cast<Bf16*>(const_cast<void*>(to.up)) + first;
  PackChainDown<<<static_cast<unsigned>(l.rank_room), 256, 0, stream>>>(down, rank, l.in, downs);
  PackChainUp<<<static_cast<unsigned>(part.out), 32, 0, stream>>>(
      up, rank, l.rank_room, part.out, part.column, gated ? range : -1, to.width, ups);
  return Check(cudaGetLastError(), "packing an adapter for several layers");
}

Status LaunchPackAdapter(const AdapterLayer& l, int32_t range, int32_t rank, const float* down,
                         const float* up, void* slot, cudaStream_t stream) {
  if (l.type == DType::kF32) {
    Pack<float>(l, range, rank, down, up, slot, stream);
  } else {
    Pack<Bf16>(l, range, rank, down, up, slot, stream);
  }
  return Check(cudaGetLastError(), "packing an adapter");
}

}  // namespace aisp::cuda
