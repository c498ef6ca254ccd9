// Attention on Hopper GPUs over the paged KV pool: decode, prefill, and RoPE with KV append.
//
// One Attention serves every layer of one shape {heads, head_dim, page size, formats, window,
// scale}. Once per step PlanStep() computes on the device who works on what; then Run() is called
// per layer. Sequences with at most `max_decode_tokens` rows go to the decode kernel (split over
// the keys, bound by memory), the others to the prefill kernel (bound by the tensor cores), which
// gives the keys of so many query rows to one CTA. Where a step has few rows, that leaves most
// CTAs without work: with `split_tokens` the decode kernel takes its prompts, too. Both kernels
// read every length and block table from device memory, and their grids depend on the device alone,
// so that PlanStep and Run can be captured in a CUDA graph and replayed with other contents.
// Padding: sequences with num_rows == 0.
//
// A step in which every sequence has one row at most, or few (FusedTakes in table/instances.h), may
// instead be one launch per layer, after PlanDecode() for all of them: RunDecode() rotates, appends
// and attends. One with prompts beside such sequences: RunMixed(), after PlanMixed().
//
// Ownership: Attention owns nothing on the device; the caller lends `workspace_bytes()` of memory,
// zeroed once (ZeroWorkspace) before the first PlanStep, and gives it to one stream at a time. No
// call allocates or waits for the device. Determinism: the same step gives the same bits, run after
// run. Another mix of sequences may split a context elsewhere and so round differently. Errors: a
// shape without kernels is an error of Create (UNIMPLEMENTED or INVALID_ARGUMENT), never a slow
// path; a failed launch is INTERNAL. Threads: Create from any, a given object's calls from one at a
// time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/result.h"
#include "kernels/cuda/poll.h"
#include "kernels/cuda/token_slots.h"
#include "kernels/device/dtype.h"
#include "kernels/params.h"

namespace aisp::cuda {

struct AttentionConfig {
  int32_t num_heads = 0;          // at most 16 per KV head
  int32_t num_kv_heads = 0;       // divides num_heads
  int32_t head_dim = 0;           // of the pool: 64, 128 or 256
  int32_t block_tokens = 0;       // a multiple of 16, at most 128
  DType kv = DType::kBF16;        // kBF16 or kF8E4M3
  DType q = DType::kBF16;         // kBF16 or kF32
  DType out = DType::kBF16;       // kBF16 or kF32
  float scale = 1.0f;             // of the scores
  int32_t window = 0;             // > 0: a row at position p sees positions > p - window only
  int32_t max_sequences = 0;      // of a step, padding included: at most 4096
  int32_t max_rows = 0;           // of a step
  int32_t max_decode_tokens = 1;  // rows of a sequence that the decode kernel takes: 0 (none) to 16
  // > 0: no sequence has more rows, at most 64, and all are the decode kernel's.
  int32_t split_tokens = 0;
  // RunDecode's CTAs on a multiprocessor: 1 to 3; 0: by the number of sequences. One leaves room
  // for the next kernel's CTA, three keep more of the memory busy.
  int32_t decode_ctas = 0;
};

// The pool of one layer, as the copy engine sees it. A plain value: made once per layer, or per
// call (under 1 us, no device).
struct alignas(64) KvLayer {
  uint64_t loads[16] = {};  // the decode kernel's tensor map
  uint64_t tiles[16] = {};  // the prefill kernel's tensor map
  void* base = nullptr;
  int64_t num_blocks = 0;
};

// What the kernels read of a step; all pointers are device memory, rewritten by the caller between
// steps as it likes.
struct AttentionBatch {
  const RowSpan* sequences = nullptr;
  const int32_t* block_tables = nullptr;  // concatenated, RowSpan::table_begin
  int32_t num_sequences = 0;              // the bucket: padding included
  // RunDecode with few sequences: the contexts are so long (64k keys together, say) that bytes
  // count and not microseconds. Only a hint; it fixes a captured grid.
  bool long_contexts = false;
};

struct AttentionCall {
  const void* q = nullptr;     // [rows, heads, head_dim]; 16-byte aligned, as is each row
  int64_t q_row_stride = 0;    // elements
  void* out = nullptr;         // [rows, heads, head_dim]; 16-byte aligned, as is each row
  int64_t out_row_stride = 0;  // elements
  const KvLayer* layer = nullptr;
  // RunDecode of one sequence, bf16 out: q, k and v are polled in these slots, not read in rope.qkv
  // then, and the row is published in them.
  TokenSlots token_slots;
  PollTag poll;
  // RunDecode: the launch before is this step's PlanDecode, so that this one may not begin before
  // that is complete.
  bool after_plan = false;
  // FP8 only: the stored value times the scale is the value. Device floats {k, v} if not null, else
  // these.
  const float* device_scales = nullptr;
  float k_scale = 1.0f;
  float v_scale = 1.0f;
};

// RoPE and KV append of a step's fused qkv rows.
struct RopeAppendCall {
  const void* qkv = nullptr;  // [rows, (heads + 2 kv_heads) * head_dim], kF32 or kBF16
  DType qkv_type = DType::kF32;
  int64_t qkv_row_stride = 0;    // elements
  void* q_out = nullptr;         // [rows, heads * head_dim], of the same type; may be qkv itself
  int64_t q_out_row_stride = 0;  // elements
  const float* cos_sin =
      nullptr;  // [positions, head_dim]: cosines of the head_dim / 2 angles, then their sines
  const float* q_norm = nullptr;  // [head_dim] or null
  const float* k_norm = nullptr;  // [head_dim] or null
  float norm_epsilon = 1e-6f;
  int32_t rows = 0;
  int32_t num_heads = 0;
  const int32_t* positions = nullptr;    // [rows]; negative: a padding row, left out
  const int32_t* kv_slots = nullptr;     // [rows]: block * block_tokens + slot
  PagedKvView kv;                        // kF32, kBF16 or kF8E4M3
  const float* device_scales = nullptr;  // as in AttentionCall
  float k_scale = 1.0f;
  float v_scale = 1.0f;
};

// Which of the kernels a step needs; the host knows, since it composed the step (or the graph
// bucket). kPrompts: of a mixed step the sequences that the decode kernel does not take.
enum class StepKind : uint8_t { kDecode, kPrefill, kMixed, kPrompts };

class Attention {
 public:
  virtual ~Attention() = default;

  // For the current device.
  static Result<std::unique_ptr<Attention>> Create(const AttentionConfig& config);

  // "decode mma.sync 16 rows x 32 keys, 12 stages of 16 KiB; prefill wgmma 128x128".
  virtual std::string Describe() const = 0;
  virtual size_t workspace_bytes() const = 0;
  virtual Status ZeroWorkspace(void* workspace, cudaStream_t stream) const = 0;

  // The layer's pool: `base` points to its first block and is 128-byte aligned; block ids are below
  // num_blocks.
  virtual Result<KvLayer> MakeLayer(void* base, int64_t num_blocks) const = 0;

  virtual Status PlanStep(const AttentionBatch& batch, StepKind kind, void* workspace,
                          cudaStream_t stream) const = 0;
  // After a PlanStep of the same batch and kind on the same stream.
  virtual Status Run(const AttentionBatch& batch, StepKind kind, const AttentionCall& call,
                     void* workspace, cudaStream_t stream) const = 0;

  // Finds out on the device which keys each of RunDecode's CTAs begins with. False: there is
  // nothing to find out (one sequence).
  virtual Result<bool> PlanDecode(const AttentionBatch& batch, const int32_t* positions,
                                  int32_t rows, void* workspace, cudaStream_t stream) const = 0;

  // RunDecode reads spans, tables, rope.positions, rope.kv_slots and the pool's older rows before
  // the kernels in front of it in the stream are done: no kernel of the same step may write them
  // (a copy before the step's first kernel may). It does not read call.q, rope.q_out, rope.kv and
  // rope's scales: q comes from rope.qkv, which it leaves as it is.

  // One launch for a step whose sequences have at most max_decode_tokens rows each, their last
  // positions: normalises and rotates q and k, appends k and v, attends. The first layer's
  // call.after_plan is what PlanDecode said; the grid depends on batch.num_sequences alone.
  // UNIMPLEMENTED: head_dim 256, rows that are not bf16, more rows than FusedTakes.
  virtual Status RunDecode(const AttentionBatch& batch, const RopeAppendCall& rope,
                           const AttentionCall& call, void* workspace,
                           cudaStream_t stream) const = 0;

  // A step of sequences as RunDecode takes them and of longer ones. RunMixed launches RunDecode's
  // kernel for the former, which reads call.q's rows (rope.qkv) before they are rotated, then the
  // rotation, the append and the prefill kernel for the latter. `spans`: batch.sequences on the
  // host. Errors as of RunDecode.
  virtual Result<bool> PlanMixed(const AttentionBatch& batch, const int32_t* positions,
                                 int32_t rows, void* workspace, cudaStream_t stream) const = 0;
  virtual Status RunMixed(const AttentionBatch& batch, std::span<const RowSpan> spans,
                          const RopeAppendCall& rope, const AttentionCall& call, void* workspace,
                          cudaStream_t stream) const = 0;
};

// ---- RoPE and KV append: one pass over the fused qkv rows ----

// INVALID_ARGUMENT for shapes without a kernel: head_dim 64, 128 or 256.
Status RopeAppend(const RopeAppendCall& call, cudaStream_t stream);

}  // namespace aisp::cuda
