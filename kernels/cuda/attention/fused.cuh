// Decode attention in one launch: what the host class and the kernel agree on.
//
// The keys are cut into tiles of 4 KiB of K and as much of V; an item is one
// {sequence, KV head}, with all query rows of both; the tiles of all items, one after the other,
// are shared equally among the CTAs (split-K). Where a sequence has several rows in the step
// (proposed tokens to be verified) and they do not fit an item, it has two items for each KV head.
// An item that ends in another CTA than it began in is published in parts in `partials`, and the
// CTA that has its end adds them up in the order of the keys.
//
// Parts need neither flags nor fences: a slot is empty while it holds kEmptyPart, the pattern of a
// NaN that no arithmetic gives; the consumer polls a part until none of its slots is empty, and
// resets it for the next launch. A CTA only waits for ones of a lower number, which have started
// before it, and publishes its own part before it waits. (One sequence alone: see fused_one.cu.)
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
inline constexpr int kFusedSlicesPerRow = 8;  // of one sequence's rows, at most (fused_one.cu)

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
  TokenSlots token_slots;  // of the only sequence; qkv is not read then
  uint8_t* pool = nullptr;
  float* partials = nullptr;  // [cta][query row of the KV head][head_dim], then float2 [cta][row]
                              // {maximum, sum}; all empty between launches
  void* plan = nullptr;       // fused_plan.cuh; not of IsOneSequence
  const float* device_scales = nullptr;
  int64_t qkv_row_stride = 0;
  int64_t out_row_stride = 0;
  int32_t num_sequences = 0;
  int32_t rows = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t group = 0;
  int32_t item_tokens = 1;  // rows of a sequence in an item: 1, or FusedItemTokens(group)
  int32_t item_rows = 0;    // group * item_tokens
  int32_t most_rows = 1;    // sequences with more are left out, as padding is
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

// Which kernels: of a KV dtype, a head size, a number of query rows in an item.
struct FusedShape {
  int32_t head_dim = 0;
  bool fp8 = false;
  int32_t item_rows = 0;
  bool several = false;  // rows of a sequence
};

// Raises the kernel's limits; once per device. cudaErrorInvalidValue: no kernel for the shape.
cudaError_t PrepareFused(const FusedShape& shape);
bool HasFused(const FusedShape& shape);
int64_t FusedPartialBytes(int32_t head_dim, int32_t item_rows, int32_t ctas);
// How many CTAs fit on a multiprocessor at most.
int32_t FusedCtasPerProcessor(int32_t item_rows);
// (FusedArgs), for args.num_sequences == 1; null for shapes without a kernel.
const void* OneSequenceKernelOf(const FusedShape& shape);
// Items that a sequence has at most.
inline int32_t MostItems(const FusedArgs& args) {
  return args.num_kv_heads * (args.item_tokens > 1 ? 2 : 1);
}
// One sequence whose items can have CTAs of their own: OneSequenceKernelOf, which needs no plan.
inline bool IsOneSequence(const FusedArgs& args, int32_t ctas) {
  return args.num_sequences == 1 && MostItems(args) <= ctas;
}
int64_t FusedPlanBytes(int32_t ctas);
// Of args it reads what says where keys are. Before launches of anything else on as many CTAs.
cudaError_t LaunchFusedPlan(const FusedShape& shape, int32_t ctas, const FusedArgs& args,
                            cudaStream_t stream);
// `overlap`: begins before the launch before it is done. Not right behind the plan, which is read
// at once.
cudaError_t LaunchFused(const FusedShape& shape, int32_t ctas, bool overlap, const FusedArgs& args,
                        cudaStream_t stream);

}  // namespace aisp::cuda
