#include "bench/cuda/layer_attention.h"

#include <cmath>
#include <vector>

#include "bench/cuda/bench_support.h"
#include "kernels/cuda/linear/quantize.h"

namespace aisp::cuda {
namespace {

constexpr int32_t kDim = 128;
constexpr int32_t kBlockTokens = 64;

template <typename T>
T* Upload(const std::vector<T>& from) {
  T* const to = Allocate<T>(from.size());
  Require(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
  return to;
}

}  // namespace

LayerAttention::LayerAttention(int32_t heads, int32_t kv_heads, int32_t context, int32_t rows,
                               bool verify, int layers, cudaStream_t stream)
    : rows_(rows), sequences_(verify ? 1 : rows) {
  config_.num_heads = heads;
  config_.num_kv_heads = kv_heads;
  config_.head_dim = kDim;
  config_.block_tokens = kBlockTokens;
  config_.scale = 1.0f / std::sqrt(static_cast<float>(kDim));
  config_.max_sequences = sequences_;
  config_.max_rows = rows;
  config_.max_decode_tokens = rows / sequences_;
  attention_ = Require(Attention::Create(config_));
  const int32_t blocks_each = (context + kBlockTokens - 1) / kBlockTokens;
  blocks_ = int64_t{sequences_} * blocks_each;
  const int32_t rows_each = rows / sequences_;
  std::vector<RowSpan> spans;
  std::vector<int32_t> tables, positions, slots;
  for (int32_t s = 0; s < sequences_; ++s) {
    spans.push_back({s * rows_each, rows_each, context, s * blocks_each});
    const size_t table = tables.size();
    for (int32_t b = 0; b < blocks_each; ++b) tables.push_back(b * sequences_ + s);
    for (int32_t at = context - rows_each; at < context; ++at) {
      positions.push_back(at);
      slots.push_back(tables[table + static_cast<size_t>(at / kBlockTokens)] * kBlockTokens +
                      at % kBlockTokens);
    }
  }
  spans_ = Upload(spans);
  tables_ = Upload(tables);
  positions_ = Upload(positions);
  slots_ = Upload(slots);
  cos_sin_ = Upload(std::vector<float>(static_cast<size_t>(context) * kDim, 0.7f));
  const int64_t elements = blocks_ * kBlockTokens * kv_heads * kDim * 2;
  layer_bytes_ = static_cast<size_t>(elements) * 2;
  pool_ = Allocate<char>(layer_bytes_ * static_cast<size_t>(layers));
  Require(FillNormalBf16(pool_, elements * layers, 1.0f, 5, stream));
  workspace_ = Allocate<char>(attention_->workspace_bytes());
  Require(attention_->ZeroWorkspace(workspace_, stream));
  Require(cudaStreamSynchronize(stream), "keys and values");
}

void LayerAttention::Run(int layer, void* qkv, void* out, const TokenSlots& slots,
                         cudaStream_t stream) const {
  RopeAppendCall rope;
  rope.qkv = qkv;
  rope.qkv_type = DType::kBF16;
  rope.qkv_row_stride = (config_.num_heads + 2 * config_.num_kv_heads) * kDim;
  rope.cos_sin = cos_sin_;
  rope.rows = rows_;
  rope.num_heads = config_.num_heads;
  rope.positions = positions_;
  rope.kv_slots = slots_;
  AttentionCall call;
  call.out = out;
  call.out_row_stride = config_.num_heads * kDim;
  const KvLayer kv =
      Require(attention_->MakeLayer(pool_ + layer_bytes_ * static_cast<size_t>(layer), blocks_));
  call.layer = &kv;
  call.token_slots = slots;
  if (layer == 0) {
    call.after_plan = Require(attention_->PlanDecode({spans_, tables_, sequences_}, positions_,
                                                     rows_, workspace_, stream));
  }
  Require(attention_->RunDecode({spans_, tables_, sequences_}, rope, call, workspace_, stream));
}

}  // namespace aisp::cuda
