// Prefill attention: a warpgroup that multiplies. It goes over its items as one stream of key tiles: the first scores of an item
// are issued together with the last values of the one before, so that no item's end leaves the tensor cores idle.
//
// The weights of a tile are taken against a reference, the row's maximum when it was last looked for, and not against the maximum
// so far: what counts is that nothing overflows, since the sums in `l` and `o` carry the same factor. A row's reference is found at
// an item's first tile, and anew only where a tile's weights outgrow it (or the row had no key so far). So most tiles need
// no maximum, no exchange between threads and no rescaling.
#pragma once

#include "kernels/cuda/attention/prefill_core.cuh"
#include "kernels/cuda/attention/wgmma.cuh"

namespace aisp::cuda::prefill {

template <class T>
struct Consumer {
  static constexpr int kScores = T::kKeys / 2;  // registers of a 64 x kKeys tile
  static constexpr int kParts =
      T::kDim == 256 ? 2 : 1;  // products that the columns of the result take
  static constexpr int kOut = T::kDim / kParts / 2;
  static constexpr float kOutgrown = 0x1p40f;

  const KernelArgs& a;
  Control* control;
  uint32_t q_area, k_ring, v_ring;
  int32_t group_index;  // of the warpgroup: 0 or 1
  int32_t thread;       // in the warpgroup
  float score_scale, out_scale;

  float o[kParts][kOut];
  float m[2], l[2];  // the reference, scaled; this thread's part of the sum
  int32_t position[2];
  int32_t tile, low_tile;  // of keys
  int32_t mask_from,
      mask_upto;  // tiles at or above, and at or below, have keys that a row does not see
  int32_t valid;  // keys of the tile that are in the context, if the tile is an item's first
  int32_t slot;   // in control->work
  Place<T::kStages> k, v;
  Place<T::kQBuffers> q;

  // The thread's index for work that is rare: opaque, or the compiler computes what follows from it once and for all, for which
  // there are no registers.
  __device__ __forceinline__ int32_t Thread() const {
    int32_t t = thread;
    asm volatile("" : "+r"(t));
    return t;
  }
  __device__ __forceinline__ void SyncGroup() const { ptx::NamedSync(4 + group_index, 128); }
  // The warpgroups take turns in issuing products.
  __device__ __forceinline__ void TakeTurn() const { ptx::NamedSync(2 + group_index, 256); }
  __device__ __forceinline__ void PassTurn() const { ptx::NamedArrive(2 + (group_index ^ 1), 256); }

  __device__ __forceinline__ void Release(uint64_t* empty) const {
    if (thread % 32 == 0) ptx::BarrierArrive(ptx::SharedAddress(empty));
  }

  // s = Q K^T, issued only.
  __device__ __forceinline__ void IssueScores(float (&s)[kScores]) const {
    const uint64_t rows =
        wgmma::RowsDescriptor(q_area + q.stage * T::kQBytes + group_index * 64 * 128);
    const uint64_t keys = wgmma::RowsDescriptor(k_ring + k.stage * T::kTileBytes);
    wgmma::Fence();
#pragma unroll
    for (int step = 0; step < T::kDim / 16; ++step) {
      const uint32_t inside = step % 4 * 32;
      wgmma::Scores(s, wgmma::Plus(rows, step / 4 * T::kQColumnBytes + inside),
                    wgmma::Plus(keys, step / 4 * T::kColumnBytes + inside), step > 0);
    }
    wgmma::Commit();
  }

  // o += P V, issued only.
  __device__ __forceinline__ void IssueValues(const uint32_t (&p)[kScores / 8][4], bool add) {
    const uint64_t values =
        wgmma::ColumnsDescriptor(v_ring + v.stage * T::kTileBytes, T::kColumnBytes);
    wgmma::Fence();
#pragma unroll
    for (int step = 0; step < T::kKeys / 16; ++step) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        constexpr uint32_t kPartBytes = T::kColumns / kParts * T::kColumnBytes;
        wgmma::Values(o[part], p[step], wgmma::Plus(values, part * kPartBytes + step * 16 * 128),
                      add || step > 0);
      }
    }
    wgmma::Commit();
  }

  __device__ __forceinline__ void PinOut() {
#pragma unroll
    for (int part = 0; part < kParts; ++part) wgmma::Pin(o[part]);
  }

  // Values past the context may be anything, NaN too, and zero times NaN is not zero.
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

  // Raises the references to the maxima so far; `factor`: what sums against the old ones are to be multiplied with.
  __device__ __forceinline__ void Refer(const float (&s)[kScores], float (&factor)[2]) {
    constexpr int kChains = 4;  // independent ones, for the latency
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

  // p = 2^(s * score_scale + offset) as bf16; the sums over this thread's keys.
  __device__ __forceinline__ void Weigh(const float (&s)[kScores], const float (&offset)[2],
                                        uint32_t (&p)[kScores / 8][4], float (&sum)[2]) const {
    float sums[2][2] = {};
#pragma unroll
    for (int i = 0; i < kScores / 4; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float x = ptx::Exp2(fmaf(s[4 * i + 2 * j], score_scale, offset[j]));
        const float y = ptx::Exp2(fmaf(s[4 * i + 2 * j + 1], score_scale, offset[j]));
        p[(2 * i + j) / 4][(2 * i + j) % 4] = ptx::Pack2<false>(x, y);
        sums[j][i % 2] += x + y;
      }
    }
    sum[0] = sums[0][0] + sums[0][1];
    sum[1] = sums[1][0] + sums[1][1];
  }

  // Scores to weights; `first`: of the item, whose o starts from zero with the next product.
  __device__ __forceinline__ void Softmax(const float (&s)[kScores], uint32_t (&p)[kScores / 8][4],
                                          bool first) {
    float sum[2];
    if (!first) {
      const float offset[2] = {-m[0], -m[1]};
      Weigh(s, offset, p, sum);
      if (__all_sync(~0u, sum[0] < kOutgrown && sum[1] < kOutgrown)) {
        l[0] += sum[0];
        l[1] += sum[1];
        return;
      }
    } else {
      m[0] = m[1] = -INFINITY;
      l[0] = l[1] = 0.0f;
    }
    float factor[2];
    Refer(s, factor);
    const float offset[2] = {m[0] == -INFINITY ? 0.0f : -m[0], m[1] == -INFINITY ? 0.0f : -m[1]};
    Weigh(s, offset, p, sum);
    l[0] = l[0] * factor[0] + sum[0];
    l[1] = l[1] * factor[1] + sum[1];
    if (first) return;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < kOut; ++i) o[part][i] *= factor[i / 2 % 2];
    }
  }

  // Waits for the next item's queries; false: there is none.
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
    return true;
  }

  __device__ __forceinline__ void StoreWide(const Work& w, const float (&inverse)[2]) const {
    const int32_t tokens = kPrefillRows / a.group;
    const uint32_t divisor = DivisorOf(a.group);
    const int32_t t = Thread();
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int32_t row = group_index * 64 + t / 32 * 16 + j * 8 + t % 32 / 4;
      const int32_t local = Divide(row, divisor);
      const int32_t token = w.token_begin + local;
      if (local >= tokens || token >= w.span.num_rows) continue;
      const int64_t base =
          (w.span.row_begin + static_cast<int64_t>(token)) * a.out_row_stride +
          static_cast<int64_t>(w.kv_head * a.group + row - local * a.group) * T::kDim + 2 * (t % 4);
#pragma unroll
      for (int n = 0; n < T::kDim / 8; ++n) {
        const int part = n / (kOut / 4);
        const int at = n % (kOut / 4) * 4 + 2 * j;
        const float x = o[part][at] * inverse[j];
        const float y = o[part][at + 1] * inverse[j];
        if (a.out_is_f32) {
          *reinterpret_cast<float2*>(static_cast<float*>(a.out) + base + 8 * n) = make_float2(x, y);
        } else {
          *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(a.out) + base + 8 * n) =
              ptx::Pack2<false>(x, y);
        }
      }
    }
  }

  // Through the warp's rows of the query buffer, so that rows leave in pieces of 16 bytes.
  __device__ __forceinline__ void StoreStaged(const Work& w, const float (&inverse)[2],
                                              uint32_t buffer) const {
    constexpr int kChunks = T::kDim / 8;
    const int32_t t = Thread();
    const int32_t lane = t % 32;
    const int32_t first_row = group_index * 64 + t / 32 * 16;
    {
      const int32_t row = first_row + lane % 16;
      const uint32_t at = buffer + row * 128;
#pragma unroll
      for (int n = 0; n < kChunks; n += 2) {  // columns of 8
        const int32_t chunk = n + lane / 16;
        uint32_t r[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int part = (n + i / 2) / (kOut / 4);
          const int from = (n + i / 2) % (kOut / 4) * 4 + 2 * (i % 2);
          r[i] =
              ptx::Pack2<false>(o[part][from] * inverse[i % 2], o[part][from + 1] * inverse[i % 2]);
        }
        const uint32_t to = at + chunk / 8 * T::kQColumnBytes + (((chunk % 8) ^ (row & 7)) << 4);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                     "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                     : "memory");
      }
    }
    __syncwarp();
    const int32_t tokens = kPrefillRows / a.group;
    const uint32_t divisor = DivisorOf(a.group);
    const int32_t chunk = lane % kChunks;
    __nv_bfloat16* out = static_cast<__nv_bfloat16*>(a.out) + w.span.row_begin * a.out_row_stride +
                         static_cast<int64_t>(w.kv_head) * a.group * T::kDim + chunk * 8;
#pragma unroll
    for (int i = 0; i < 16 * kChunks / 32; ++i) {
      const int32_t row = first_row + i * (32 / kChunks) + lane / kChunks;
      const int32_t local = Divide(row, divisor);
      const int32_t token = w.token_begin + local;
      const uint32_t from =
          buffer + chunk / 8 * T::kQColumnBytes + row * 128 + (((chunk % 8) ^ (row & 7)) << 4);
      uint4 x;
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                   : "r"(from)
                   : "memory");
      if (local < tokens && token < w.span.num_rows) {
        *reinterpret_cast<uint4*>(out + token * a.out_row_stride +
                                  (row - local * a.group) * T::kDim) = x;
      }
    }
  }

  // The item in slot `of`, whose queries are in buffer `from`, and gives the buffer back.
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
      StoreWide(w, inverse);
    } else {
      StoreStaged(w, inverse, q_area + from * T::kQBytes);
    }
    if constexpr (T::kQBuffers > 1) {
      __syncwarp();
      Release(&control->q_empty[from]);
    }
  }

  __device__ __forceinline__ void Run() {
    slot = 0;
    if (group_index == 1) PassTurn();  // the first turn is warpgroup 0's
    if (!NextItem()) return;
    float s[kScores];
    uint32_t p[kScores / 8][4];
    ptx::BarrierWait(ptx::SharedAddress(&control->k_full[k.stage]), k.phase);
    TakeTurn();
    IssueScores(s);
    PassTurn();
    wgmma::Wait<0>();
    wgmma::Pin(s);
    Release(&control->k_empty[k.stage]);
    k.Advance();
    Mask(s);
    Softmax(s, p, /*first=*/true);
    bool add = false;  // the values to o, and not start it
    int32_t values_valid = valid;
    while (true) {
      // The scores of the next tile, maybe of another item, and the values of this one.
      const int32_t old_slot = slot, old_buffer = q.stage;
      const bool first = tile == low_tile;
      --tile;
      if (first) {
        if constexpr (T::kQBuffers == 1) Release(&control->q_empty[q.stage]);
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
      wgmma::Wait<1>();
      wgmma::Pin(s);
      Release(&control->k_empty[k.stage]);
      k.Advance();
      Mask(s);
      wgmma::Wait<0>();
      PinOut();
      wgmma::Pin(s);
      Release(&control->v_empty[v.stage]);
      v.Advance();
      const float sum[2] = {l[0], l[1]};
      Softmax(s, p, first);
      if (first) Store(old_slot, old_buffer, sum);
      add = !first;
      values_valid = first ? valid : T::kKeys;
    }
    ptx::BarrierWait(ptx::SharedAddress(&control->v_full[v.stage]), v.phase);
    ZeroTail(values_valid);
    IssueValues(p, add);
    SyncGroup();  // all its warps are done with the scores, whose queries' buffer is written now
    wgmma::Wait<0>();
    PinOut();
    Store(slot ^ 1, T::kQBuffers == 1 ? 0 : q.stage ^ 1, l);
  }
};

}  // namespace aisp::cuda::prefill
