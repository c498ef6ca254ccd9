// PTX wrappers for the kernels for many rows beyond ptx.cuh: clusters, multicast, stores by the
// copy engine.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/ptx.cuh"

namespace aisp::cuda {

// ---- clusters ----

// Barrier over all threads of the cluster.
__device__ __forceinline__ void ClusterSync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}
using ptx::BarrierArriveAt;

// The address in another CTA of the cluster that corresponds to `address` in this one.
__device__ __forceinline__ uint32_t AddressIn(uint32_t address, uint32_t cta) {
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(cta));
  return remote;
}
__device__ __forceinline__ void StoreRemote16(uint32_t address, const float* v) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v[0]),
               "f"(v[1]), "f"(v[2]), "f"(v[3])
               : "memory");
}

// ---- loads; the box of `map` whose first element is (column, row) ----

// To the same address in all CTAs in `mask`, signalling the barrier of each.
__device__ __forceinline__ void TensorLoadMulticast(uint32_t to, const CUtensorMap* map, int column,
                                                    int row, uint32_t barrier, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(mask)
      : "memory");
}

// ---- stores ----

using ptx::FenceProxyAsync;
__device__ __forceinline__ void TensorStore(const CUtensorMap* map, int column, int row,
                                            uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
      "r"(column), "r"(row), "r"(from)
      : "memory");
}
__device__ __forceinline__ void TensorAdd(const CUtensorMap* map, int column, int row,
                                          uint32_t from) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%1, %2}], [%3];" ::
          "l"(map),
      "r"(column), "r"(row), "r"(from)
      : "memory");
}
__device__ __forceinline__ void BulkStoreCommit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until all but the last kPending groups of this thread's stores have read shared memory.
template <int kPending>
__device__ __forceinline__ void BulkStoreWaitRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// Stores four 8 x 8 matrices of 16-bit values, each transposed; lane i gives the address of row i %
// 8 of matrix i / 8.
__device__ __forceinline__ void StoreMatrix4Transposed(uint32_t address, uint32_t a, uint32_t b,
                                                       uint32_t c, uint32_t d) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(a), "r"(b), "r"(c), "r"(d)
      : "memory");
}
__device__ __forceinline__ void StoreShared4(uint32_t address, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}

// Accurate to 1 part in 2^23.
__device__ __forceinline__ float Reciprocal(float v) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}

}  // namespace aisp::cuda
