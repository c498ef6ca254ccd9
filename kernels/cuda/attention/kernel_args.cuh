// Shared by the host class and the two attention kernels.
#pragma once

#include <cuda.h>

#include "kernels/cuda/attention/plan.cuh"

namespace aisp::cuda {

struct KernelArgs {
  const PlanHeader* plan = nullptr;
  const int2* prefill_items = nullptr;
  int32_t* next_range = nullptr;  // PlanHeader::decode_next
  float4* partials = nullptr;     // decode: two results per range and row group
  const RowSpan* sequences = nullptr;
  const int32_t* block_tables = nullptr;
  const void* q = nullptr;
  void* out = nullptr;
  int64_t q_row_stride = 0;
  int64_t out_row_stride = 0;
  const void* pool = nullptr;
  const float* device_scales = nullptr;
  float k_scale = 1.0f;
  float v_scale = 1.0f;
  float scale_log2 = 1.0f;  // score scale times log2(e)
  int32_t num_kv_heads = 0;
  int32_t group = 0;
  int32_t window = 0;
  int32_t decode_least = 1;   // rows per sequence that the decode kernel handles: minimum,
  int32_t decode_tokens = 0;  // maximum
  int32_t block_tokens = 0;
  int32_t box_tokens = 16;  // of the prefill kernel's tensor map
  int32_t row_groups = 1;   // decode
  bool q_is_f32 = false;
  bool out_is_f32 = false;
};

struct DecodeTuning {
  int32_t row_tiles = 1;   // 16-row tiles per warp
  int32_t row_groups = 1;  // warps that share a key tile, each with its own rows
  int32_t splits = 1;      // number of warps over which keys are split
  int32_t max_stretches() const { return row_tiles == 1 ? 3 : 2; }
  int32_t max_ranges(int32_t ctas) const { return ctas * ((1 << max_stretches()) - 1); }
  int32_t stages = 0;
  int32_t shared_bytes = 0;
  int32_t chunk_rows() const { return 16 * row_tiles * row_groups; }
};

// rows = maximum rows per sequence * group; stages == 0: no kernel for this head_dim.
DecodeTuning TuneDecode(int32_t head_dim, bool fp8, int32_t rows, int32_t shared_limit);
int64_t DecodePartialBytes(int32_t head_dim, const DecodeTuning& tuning, int32_t ranges);
// Raises the kernel's shared memory limit; once per device.
cudaError_t PrepareDecode(int32_t head_dim, bool fp8, const DecodeTuning& tuning);
cudaError_t LaunchDecode(int32_t head_dim, bool fp8, const DecodeTuning& tuning, int32_t ctas,
                         int32_t num_sequences, const CUtensorMap& map, const KernelArgs& args,
                         cudaStream_t stream);

// In bytes; 0: no kernel.
int32_t PrefillSharedBytes(int32_t head_dim, bool fp8);
cudaError_t PreparePrefill(int32_t head_dim, bool fp8);
// CTAs with adjacent query tiles that share loaded keys: 2 if `ctas` can run at once in pairs, else
// 1. Call after PreparePrefill.
int32_t PrefillCluster(int32_t head_dim, bool fp8, int32_t group, int32_t ctas);
cudaError_t LaunchPrefill(int32_t head_dim, bool fp8, int32_t ctas, int32_t cluster,
                          const CUtensorMap& map, const KernelArgs& args, cudaStream_t stream);

}  // namespace aisp::cuda
