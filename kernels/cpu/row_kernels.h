// RowKernels: the vectorised inner loops of the CPU backend, one table per instruction set. The
// table is chosen once, at start. Results may differ in the last bits between tables, but never
// between calls of one table.
//
// Pure functions over the caller's memory: any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aisp {

inline constexpr int32_t kAttentionTile =
    16;  // positions; tiles start at multiples of it, for any chunk or block
inline constexpr int32_t kMaxHeadDim = 512;

// Rows of one sequence and one KV head. Row r is at position first_position + r.
struct AttendTask {
  const float* q = nullptr;  // first row, first query head of the KV head
  int64_t q_row_stride = 0;
  int64_t q_head_stride = 0;
  int32_t rows = 0;
  int32_t group = 0;  // query heads of the KV head
  int32_t q_dim = 0;  // a multiple of 16
  int32_t v_dim = 0;  // a multiple of 16
  int32_t first_position = 0;
  int32_t window = 0;
  float scale = 1.0f;
  const std::byte* keys = nullptr;  // of block 0, this KV head
  size_t block_bytes = 0;
  size_t value_offset = 0;  // bytes from a block's keys to its values
  int32_t slot_dim = 0;     // elements between slots
  bool kv_bf16 = false;
  const float* fp8_values = nullptr;  // if set, KV is fp8 and this maps its bits to values
  int32_t block_tokens = 0;
  const int32_t* table = nullptr;
  void* out = nullptr;  // first row, first head
  bool out_bf16 = false;
  int64_t out_row_stride = 0;   // elements
  int64_t out_head_stride = 0;  // elements
  float* scratch = nullptr;     // AttendScratchFloats(rows * group, slot_dim, v_dim)
};

// Online softmax state of each row and head (maximum, sum, output), and one tile of keys and values
// in f32.
constexpr size_t AttendScratchFloats(int32_t row_heads, int32_t slot_dim, int32_t v_dim) {
  return static_cast<size_t>(row_heads) * static_cast<size_t>(v_dim + 2) +
         static_cast<size_t>(kAttentionTile) * static_cast<size_t>(2 * slot_dim) + 64;
}

struct RowKernels {
  const char* isa;
  // y = x / sqrt(mean(x^2) + epsilon) * weight
  void (*rms_norm)(const float* x, const float* weight, void* y, bool y_bf16, int64_t dim,
                   float epsilon);
  // y = silu(x[0, dim)) * x[dim, 2 dim)
  void (*silu_mul)(const float* x, void* y, bool y_bf16, int64_t dim);
  // In place; x[i] pairs with x[i + half].
  void (*rotate_half)(float* x, const float* cosine, const float* sine, int64_t half);
  // y += weight * x
  void (*add_scaled)(float* y, const float* x, float weight, int64_t dim);
  void (*to_bf16)(const float* x, uint16_t* y, int64_t n);
  void (*from_bf16)(const uint16_t* x, float* y, int64_t n);
  void (*attend)(const AttendTask& task);
};

// nullptr if this CPU cannot run it.
const RowKernels* Avx512RowKernels();
const RowKernels* Avx2RowKernels();
const RowKernels& BaselineRowKernels();

// The widest table that this CPU can run.
const RowKernels& BestRowKernels();

}  // namespace aisp
