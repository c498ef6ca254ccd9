#include <algorithm>

#include "common/check.h"
#include "kernels/cpu/cpu_ops_impl.h"
#include "kernels/device/fp8.h"

namespace aisp {
namespace {

// Rows times heads that share a tile of keys in the cache; affects only speed.
constexpr int32_t kRowHeads = 64;

}  // namespace

void CpuOps::PlanAttention(const AttentionParams& p) {
  const int32_t group = p.num_heads / p.kv.num_kv_heads;
  const int32_t rows_at_once = std::max(1, kRowHeads / group);
  tasks_.clear();
  for (size_t s = 0; s < p.batch.host_sequences.size(); ++s) {
    const int32_t rows = p.batch.host_sequences[s].num_rows;
    for (int32_t head = 0; head < p.kv.num_kv_heads; ++head) {
      // The last rows see the most keys, so they start first.
      for (int32_t end = rows; end > 0; end -= rows_at_once) {
        const int32_t begin = std::max(0, end - rows_at_once);
        tasks_.push_back({static_cast<int32_t>(s), head, begin, end - begin});
      }
    }
  }
  const size_t floats =
      AttendScratchFloats(std::max(kRowHeads, group), p.kv.head_dim, p.v_head_dim);
  for (std::vector<float>& scratch : attend_scratch_) {
    if (scratch.size() < floats) scratch.resize(floats);
  }
}

Status CpuOps::PagedAttention(const AttentionParams& p, Stream&) {
  AISP_CHECK(p.num_heads % p.kv.num_kv_heads == 0 && p.kv.block_tokens % kAttentionTile == 0);
  AISP_CHECK(p.q_head_dim % 16 == 0 && p.v_head_dim % 16 == 0);
  AISP_CHECK(p.q_head_dim <= p.kv.head_dim && p.v_head_dim <= p.kv.head_dim);
  PlanAttention(p);
  const int32_t group = p.num_heads / p.kv.num_kv_heads;
  pool_.For(static_cast<int64_t>(tasks_.size()), [&](int64_t index, int worker) {
    const AttentionTask& t = tasks_[static_cast<size_t>(index)];
    const RowSpan& s = p.batch.host_sequences[static_cast<size_t>(t.sequence)];
    const int64_t row = s.row_begin + t.row;
    AttendTask task;
    task.q = p.q.as<float>() + row * p.q.strides[0] +
             static_cast<int64_t>(t.kv_head) * group * p.q_head_dim;
    task.q_row_stride = p.q.strides[0];
    task.q_head_stride = p.q_head_dim;
    task.rows = t.rows;
    task.group = group;
    task.q_dim = p.q_head_dim;
    task.v_dim = p.v_head_dim;
    task.first_position = s.context_len - s.num_rows + t.row;
    task.window = p.window;
    task.scale = p.scale;
    task.keys = static_cast<const std::byte*>(p.kv.layer) +
                static_cast<size_t>(t.kv_head) * p.kv.head_bytes();
    task.block_bytes = p.kv.block_bytes();
    task.value_offset = p.kv.part_bytes();
    task.slot_dim = p.kv.head_dim;
    task.kv_bf16 = p.kv.dtype == DType::kBF16;
    if (p.kv.dtype == DType::kF8E4M3) task.fp8_values = kFp8Values.data();
    task.block_tokens = p.kv.block_tokens;
    task.table = p.batch.block_tables + s.table_begin;
    task.out_bf16 = p.out.dtype == DType::kBF16;
    task.out_row_stride = p.out.strides[0];
    task.out_head_stride = p.v_head_dim;
    const int64_t out =
        row * p.out.strides[0] + static_cast<int64_t>(t.kv_head) * group * p.v_head_dim;
    task.out =
        static_cast<std::byte*>(p.out.data) + static_cast<size_t>(out) * DTypeBytes(p.out.dtype);
    task.scratch = attend_scratch_[static_cast<size_t>(worker)].data();
    kernels_.attend(task);
  });
  return {};
}

}  // namespace aisp
