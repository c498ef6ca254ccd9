// Prefill attention, the parts that producers and consumers share: shared memory, the queue of work, the producers.
#pragma once

#include "kernels/cuda/attention/kernel_args.cuh"
#include "kernels/cuda/attention/ptx.cuh"

namespace aisp::cuda::prefill {

inline constexpr int kThreads = 384;  // a warpgroup of producers, two of consumers
inline constexpr int kConsumerWarps = 8;

template <int kHeadDim, bool kIsFp8>
struct Traits {
  static constexpr int kDim = kHeadDim;
  static constexpr bool kFp8 = kIsFp8;
  static constexpr int kKeys = kDim == 256 ? 64 : 128;  // of a tile
  static constexpr int kStages = kDim == 64 ? 3 : 2;    // of keys, and as many of values
  static constexpr int kColumns = kDim / 64;
  static constexpr uint32_t kQColumnBytes = kPrefillRows * 128;
  static constexpr uint32_t kQBytes = kQColumnBytes * kColumns;
  static constexpr uint32_t kColumnBytes = kKeys * 128;
  static constexpr uint32_t kTileBytes = kColumnBytes * kColumns;
  static constexpr uint32_t kControlBytes = 1024;
  static constexpr uint32_t kSharedBytes = kControlBytes + kQBytes + 2 * kStages * kTileBytes;
  static constexpr int kProducerRegisters = kFp8 ? 88 : 40;
  static constexpr int kConsumerRegisters = kFp8 ? 208 : 232;
  static constexpr int kProducerWarps = kFp8 ? 4 : 1;
};

// The head of shared memory.
struct Control {
  uint64_t k_full[4], k_empty[4], v_full[4], v_empty[4];
  uint64_t work_full[2], work_empty[2];
  int32_t work[2];
};

// One {sequence, query tile, KV head}. The rows of a tile are {token, head of the group} pairs, token by token.
struct Work {
  RowSpan span;
  int32_t kv_head;
  int32_t token_begin;          // of the tile, in the sequence's rows
  int32_t first_position;       // of the tile
  int32_t low_tile, high_tile;  // of keys, both included
};

template <class T>
__device__ __forceinline__ Work LoadWork(const KernelArgs& a, int32_t index) {
  const int2 item = a.prefill_items[index / a.num_kv_heads];
  Work w;
  w.kv_head = index % a.num_kv_heads;
  w.span = a.sequences[item.x];
  const int32_t tokens = kPrefillRows / a.group;
  w.token_begin = item.y * tokens;
  w.first_position = w.span.context_len - w.span.num_rows + w.token_begin;
  const int32_t last = min(w.first_position + tokens, w.span.context_len) - 1;
  w.high_tile = last / T::kKeys;
  const int32_t low = a.window > 0 ? max(0, w.first_position - a.window + 1) : 0;
  w.low_tile = low / T::kKeys;
  return w;
}

// The work of a CTA: first that of its own number, then whatever is left, as its first producer thread draws it.
class Queue {
 public:
  __device__ Queue(Control* control, const KernelArgs& a)
      : control_(control),
        total_(a.plan->prefill_items * a.num_kv_heads),
        current_(static_cast<int32_t>(blockIdx.x)) {}
  __device__ bool Done() const { return current_ >= total_; }
  __device__ int32_t current() const { return current_; }
  // Collective of a warp.
  __device__ void Next() {
    const int slot = drawn_ & 1;
    ptx::BarrierWait(ptx::SharedAddress(&control_->work_full[slot]), (drawn_ >> 1) & 1);
    current_ = *static_cast<volatile int32_t*>(&control_->work[slot]);
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::BarrierArrive(ptx::SharedAddress(&control_->work_empty[slot]));
    ++drawn_;
  }
  // By one thread of the CTA, once per piece of work: Draw before it is loaded, Publish after.
  __device__ int32_t Draw(const KernelArgs& a) const {
    const int32_t drawn = atomicAdd(a.next_item, 1);
    // Every CTA that had work draws until it draws nothing: as many times, together, as there is work.
    if (drawn == total_ - 1) *a.next_item = 0;
    return drawn + static_cast<int32_t>(gridDim.x);
  }
  __device__ void Publish(int32_t work) const {
    const int slot = drawn_ & 1;
    ptx::BarrierWait(ptx::SharedAddress(&control_->work_empty[slot]), ((drawn_ >> 1) & 1) ^ 1);
    *static_cast<volatile int32_t*>(&control_->work[slot]) = work;
    ptx::BarrierArrive(ptx::SharedAddress(&control_->work_full[slot]));
  }

 private:
  Control* control_;
  int32_t total_;
  int32_t current_;
  int32_t drawn_ = 0;
};

// A ring's place.
template <int kStages>
struct Place {
  int32_t stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void Advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// bf16: a warp, of which every lane asks the copy engine for one box of 16 keys x 64 elements.
template <class T>
__device__ __forceinline__ void LoadByCopyEngine(const KernelArgs& a, const CUtensorMap* map,
                                                 const Work& w, int32_t tile, int part,
                                                 uint32_t target, uint32_t full, uint32_t empty,
                                                 uint32_t phase) {
  constexpr int kBoxes = T::kKeys / 16 * T::kColumns;
  static_assert(kBoxes <= 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t groups_per_block = a.block_tokens / 16;
  const int32_t local = lane / T::kColumns;
  const int32_t column = lane % T::kColumns;
  const int32_t group = min(tile * (T::kKeys / 16) + local, (w.span.context_len - 1) / 16);
  int32_t block = 0;
  if (lane < kBoxes) block = a.block_tables[w.span.table_begin + group / groups_per_block];
  ptx::BarrierWait(empty, phase ^ 1);
  if (lane == 0) ptx::BarrierExpect(full, T::kTileBytes);
  __syncwarp();
  if (lane < kBoxes) {
    ptx::LoadTile4(target + column * T::kColumnBytes + local * 16 * 128, map, full, 0,
                   group % groups_per_block * 16, column,
                   2 * (block * a.num_kv_heads + w.kv_head) + part);
  }
  __syncwarp();
}

// Two e4m3 in the upper bytes of the halves of `v` to bf16, exactly.
__device__ __forceinline__ uint32_t Bf16FromE4M3(uint32_t v) {
  const uint32_t bits = (v & 0x80008000u) | ((v & 0x7f007f00u) >> 4);
  uint32_t r;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(bits), "r"(0x7b807b80u));  // times 2^120
  return r;
}

// FP8: a warpgroup reads a tile, widens it and stores it as the copy engine would; zeros past the context.
template <class T>
__device__ __forceinline__ void LoadAndWiden(const KernelArgs& a, const Work& w, int32_t tile,
                                             int part, uint32_t target, uint32_t full,
                                             uint32_t empty, uint32_t phase) {
  constexpr int kChunks = T::kDim / 16;  // of 16 elements, of a row
  constexpr int kRowsAtOnce = 128 / kChunks;
  constexpr int kPasses = T::kKeys / kRowsAtOnce;
  constexpr int kBatch = kPasses < 8 ? kPasses : 8;  // loads in flight
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const uint32_t chunk = thread % kChunks;
  const int64_t part_bytes = static_cast<int64_t>(a.block_tokens) * T::kDim;
#pragma unroll
  for (int batch = 0; batch < kPasses; batch += kBatch) {
    uint4 raw[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int32_t key = tile * T::kKeys + (batch + i) * kRowsAtOnce + thread / kChunks;
      raw[i] = make_uint4(0, 0, 0, 0);
      if (key < w.span.context_len) {
        const int64_t block = a.block_tables[w.span.table_begin + key / a.block_tokens];
        const uint8_t* at = static_cast<const uint8_t*>(a.pool) +
                            ((block * a.num_kv_heads + w.kv_head) * 2 + part) * part_bytes +
                            static_cast<int64_t>(key % a.block_tokens) * T::kDim + chunk * 16;
        raw[i] = *reinterpret_cast<const uint4*>(at);
      }
    }
    if (batch == 0) ptx::BarrierWait(empty, phase ^ 1);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const uint32_t row = (batch + i) * kRowsAtOnce + thread / kChunks;
      const uint32_t in[4] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w};
#pragma unroll
      for (uint32_t h = 0; h < 2; ++h) {
        const uint32_t wide = 2 * chunk + h;  // of 8 bf16
        const uint32_t at =
            target + wide / 8 * T::kColumnBytes + row * 128 + (((wide % 8) ^ (row & 7)) << 4);
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at),
                     "r"(Bf16FromE4M3(__byte_perm(in[2 * h], 0, 0x1404))),
                     "r"(Bf16FromE4M3(__byte_perm(in[2 * h], 0, 0x3424))),
                     "r"(Bf16FromE4M3(__byte_perm(in[2 * h + 1], 0, 0x1404))),
                     "r"(Bf16FromE4M3(__byte_perm(in[2 * h + 1], 0, 0x3424)))
                     : "memory");
      }
    }
  }
  ptx::FenceProxyAsync();
  ptx::BarrierArrive(full);
}

template <class T>
__device__ __forceinline__ void Load(const KernelArgs& a, const CUtensorMap* map, const Work& w,
                                     int32_t tile, int part, uint32_t ring, uint64_t* full,
                                     uint64_t* empty, Place<T::kStages>& place) {
  const uint32_t target = ring + place.stage * T::kTileBytes;
  const uint32_t full_at = ptx::SharedAddress(full + place.stage);
  const uint32_t empty_at = ptx::SharedAddress(empty + place.stage);
  if constexpr (T::kFp8) {
    LoadAndWiden<T>(a, w, tile, part, target, full_at, empty_at, place.phase);
  } else {
    LoadByCopyEngine<T>(a, map, w, tile, part, target, full_at, empty_at, place.phase);
  }
  place.Advance();
}

// Keys from the last tile to the first, each tile's values one step behind its keys.
template <class T>
__device__ __forceinline__ void Produce(const KernelArgs& a, const CUtensorMap* map,
                                        Control* control, uint32_t k_ring, uint32_t v_ring) {
  const bool draws = threadIdx.x == 2 * 128;
  Place<T::kStages> k, v;
  for (Queue queue(control, a); !queue.Done(); queue.Next()) {
    int32_t drawn = 0;
    if (draws) drawn = queue.Draw(a);
    const Work w = LoadWork<T>(a, queue.current());
    for (int32_t tile = w.high_tile; tile >= w.low_tile; --tile) {
      Load<T>(a, map, w, tile, 0, k_ring, control->k_full, control->k_empty, k);
      if (tile < w.high_tile)
        Load<T>(a, map, w, tile + 1, 1, v_ring, control->v_full, control->v_empty, v);
    }
    Load<T>(a, map, w, w.low_tile, 1, v_ring, control->v_full, control->v_empty, v);
    if (draws) queue.Publish(drawn);
    __syncwarp();
  }
}

}  // namespace aisp::cuda::prefill
