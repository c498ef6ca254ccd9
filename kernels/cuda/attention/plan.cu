#include "kernels/cuda/attention/plan.cuh"
#include "kernels/cuda/attention/ptx.cuh"

namespace aisp::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kPerThread = 4;
constexpr int kMaxSequences = kThreads * kPerThread;
constexpr int kBuckets = 2048;

// The sum of `value` over lower threads; `total`: over all threads.
__device__ int32_t ExclusiveScan(int32_t value, int32_t* warp_sums, int32_t& total) {
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
  int32_t inclusive = value;
  for (int step = 1; step < 32; step *= 2) {
    const int32_t other = __shfl_up_sync(~0u, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  if (lane == 31) warp_sums[warp] = inclusive;
  __syncthreads();
  if (warp == 0) {
    int32_t sum = warp_sums[lane];
    for (int step = 1; step < 32; step *= 2) {
      const int32_t other = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += other;
    }
    warp_sums[lane] = sum;
  }
  __syncthreads();
  total = warp_sums[31];
  return inclusive - value + (warp > 0 ? warp_sums[warp - 1] : 0);
}

__device__ int32_t ItemsOf(const PlanShape& shape, const RowSpan& span) {
  return shape.num_kv_heads *
         ((span.num_rows * shape.group + shape.chunk_rows - 1) / shape.chunk_rows);
}

// The item that contains tile `tile`.
__device__ DecodeStart Locate(const PlanShape& shape, const RowSpan* sequences,
                              int32_t num_sequences, const int32_t* prefix, int32_t tile) {
  int low = 0;  // the last non-empty sequence whose tiles begin at or before `tile`
  int high = num_sequences - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (prefix[middle] <= tile) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  DecodeStart start;
  start.span = sequences[low];
  const int32_t count = DecodeTiles(start.span, shape.window).count;
  start.seq = low;
  start.item = (tile - prefix[low]) / count;
  start.tile = tile;
  start.items = ItemsOf(shape, start.span);
  start.item_begin = prefix[low] + start.item * count;
  return start;
}

// Writes where a range begins and the item that it cuts at its end; `cut_items`: count so far.
__device__ __forceinline__ void PlanRange(const PlanShape& shape, const RowSpan* sequences,
                                          int32_t num_sequences, const RangeLayout& layout,
                                          int range, PlanHeader* header, int32_t* shared_prefix,
                                          int32_t* cut_items) {
  const int32_t begin = layout.Begin(range);
  const int32_t end = layout.Begin(range + 1);
  DecodeStart start = Locate(shape, sequences, num_sequences, shared_prefix, begin);
  start.tiles = end - begin;
  header->decode_start[range] = start;
  const DecodeStart last = Locate(shape, sequences, num_sequences, shared_prefix, end - 1);
  const int32_t item_end = last.item_begin + DecodeTiles(last.span, shape.window).count;
  if (last.item_begin >= begin && item_end > end) {
    CutItem cut;
    cut.span = last.span;
    cut.item = last.item;
    cut.first = range;
    cut.last = layout.RangeOf(item_end - 1);
    header->cut[atomicAdd(cut_items, 1)] = cut;
  }
}

__device__ void PlanDecode(const PlanShape& shape, const RowSpan* sequences, int32_t num_sequences,
                           PlanHeader* header, int32_t* shared_prefix, int32_t* warp_sums) {
  int32_t tiles[kPerThread];
  int32_t mine = 0;
  int32_t my_items = 0;
  for (int i = 0; i < kPerThread; ++i) {
    const int s = static_cast<int>(threadIdx.x) * kPerThread + i;
    tiles[i] = 0;
    if (s < num_sequences) {
      const RowSpan span = sequences[s];
      if (IsDecode(span, shape.decode_least, shape.decode_tokens)) {
        const int32_t items = ItemsOf(shape, span);
        tiles[i] = DecodeTiles(span, shape.window).count * items;
        my_items += items;
      }
    }
    mine += tiles[i];
  }
  int32_t items = 0;
  ExclusiveScan(my_items, warp_sums, items);
  __syncthreads();
  int32_t total = 0;
  int32_t before = ExclusiveScan(mine, warp_sums, total);
  for (int i = 0; i < kPerThread; ++i) {
    const int s = static_cast<int>(threadIdx.x) * kPerThread + i;
    if (s <= num_sequences) {
      shared_prefix[s] = before;
    }
    before += tiles[i];
  }
  if (num_sequences == kMaxSequences && threadIdx.x == kThreads - 1) {
    shared_prefix[num_sequences] = before;
  }
  __syncthreads();
  const int32_t wanted = max(items, (total + shape.min_tiles - 1) / shape.min_tiles);
  const int32_t ctas = max(1, min(min(shape.ctas, wanted), total));
  const int32_t each = total / ctas;
  RangeLayout layout;
  // Short ranges balance the load, but each cut through an item adds a partial result. So cut less
  // when there are few long items.
  const int32_t cuts = items < 3 * ctas / 8 ? 1 : items < 7 * ctas / 8 ? 2 : 3;
  layout.Cut(total, ctas, min(min(shape.max_stretches, cuts), each < 96 ? 1 : each < 384 ? 2 : 3));
  if (total == 0) layout.ranges = 0;
  if (threadIdx.x == 0) warp_sums[0] = 0;  // cut items so far
  __syncthreads();
  for (int range = static_cast<int>(threadIdx.x); range < layout.ranges; range += kThreads) {
    PlanRange(shape, sequences, num_sequences, layout, range, header, shared_prefix, warp_sums);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    header->layout = layout;
    header->cut_items = warp_sums[0];
  }
}

// Number of key tiles for query tile `tile` of a sequence.
__device__ int32_t PrefillCost(const PlanShape& shape, const RowSpan& span, int32_t tile,
                               int32_t tokens) {
  const int32_t first = span.context_len - span.num_rows + tile * tokens;
  const int32_t last = min(first + tokens, span.context_len) - 1;
  const int32_t low = shape.window > 0 ? max(0, first - shape.window + 1) : 0;
  return last / kPrefillKeys - low / kPrefillKeys + 1;
}

__device__ void PlanPrefill(const PlanShape& shape, const RowSpan* sequences, int32_t num_sequences,
                            PlanHeader* header, int2* items, int32_t* buckets, int32_t* warp_sums) {
  for (int i = static_cast<int>(threadIdx.x); i < kBuckets; i += kThreads) buckets[i] = 0;
  __syncthreads();
  const int lane = threadIdx.x & 31;
  const int32_t tokens = kPrefillRows / shape.group * shape.prefill_cluster;
  // Two passes: count the tiles of each cost, then place them in descending order.
  for (int pass = 0; pass < 2; ++pass) {
    for (int s = static_cast<int>(threadIdx.x >> 5); s < num_sequences; s += kThreads / 32) {
      const RowSpan span = sequences[s];
      if (span.num_rows <= shape.prefill_beyond) continue;
      const int32_t tiles = (span.num_rows + tokens - 1) / tokens;
      for (int32_t tile = lane; tile < tiles; tile += 32) {
        const int32_t bucket =
            kBuckets - 1 - min(PrefillCost(shape, span, tile, tokens), kBuckets - 1);
        const int32_t place = atomicAdd(&buckets[bucket], 1);
        if (pass == 1) items[place] = make_int2(s, tile);
      }
    }
    __syncthreads();
    if (pass == 0) {
      const int32_t a = buckets[2 * threadIdx.x];
      const int32_t b = buckets[2 * threadIdx.x + 1];
      int32_t total = 0;
      const int32_t before = ExclusiveScan(a + b, warp_sums, total);
      buckets[2 * threadIdx.x] = before;
      buckets[2 * threadIdx.x + 1] = before + a;
      if (threadIdx.x == 0) header->prefill_items = total;
      __syncthreads();
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    PlanKernel(PlanShape shape, const RowSpan* sequences, int32_t num_sequences, bool decode,
               bool prefill, PlanHeader* header, int2* items) {
  __shared__ int32_t words[kMaxSequences + 1];
  __shared__ int32_t warp_sums[32];
  ptx::WaitForPredecessor();
  if (blockIdx.x == 0 && decode) {
    PlanDecode(shape, sequences, num_sequences, header, words, warp_sums);
  }
  if (blockIdx.x == 1 && prefill) {
    PlanPrefill(shape, sequences, num_sequences, header, items, words, warp_sums);
  }
}

}  // namespace

cudaError_t LaunchPlan(const PlanShape& shape, const RowSpan* sequences, int32_t num_sequences,
                       bool decode, bool prefill, PlanHeader* header, int2* prefill_items,
                       cudaStream_t stream) {
  PlanKernel<<<2, kThreads, 0, stream>>>(shape, sequences, num_sequences, decode, prefill, header,
                                         prefill_items);
  return cudaGetLastError();
}

}  // namespace aisp::cuda
