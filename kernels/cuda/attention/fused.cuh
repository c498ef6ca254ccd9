// Decode attention in one launch: shared by host class and kernel.
//
// Keys are cut into tiles of 4 KiB of K and 4 KiB of V. An item is one {sequence, KV head} with all
// its query rows. The tiles of all items, concatenated, are divided equally among the CTAs
// (split-K). If a sequence has several rows (draft tokens to verify) that do not fit in one item,
// it has two items per KV head. If an item ends in another CTA than it began in, its parts are
// published in `partials`, and the CTA with its end adds them in the order of the keys.
//
// Parts need no flags or fences: an empty slot holds kEmptyPart, the pattern of a NaN that
// arithmetic never produces. The consumer polls a part until none of its slots is empty, then
// resets it for the next launch. A CTA waits only for CTAs of lower numbers, which have started
// before it, and publishes its own part before waiting. (For a single sequence see fused_one.cu.)
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/poll.h"
#include "kernels/cuda/table/instances.h"
#include "kernels/cuda/token_slots.h"
#include "kernels/params.h"

namespace aisp::cuda {

inline constexpr int kMaxFusedCtasPerProcessor = 3;
inline constexpr int kEmptyPartByte = 0xff;   // ZeroWorkspace fills the partials with it
inline constexpr int kFusedSlicesPerRow = 8;  // maximum per row of a single sequence (fused_one.cu)

struct FusedArgs {
  const RowSpan* sequences = nullptr;
  const int32_t* block_tables = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* kv_slots = nullptr;
  const void* qkv = nullptr;  // bf16
  const float* cos_sin = nullptr;
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  void* out = nullptr;
  TokenSlots token_slots;  // of the only sequence; qkv is then not read
  uint8_t* pool = nullptr;
  float* partials = nullptr;  // [cta][query row of the KV head][head_dim], then float2 [cta][row]
                              // {maximum, sum}; empty between launches
  void* plan = nullptr;       // fused_plan.cuh; unused if IsOneSequence
  const float* device_scales = nullptr;
  int64_t qkv_row_stride = 0;
  int64_t out_row_stride = 0;
  int32_t num_sequences = 0;
  int32_t rows = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t group = 0;
  int32_t item_tokens = 1;  // rows of a sequence per item: 1, or FusedItemTokens(group)
  int32_t item_rows = 0;    // group * item_tokens
  int32_t most_rows = 1;    // sequences with more rows are skipped, like padding
  int32_t block_tokens = 0;
  uint32_t runs_inverse = 0;  // RunsInverse(block_tokens / 16)
  int32_t window = 0;
  float norm_epsilon = 0.0f;
  float scale_log2 = 1.0f;
  float k_scale = 1.0f;
  float v_scale = 1.0f;
  bool out_is_f32 = false;
  PollTag poll;
};

// n / runs is (n * RunsInverse(runs)) >> 31, for n < 2^28 and runs <= 8.
constexpr uint32_t RunsInverse(uint32_t runs) { return (0x80000000u + runs - 1) / runs; }

// Selects a kernel by KV dtype, head size and number of query rows per item.
struct FusedShape {
  int32_t head_dim = 0;
  bool fp8 = false;
  int32_t item_rows = 0;
  bool several = false;  // sequences have several rows
};

// Raises the kernel's limits; once per device. cudaErrorInvalidValue: no kernel for the shape.
cudaError_t PrepareFused(const FusedShape& shape);
bool HasFused(const FusedShape& shape);
int64_t FusedPartialBytes(int32_t head_dim, int32_t item_rows, int32_t ctas);
// Maximum of CTAs per multiprocessor.
int32_t FusedCtasPerProcessor(int32_t item_rows);
// The kernel, taking (FusedArgs), for args.num_sequences == 1; null for shapes without one.
const void* OneSequenceKernelOf(const FusedShape& shape);
// Maximum of items per sequence.
inline int32_t MostItems(const FusedArgs& args) {
  return args.num_kv_heads * (args.item_tokens > 1 ? 2 : 1);
}
// Whether a single sequence's items can have CTAs of their own, so that no plan is needed.
inline bool IsOneSequence(const FusedArgs& args, int32_t ctas) {
  return args.num_sequences == 1 && MostItems(args) <= ctas;
}
int64_t FusedPlanBytes(int32_t ctas);
// Computes the plan from the part of args that locates keys. Call before launches with the same
// number of CTAs.
cudaError_t LaunchFusedPlan(const FusedShape& shape, int32_t ctas, const FusedArgs& args,
                            cudaStream_t stream);
// `overlap`: starts before the previous launch is done. Not directly after the plan, which is read
// at once.
cudaError_t LaunchFused(const FusedShape& shape, int32_t ctas, bool overlap, const FusedArgs& args,
                        cudaStream_t stream);

}  // namespace aisp::cuda
