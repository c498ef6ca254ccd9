// Prefill attention: a consumer warpgroup. It processes its items as one stream of key tiles: the
// first scores of an item are issued together with the last values of the previous one, so that the
// tensor cores are not idle between items.
//
// A tile's weights are relative to a reference, the row's maximum when last computed, rather than
// to the current maximum. It only matters that nothing overflows, since the sums in `l` and `o`
// have the same factor. The reference is computed at an item's first tile, and again only when a
// tile's weights become too large for it (or the row had no key so far). So most tiles need no
// maximum, no exchange between threads and no rescaling.
#pragma once

#include "kernels/cuda/attention/prefill_core.cuh"
#include "kernels/cuda/attention/prefill_store.cuh"
#include "kernels/cuda/attention/wgmma.cuh"

namespace aisp::cuda::prefill {

template <class T>
struct Consumer {
  static constexpr int kScores = T::kKeys / 2;  // registers of a 64 x kKeys tile
  static constexpr int kParts = T::kParts;
  static constexpr int kOut = T::kOut;
  static constexpr float kOutgrown = T::kHalf ? 0x1p14f : 0x1p40f;  // largest weight in f16, with a
                                                                    // margin
  static constexpr int kGroups = 4;                                 // of the products with values

  const KernelArgs& a;
  Control* control;
  uint32_t q_area, k_ring, v_ring;
  int32_t group_index;  // 0 or 1
  int32_t thread;       // in the warpgroup
  float score_scale, out_scale;

  float o[kParts][kOut];
  float m[2], l[2];  // the scaled reference; this thread's part of the sum
  int32_t position[2];
  int32_t tile, low_tile;  // of keys
  int32_t mask_from,
      mask_upto;  // tiles at or above / at or below have keys that some row does not attend to
  int32_t valid;  // for an item's first tile: keys that are in the context
  int32_t slot;   // in control->work
  StageCursor<T::kStages> k, v;
  StageCursor<T::kQBuffers> q;
  uint32_t queries[T::kQInRegisters ? T::kDim / 16 : 1][4];

  // Keeps the item's queries in registers, so that tensor cores do not reload them per tile.
  __device__ __forceinline__ void ReadQueries() {
    const int32_t t = Thread();
    const uint32_t row = group_index * 64 + t / 32 * 16 + t % 16;
    const uint32_t at = q_area + q.stage * T::kQBytes + row * 128;
#pragma unroll
    for (int step = 0; step < T::kDim / 16; ++step) {
      const uint32_t chunk = step * 2 + t % 32 / 16;
      ptx::LoadMatrix4(queries[step],
                       at + chunk / 8 * T::kQColumnBytes + (((chunk % 8) ^ (row & 7)) << 4));
    }
  }

  // The thread's index for rare work. Opaque: otherwise the compiler precomputes what depends on
  // it, for which there are no registers.
  __device__ __forceinline__ int32_t Thread() const {
    int32_t t = thread;
    asm volatile("" : "+r"(t));
    return t;
  }
  __device__ __forceinline__ void SyncGroup() const { ptx::NamedSync(4 + group_index, 128); }
  // The warpgroups alternate in issuing products.
  __device__ __forceinline__ void TakeTurn() const { ptx::NamedSync(2 + group_index, 256); }
  __device__ __forceinline__ void PassTurn() const { ptx::NamedArrive(2 + (group_index ^ 1), 256); }

  // A stage is filled for all CTAs of the cluster; with FP8 by this CTA's converting warps.
  __device__ __forceinline__ void Release(uint64_t* empty) const {
    if constexpr (T::kFp8) {
      if (thread % 32 == 0) ptx::BarrierArrive(ptx::SharedAddress(empty));
    } else {
      if (static_cast<uint32_t>(thread % 32) < ptx::ClusterSize())
        ptx::BarrierArriveAt(ptx::SharedAddress(empty), thread % 32);
    }
  }

  __device__ __forceinline__ void ReleaseQueries(int32_t buffer) const {
    ptx::NamedArrive(kQueryBarrier + buffer, kQueryBarrierThreads);
  }

  // Issues s = Q K^T.
  __device__ __forceinline__ void IssueScores(float (&s)[kScores]) const {
    const uint64_t rows =
        wgmma::RowsDescriptor(q_area + q.stage * T::kQBytes + group_index * 64 * 128);
    const uint64_t keys = wgmma::RowsDescriptor(k_ring + k.stage * T::kTileBytes);
    ptx::WgmmaFence();
#pragma unroll
    for (int step = 0; step < T::kDim / 16; ++step) {
      const uint32_t inside = step % 4 * 32;
      const uint64_t key = wgmma::Plus(keys, step / 4 * T::kColumnBytes + inside);
      if constexpr (T::kQInRegisters) {
        wgmma::Product<T::kHalf, /*kInColumns=*/false>(s, queries[step], key, step > 0);
      } else {
        wgmma::Product<T::kHalf>(s, wgmma::Plus(rows, step / 4 * T::kQColumnBytes + inside), key,
                                 step > 0);
      }
    }
    ptx::WgmmaCommit();
  }

  // Issues o += P V, in kGroups groups.
  __device__ __forceinline__ void IssueValues(const uint32_t (&p)[kScores / 8][4], bool add) {
    const uint64_t values =
        wgmma::ColumnsDescriptor(v_ring + v.stage * T::kTileBytes, T::kColumnBytes);
    ptx::WgmmaFence();
#pragma unroll
    for (int step = 0; step < T::kKeys / 16; ++step) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        constexpr uint32_t kPartBytes = T::kColumns / kParts * T::kColumnBytes;
        wgmma::Product<T::kHalf, /*kInColumns=*/true>(
            o[part], p[step], wgmma::Plus(values, part * kPartBytes + step * 16 * 128),
            add || step > 0);
      }
      if ((step + 1) % (T::kKeys / 16 / kGroups) == 0) ptx::WgmmaCommit();
    }
  }

  __device__ __forceinline__ void PinOut() {
#pragma unroll
    for (int part = 0; part < kParts; ++part) wgmma::Pin(o[part]);
  }

  // Values past the context may be anything, even NaN, and zero times NaN is not zero.
  __device__ __forceinline__ void ZeroTail(int32_t keys) const {
    if constexpr (T::kFp8) return;
    if (keys >= T::kKeys) return;
    const uint32_t values = v_ring + v.stage * T::kTileBytes;
    for (int32_t i = Thread(); i < (T::kKeys - keys) * T::kDim / 8; i += 128) {
      const int32_t row = keys + i / (T::kDim / 8);
      const int32_t chunk = i % (T::kDim / 8);
      const uint32_t at = values + chunk / 8 * T::kColumnBytes + row * 128 + chunk % 8 * 16;
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
    }
    ptx::FenceProxyAsync();
    SyncGroup();
  }

  __device__ __forceinline__ void Mask(float (&s)[kScores]) const {
    if (tile < mask_from && tile > mask_upto) return;
    const int32_t key0 = tile * T::kKeys + 2 * (thread % 4);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int32_t last = position[j] - key0;
      const int32_t before = a.window > 0 ? last - a.window : -1;
#pragma unroll
      for (int i = 0; i < kScores / 4; ++i) {
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          if (8 * i + x > last || 8 * i + x <= before) s[4 * i + 2 * j + x] = -INFINITY;
        }
      }
    }
  }

  // Raises the references to the current maxima; `factor`: multiplier for sums relative to the old
  // ones.
  __device__ __forceinline__ void Refer(const float (&s)[kScores], float (&factor)[2]) {
    constexpr int kChains = 4;  // independent ones, to hide latency
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
      factor[j] = ptx::Exp2(m[j] - (top == -INFINITY ? 0.0f : top));
      m[j] = top;
    }
  }

  // p = 2^(s * score_scale + offset) as bf16, and sums over this thread's keys; for part kPart of
  // the tile's keys.
  template <int kPart>
  __device__ __forceinline__ void Weigh(const float (&s)[kScores], const float (&offset)[2],
                                        uint32_t (&p)[kScores / 8][4], float (&sums)[2][2]) const {
    constexpr int kEach = kScores / 4 / kGroups;
#pragma unroll
    for (int i = kPart * kEach; i < (kPart + 1) * kEach; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float x = ptx::Exp2(fmaf(s[4 * i + 2 * j], score_scale, offset[j]));
        const float y = ptx::Exp2(fmaf(s[4 * i + 2 * j + 1], score_scale, offset[j]));
        p[(2 * i + j) / 4][(2 * i + j) % 4] = ptx::Pack2<T::kHalf>(x, y);
        sums[j][i % 2] += x + y;
      }
    }
  }

  // All parts, each when the group of products that reads its registers is done.
  template <int kPart = 0>
  __device__ __forceinline__ void WeighBehind(float (&s)[kScores], const float (&offset)[2],
                                              uint32_t (&p)[kScores / 8][4], float (&sums)[2][2]) {
    if constexpr (kPart < kGroups) {
      if constexpr (kPart > 0) {
        // The assembler moves waits over independent code, but not over a branch. This one is never
        // taken, since weights are not negative, and all warps of a warpgroup must pass the same
        // waits. Non-finite weights make the sums fail.
        constexpr int kWords = kScores / 2 / kGroups;
        constexpr int kBegin = (kPart - 1) * kWords;
#pragma unroll
        for (int i = kBegin; i < kBegin + kWords; ++i)
          asm volatile("" ::"r"(p[i / 4][i % 4]) : "memory");
        if (__any_sync(~0u, p[kBegin / 4][kBegin % 4] >= 0x80000000u)) return;
      }
      constexpr int kEach = kScores / kGroups;
      ptx::WgmmaWait<kGroups - 1 - kPart>();
#pragma unroll
      for (int i = kPart * kEach; i < (kPart + 1) * kEach; ++i)
        asm volatile("" : "+f"(s[i])::"memory");
      Weigh<kPart>(s, offset, p, sums);
      WeighBehind<kPart + 1>(s, offset, p, sums);
    }
  }
  template <int kPart = 0>
  __device__ __forceinline__ void WeighAll(const float (&s)[kScores], const float (&offset)[2],
                                           uint32_t (&p)[kScores / 8][4],
                                           float (&sums)[2][2]) const {
    if constexpr (kPart < kGroups) {
      Weigh<kPart>(s, offset, p, sums);
      WeighAll<kPart + 1>(s, offset, p, sums);
    }
  }

  // Scores to weights with new references. `first`: first tile of the item, whose o starts from
  // zero.
  __device__ __forceinline__ void SoftmaxAnew(const float (&s)[kScores],
                                              uint32_t (&p)[kScores / 8][4], bool first) {
    if (first) {
      m[0] = m[1] = -INFINITY;
      l[0] = l[1] = 0.0f;
    }
    float factor[2];
    Refer(s, factor);
    const float offset[2] = {m[0] == -INFINITY ? 0.0f : -m[0], m[1] == -INFINITY ? 0.0f : -m[1]};
    float sums[2][2] = {};
    WeighAll(s, offset, p, sums);
#pragma unroll
    for (int j = 0; j < 2; ++j) l[j] = l[j] * factor[j] + (sums[j][0] + sums[j][1]);
    if (first) return;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < kOut; ++i) o[part][i] *= factor[i / 2 % 2];
    }
  }

  // Scores to weights with the current references, overlapped with the products of the last values;
  // false: the references are too small.
  __device__ __forceinline__ bool SoftmaxBehind(float (&s)[kScores],
                                                uint32_t (&p)[kScores / 8][4]) {
    const float offset[2] = {-m[0], -m[1]};
    float sums[2][2] = {};
    WeighBehind(s, offset, p, sums);
    const float sum[2] = {sums[0][0] + sums[0][1], sums[1][0] + sums[1][1]};
    if (!__all_sync(~0u, sum[0] < kOutgrown && sum[1] < kOutgrown)) return false;
    l[0] += sum[0];
    l[1] += sum[1];
    return true;
  }

  // Waits for the next item's queries; false: no item is left.
  __device__ __forceinline__ bool NextItem() {
    ptx::BarrierWait(ptx::SharedAddress(&control->q_full[q.stage]), q.phase);
    const Work& w = control->work[slot];
    tile = w.high_tile;
    if (tile < 0) return false;
    low_tile = w.low_tile;
    valid = w.span.context_len - tile * T::kKeys;
    const int32_t before = w.span.context_len - w.span.num_rows;
    const uint32_t divisor = DivisorOf(a.group);
    const int32_t t = Thread();
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int32_t row = group_index * 64 + t / 32 * 16 + j * 8 + t % 32 / 4;
      position[j] = before + min(w.token_begin + Divide(row, divisor), w.span.num_rows - 1);
    }
    mask_from = (w.first_position + Divide(group_index * 64, divisor) + 1) / T::kKeys;
    const int32_t unseen = w.first_position + Divide(group_index * 64 + 63, divisor) - a.window;
    mask_upto = a.window > 0 && unseen >= 0 ? unseen / T::kKeys : -1;
    if constexpr (T::kQInRegisters) ReadQueries();
    return true;
  }

  // Stores the item in slot `of` through its query buffer `from`, and releases the buffer.
  __device__ __forceinline__ void Store(int32_t of, int32_t from, const float (&sum)[2]) {
    float inverse[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float all = sum[j];
      all += __shfl_xor_sync(~0u, all, 1);
      all += __shfl_xor_sync(~0u, all, 2);
      inverse[j] = out_scale / all;
    }
    const Work& w = control->work[of];
    if (T::kQBuffers == 1 || a.out_is_f32) {
      StoreWide<T>(a, w, group_index * 128 + Thread(), o, inverse);
    } else {
      StoreStaged<T>(a, w, group_index * 128 + Thread(), o, inverse, q_area + from * T::kQBytes);
    }
    if constexpr (T::kQBuffers > 1) {
      __syncwarp();
      ReleaseQueries(from);
    }
  }

  // For the very first tile, without values to overlap.
  __device__ __forceinline__ void FirstScores(float (&s)[kScores]) {
    ptx::BarrierWait(ptx::SharedAddress(&control->k_full[k.stage]), k.phase);
    TakeTurn();
    IssueScores(s);
    PassTurn();
    ptx::WgmmaWait<0>();
    wgmma::Pin(s);
    Release(&control->k_empty[k.stage]);
    k.Advance();
    Mask(s);
  }

  __device__ __forceinline__ void Run() {
    slot = 0;
    if (group_index == 1) PassTurn();  // warpgroup 0 has the first turn
    if (!NextItem()) return;
    float s[kScores];
    uint32_t p[kScores / 8][4];
    FirstScores(s);
    SoftmaxAnew(s, p, /*first=*/true);
    bool add = false;  // whether products are added to o or start it
    int32_t values_valid = valid;
    while (true) {
      // Scores of the next tile, possibly of another item, together with the values of this one.
      const int32_t old_slot = slot, old_buffer = q.stage;
      const bool first = tile == low_tile;
      --tile;
      if (first) {
        if constexpr (T::kQBuffers == 1) ReleaseQueries(0);
        slot ^= 1;
        q.Advance();
        if (!NextItem()) break;
      }
      ptx::BarrierWait(ptx::SharedAddress(&control->k_full[k.stage]), k.phase);
      TakeTurn();
      IssueScores(s);
      ptx::BarrierWait(ptx::SharedAddress(&control->v_full[v.stage]), v.phase);
      ZeroTail(values_valid);
      IssueValues(p, add);
      PassTurn();
      ptx::WgmmaWait<kGroups>();
      wgmma::Pin(s);
      Release(&control->k_empty[k.stage]);
      k.Advance();
      Mask(s);
      const float sum[2] = {l[0], l[1]};
      bool done = false;
      if (!first) done = SoftmaxBehind(s, p);
      ptx::WgmmaWait<0>();
      PinOut();
      Release(&control->v_empty[v.stage]);
      v.Advance();
      if (!done) SoftmaxAnew(s, p, first);
      if (first) {
        Store(old_slot, old_buffer, sum);
      }
      add = !first;
      values_valid = first ? valid : T::kKeys;
    }
    ptx::BarrierWait(ptx::SharedAddress(&control->v_full[v.stage]), v.phase);
    ZeroTail(values_valid);
    IssueValues(p, add);
    SyncGroup();  // all warps have finished the scores, so the queries' buffer may be written
    ptx::WgmmaWait<0>();
    PinOut();
    Store(slot ^ 1, T::kQBuffers == 1 ? 0 : q.stage ^ 1, l);
  }
};

}  // namespace aisp::cuda::prefill
