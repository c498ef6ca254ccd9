// What the host class and the two attention kernels agree on.
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
  int32_t decode_least = 1;   // rows of a sequence that the decode kernel takes: from,
  int32_t decode_tokens = 0;  // to
  int32_t block_tokens = 0;
  int32_t box_tokens = 16;  // of the prefill kernel's tensor map
  int32_t row_groups = 1;   // decode
  bool q_is_f32 = false;
  bool out_is_f32 = false;
};

struct DecodeTuning {
  int32_t row_tiles = 1;   // 16-row tiles of a warp
  int32_t row_groups = 1;  // warps that share a key tile, each with rows of its own
  int32_t splits = 1;      // of the keys, among the warps
  int32_t max_stretches() const { return row_tiles == 1 ? 3 : 2; }
  int32_t max_ranges(int32_t ctas) const { return ctas * ((1 << max_stretches()) - 1); }
  int32_t stages = 0;
  int32_t shared_bytes = 0;
  int32_t chunk_rows() const { return 16 * row_tiles * row_groups; }
};

// Of rows = the most rows of a sequence * group; stages == 0: no kernel for this head_dim.
DecodeTuning TuneDecode(int32_t head_dim, bool fp8, int32_t rows, int32_t shared_limit);
int64_t DecodePartialBytes(int32_t head_dim, const DecodeTuning& tuning, int32_t ranges);
// Raises the kernel's shared memory limit; once per device.
cudaError_t PrepareDecode(int32_t head_dim, bool fp8, const DecodeTuning& tuning);
cudaError_t LaunchDecode(int32_t head_dim, bool fp8, const DecodeTuning& tuning, int32_t ctas,
                         int32_t num_sequences, const CUtensorMap& map, const KernelArgs& args,
                         cudaStream_t stream);

// shared bytes; 0: no kernel.
int32_t PrefillSharedBytes(int32_t head_dim, bool fp8);
cudaError_t PreparePrefill(int32_t head_dim, bool fp8);
// CTAs that have query tiles side by side and share the keys they load: 2, if `ctas` run at once in
// pairs, or 1. After PreparePrefill.
int32_t PrefillCluster(int32_t head_dim, bool fp8, int32_t group, int32_t ctas);
cudaError_t LaunchPrefill(int32_t head_dim, bool fp8, int32_t ctas, int32_t cluster,
                          const CUtensorMap& map, const KernelArgs& args, cudaStream_t stream);

}  // namespace aisp::cuda
