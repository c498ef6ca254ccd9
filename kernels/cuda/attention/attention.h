// Attention on Hopper GPUs over the paged KV pool: decode, prefill, and RoPE with KV append.
//
// One Attention serves every layer of one shape {heads, head_dim, page size, formats, window,
// scale}. Once per step PlanStep() computes the work distribution on the device; then Run() is
// called per layer. Sequences with at most `max_decode_tokens` rows go to the decode kernel (split
// over the keys, bound by memory). The others go to the prefill kernel (bound by the tensor cores),
// in which one CTA processes a tile of query rows over all keys. In a step with few rows that
// leaves most CTAs idle, so with `split_tokens` the decode kernel handles the prompts too. Both
// kernels read all lengths and block tables from device memory, and their grids depend only on the
// device, so PlanStep and Run can be captured in a CUDA graph and replayed with other contents.
// Padding: sequences with num_rows == 0.
//
// A step in which every sequence has one row, or few (FusedTakes in table/instances.h), may instead
// be one launch per layer: PlanDecode() once, then RunDecode() rotates, appends and attends. With
// additional prompts: PlanMixed(), then RunMixed().
//
// Ownership: Attention owns no device memory. The caller lends `workspace_bytes()` of memory,
// zeroed once (ZeroWorkspace) before the first PlanStep, to one stream at a time. No call allocates
// or waits for the device. Determinism: the same step gives the same bits in every run. Other
// sequences in the step may split a context elsewhere and so round differently. Errors: Create
// refuses a shape without kernels (UNIMPLEMENTED or INVALID_ARGUMENT), there is no slow path; a
// failed launch is INTERNAL. Threads: Create from any; calls of one object from one thread at a
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
  int32_t max_sequences = 0;      // per step, padding included: at most 4096
  int32_t max_rows = 0;           // per step
  int32_t max_decode_tokens = 1;  // rows per sequence for the decode kernel: 0 (unused) to 16
  // > 0: limit of rows per sequence, at most 64; the decode kernel handles all sequences.
  int32_t split_tokens = 0;
  // RunDecode's CTAs per multiprocessor: 1 to 3; 0: chosen by the number of sequences. One leaves
  // room for the next kernel's CTA; three keep more memory loads in flight.
  int32_t decode_ctas = 0;
};

// Tensor maps of one layer's pool. A plain value, made once per layer or per call (under 1 us).
struct alignas(64) KvLayer {
  uint64_t loads[16] = {};  // the decode kernel's tensor map
  uint64_t tiles[16] = {};  // the prefill kernel's tensor map
  void* base = nullptr;
  int64_t num_blocks = 0;
};

// A step's metadata; all pointers are device memory, which the caller rewrites between steps.
struct AttentionBatch {
  const RowSpan* sequences = nullptr;
  const int32_t* block_tables = nullptr;  // concatenated, RowSpan::table_begin
  int32_t num_sequences = 0;              // padded to the bucket
  // RunDecode with few sequences: contexts are so long (64k keys in total, say) that bandwidth
  // matters more than latency. Only a hint; it fixes a captured grid.
  bool long_contexts = false;
};

struct AttentionCall {
  const void* q = nullptr;     // [rows, heads, head_dim]; 16-byte aligned, as is each row
  int64_t q_row_stride = 0;    // elements
  void* out = nullptr;         // [rows, heads, head_dim]; 16-byte aligned, as is each row
  int64_t out_row_stride = 0;  // elements
  const KvLayer* layer = nullptr;
  // RunDecode of one sequence, bf16 out: q, k and v are polled in these slots instead of being read
  // from rope.qkv, and the output row is published in them.
  TokenSlots token_slots;
  PollTag poll;
  // RunDecode: the previous launch is this step's PlanDecode, so this one must wait for it.
  bool after_plan = false;
  // FP8 only: value = stored value * scale. Device floats {k, v}; null: the values below.
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
      nullptr;  // [positions, head_dim]: cosines of head_dim / 2 angles, then their sines
  const float* q_norm = nullptr;  // [head_dim] or null
  const float* k_norm = nullptr;  // [head_dim] or null
  float norm_epsilon = 1e-6f;
  int32_t rows = 0;
  int32_t num_heads = 0;
  const int32_t* positions = nullptr;    // [rows]; negative: a padding row, skipped
  const int32_t* kv_slots = nullptr;     // [rows]: block * block_tokens + slot
  PagedKvView kv;                        // kF32, kBF16 or kF8E4M3
  const float* device_scales = nullptr;  // as in AttentionCall
  float k_scale = 1.0f;
  float v_scale = 1.0f;
};

// Which kernels a step needs; known on the host, which composed the step (or its graph bucket).
// kPrompts: only the sequences of a mixed step that the decode kernel does not handle.
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

  // The tensor maps of a layer's pool. `base` points to its first block and is 128-byte aligned;
  // block ids are below num_blocks.
  virtual Result<KvLayer> MakeLayer(void* base, int64_t num_blocks) const = 0;

  virtual Status PlanStep(const AttentionBatch& batch, StepKind kind, void* workspace,
                          cudaStream_t stream) const = 0;
  // Call after PlanStep with the same batch and kind, on the same stream.
  virtual Status Run(const AttentionBatch& batch, StepKind kind, const AttentionCall& call,
                     void* workspace, cudaStream_t stream) const = 0;

  // Computes on the device where each of RunDecode's CTAs starts. False: not needed (one sequence).
  virtual Result<bool> PlanDecode(const AttentionBatch& batch, const int32_t* positions,
                                  int32_t rows, void* workspace, cudaStream_t stream) const = 0;

  // RunDecode reads spans, tables, rope.positions, rope.kv_slots and old pool rows before the
  // preceding kernels of the stream are done: no kernel of the same step may write them (a copy
  // before the step's first kernel may). It reads q from rope.qkv, unchanged; call.q, rope.q_out
  // and rope.kv are unused.

  // One launch for a step whose sequences have at most max_decode_tokens rows, their last
  // positions: norms and rotates q and k, appends k and v, attends. First layer: call.after_plan =
  // PlanDecode's result. The grid depends on batch.num_sequences only. UNIMPLEMENTED: head_dim 256,
  // not bf16, too many rows.
  virtual Status RunDecode(const AttentionBatch& batch, const RopeAppendCall& rope,
                           const AttentionCall& call, void* workspace,
                           cudaStream_t stream) const = 0;

  // A step with sequences as for RunDecode and longer ones. RunMixed launches RunDecode's kernel
  // for the former, which reads unrotated rows of rope.qkv, then rotation, append and the prefill
  // kernel for the latter. `spans`: batch.sequences on the host. Errors as in RunDecode.
  virtual Result<bool> PlanMixed(const AttentionBatch& batch, const int32_t* positions,
                                 int32_t rows, void* workspace, cudaStream_t stream) const = 0;
  virtual Status RunMixed(const AttentionBatch& batch, std::span<const RowSpan> spans,
                          const RopeAppendCall& rope, const AttentionCall& call, void* workspace,
                          cudaStream_t stream) const = 0;
};

// ---- RoPE and KV append: one pass over the fused qkv rows ----

// INVALID_ARGUMENT for shapes without a kernel; head_dim may be 64, 128 or 256.
Status RopeAppend(const RopeAppendCall& call, cudaStream_t stream);

}  // namespace aisp::cuda
