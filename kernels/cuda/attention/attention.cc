#include "kernels/cuda/attention/attention.h"

#include <cuda.h>

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "kernels/cuda/attention/fused.cuh"
#include "kernels/cuda/attention/kernel_args.cuh"
#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/table/instances.h"

namespace aisp::cuda {
namespace {

constexpr int32_t kMaxSequences = 4096;
constexpr int32_t kMaxGroup = 16;
constexpr int32_t kMaxDecodeTokens = 16;
constexpr int32_t kMaxSplitTokens = 64;
constexpr int32_t kSplitItemRows = 64;
constexpr int64_t kAlignment = 256;
constexpr float kLog2E = 1.44269504088896340736f;

int64_t Align(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

using EncodeFunction = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                    const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                    const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                    CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// Through the runtime, so that programs need not link the driver.
Result<EncodeFunction> FindEncode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  AISP_RETURN_IF_ERROR(Check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                              12000, cudaEnableDefault, &found),
                             "look up cuTensorMapEncodeTiled"));
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    return FailedPrecondition(
        "the CUDA driver has no cuTensorMapEncodeTiled: it must be of CUDA 12.0 or newer");
  }
  return reinterpret_cast<EncodeFunction>(function);
}

Status CheckShape(const AttentionConfig& c) {
  if (c.head_dim != 64 && c.head_dim != 128 && c.head_dim != 256) {
    return Unimplemented("CUDA attention has kernels for head_dim 64, 128 and 256; the model has " +
                         std::to_string(c.head_dim));
  }
  if (c.num_kv_heads <= 0 || c.num_heads <= 0 || c.num_heads % c.num_kv_heads != 0) {
    return InvalidArgument("CUDA attention needs heads (" + std::to_string(c.num_heads) +
                           ") to be a multiple of KV heads (" + std::to_string(c.num_kv_heads) +
                           ")");
  }
  if (c.num_heads / c.num_kv_heads > kMaxGroup) {
    return Unimplemented("CUDA attention serves up to " + std::to_string(kMaxGroup) +
                         " query heads per KV head; the model has " +
                         std::to_string(c.num_heads / c.num_kv_heads));
  }
  if (c.block_tokens < 16 || c.block_tokens > 128 || c.block_tokens % 16 != 0) {
    return InvalidArgument(
        "CUDA attention needs a block size that is a multiple of 16 from 16 to 128, not " +
        std::to_string(c.block_tokens));
  }
  if (c.kv != DType::kBF16 && c.kv != DType::kF8E4M3) {
    return Unimplemented("CUDA attention reads KV pools of bf16 or fp8_e4m3, not " +
                         std::string(DTypeName(c.kv)));
  }
  for (DType t : {c.q, c.out}) {
    if (t != DType::kBF16 && t != DType::kF32) {
      return Unimplemented("CUDA attention takes and gives rows of bf16 or f32, not " +
                           std::string(DTypeName(t)));
    }
  }
  if (c.window < 0)
    return InvalidArgument("a sliding window below zero: " + std::to_string(c.window));
  if (c.max_sequences < 1 || c.max_sequences > kMaxSequences) {
    return InvalidArgument("CUDA attention takes 1 to " + std::to_string(kMaxSequences) +
                           " sequences a step, not " + std::to_string(c.max_sequences));
  }
  if (c.max_rows < 1) return InvalidArgument("CUDA attention needs max_rows > 0");
  if (c.max_decode_tokens < 0 || c.max_decode_tokens > kMaxDecodeTokens) {
    return InvalidArgument("the decode kernel takes 0 to 16 rows per sequence, not " +
                           std::to_string(c.max_decode_tokens));
  }
  if (c.split_tokens < 0 || c.split_tokens > kMaxSplitTokens) {
    return InvalidArgument("prompts whose keys are split have 0 to " +
                           std::to_string(kMaxSplitTokens) + " rows each, not " +
                           std::to_string(c.split_tokens));
  }
  if (c.decode_ctas < 0 || c.decode_ctas > kMaxFusedCtasPerProcessor) {
    return InvalidArgument("RunDecode runs with 1 to " + std::to_string(kMaxFusedCtasPerProcessor) +
                           " CTAs on a multiprocessor, or 0 for its own choice, not " +
                           std::to_string(c.decode_ctas));
  }
  return {};
}

class HopperAttention final : public Attention {
 public:
  Status Init(const AttentionConfig& config) {
    config_ = config;
    AISP_RETURN_IF_ERROR(CheckShape(config));
    AISP_ASSIGN_OR_RETURN(encode_, FindEncode());
    int device = 0;
    int shared_limit = 0;
    AISP_RETURN_IF_ERROR(Check(cudaGetDevice(&device), "get the current device"));
    AISP_RETURN_IF_ERROR(
        Check(cudaDeviceGetAttribute(&ctas_, cudaDevAttrMultiProcessorCount, device),
              "count multiprocessors"));
    AISP_RETURN_IF_ERROR(Check(
        cudaDeviceGetAttribute(&shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "query shared memory"));
    ctas_ = std::min(ctas_, kMaxCtas);
    group_ = config.num_heads / config.num_kv_heads;
    // Rows of prompts per item: more rows mean fewer items, each split into more parts to be added.
    const int32_t item_rows = std::max(std::max(1, config.max_decode_tokens) * group_,
                                       std::min(config.split_tokens * group_, kSplitItemRows));
    decode_ = TuneDecode(config.head_dim, fp8(), item_rows, shared_limit);
    prefill_shared_ = PrefillSharedBytes(config.head_dim, fp8());
    if (decode_.stages < 2 || prefill_shared_ > shared_limit) {
      return Unimplemented("CUDA attention of head_dim " + std::to_string(config.head_dim) +
                           " needs more shared memory than this GPU has");
    }
    AISP_RETURN_IF_ERROR(
        Check(PrepareDecode(config.head_dim, fp8(), decode_), "prepare the decode kernel"));
    if (prefill_shared_ > 0) {
      AISP_RETURN_IF_ERROR(
          Check(PreparePrefill(config.head_dim, fp8()), "prepare the prefill kernel"));
      prefill_cluster_ = PrefillCluster(config.head_dim, fp8(), group_, ctas_);
    }
    const bool several = config.max_decode_tokens > 1;
    item_tokens_ = several ? FusedItemTokens(group_) : 1;
    fused_ = config.q == DType::kBF16 && HasFused(fused_shape()) &&
             FusedTakes(group_, std::max(1, config.max_decode_tokens));
    if (fused_) {
      AISP_RETURN_IF_ERROR(
          Check(PrepareFused(fused_shape()), "prepare decode attention in one launch"));
    }
    box_tokens_ = std::min(config.block_tokens & -config.block_tokens,
                           (config.head_dim == 256 ? 64 : 128) / prefill_cluster_);
    LayOut();
    return {};
  }

  std::string Describe() const override {
    std::string text = "decode mma.sync " + std::string(fp8() ? "f16 on fp8" : "bf16") + " " +
                       std::to_string(16 * decode_.row_tiles) + "x" +
                       std::to_string(decode_.row_groups) + " rows x " + std::to_string(kTileKeys) +
                       " keys, " + std::to_string(decode_.stages) + " stages, " +
                       std::to_string(ctas_) + " CTAs";
    if (prefill_shared_ > 0) {
      text += "; prefill wgmma bf16 " + std::to_string(kPrefillRows) + "x" +
              std::to_string(kPrefillKeys) + (prefill_cluster_ == 2 ? " in pairs" : "");
    }
    return text;
  }
  size_t workspace_bytes() const override { return static_cast<size_t>(workspace_bytes_); }

  Status ZeroWorkspace(void* workspace, cudaStream_t stream) const override {
    auto* bytes = static_cast<uint8_t*>(workspace);
    AISP_RETURN_IF_ERROR(
        Check(cudaMemsetAsync(bytes, 0, static_cast<size_t>(fused_partials_at_), stream),
              "zero the workspace"));
    return Check(
        cudaMemsetAsync(bytes + fused_partials_at_, kEmptyPartByte,
                        static_cast<size_t>(workspace_bytes_ - fused_partials_at_), stream),
        "empty the workspace's places for parts");
  }

  Result<KvLayer> MakeLayer(void* base, int64_t num_blocks) const override {
    const int64_t parts = num_blocks * config_.num_kv_heads * 2;
    if (reinterpret_cast<uintptr_t>(base) % 128 != 0 || num_blocks < 1 || parts > INT32_MAX) {
      return InvalidArgument(
          "a layer's pool must be 128-byte aligned and have 1 to 2^30 / kv heads blocks, not " +
          std::to_string(num_blocks));
    }
    KvLayer layer;
    layer.base = base;
    layer.num_blocks = num_blocks;
    AISP_RETURN_IF_ERROR(Encode(base, parts, /*box_halves=*/true, layer.loads));
    AISP_RETURN_IF_ERROR(Encode(base, parts, /*box_halves=*/false, layer.tiles));
    return layer;
  }

  Status PlanStep(const AttentionBatch& batch, StepKind kind, void* workspace,
                  cudaStream_t stream) const override {
    AISP_CHECK(batch.num_sequences <= config_.max_sequences);
    PlanShape shape;
    shape.num_kv_heads = config_.num_kv_heads;
    shape.group = group_;
    shape.window = config_.window;
    shape.prefill_cluster = prefill_cluster_;
    const DecodeRows rows = RowsOfDecode(kind);
    shape.decode_least = rows.least;
    shape.decode_tokens = rows.most;
    shape.prefill_beyond = kind == StepKind::kPrefill ? 0 : config_.max_decode_tokens;
    shape.chunk_rows = decode_.chunk_rows();
    shape.min_tiles = decode_.splits;
    shape.ctas = ctas_;
    shape.max_stretches = decode_.max_stretches();
    auto* bytes = static_cast<uint8_t*>(workspace);
    return Check(LaunchPlan(shape, batch.sequences, batch.num_sequences, Decodes(kind),
                            Prefills(kind), reinterpret_cast<PlanHeader*>(bytes),
                            reinterpret_cast<int2*>(bytes + items_at_), stream),
                 "plan attention");
  }

  Status Run(const AttentionBatch& batch, StepKind kind, const AttentionCall& call, void* workspace,
             cudaStream_t stream) const override {
    const KernelArgs args = MakeArgs(batch, kind, call, workspace);
    CUtensorMap map;
    if (Decodes(kind)) {
      std::memcpy(&map, call.layer->loads, sizeof(map));
      AISP_RETURN_IF_ERROR(Check(LaunchDecode(config_.head_dim, fp8(), decode_, ctas_,
                                              batch.num_sequences, map, args, stream),
                                 "launch decode attention"));
    }
    if (Prefills(kind)) {
      AISP_CHECK(prefill_shared_ > 0);
      std::memcpy(&map, call.layer->tiles, sizeof(map));
      AISP_RETURN_IF_ERROR(
          Check(LaunchPrefill(config_.head_dim, fp8(), ctas_, prefill_cluster_, map, args, stream),
                "launch prefill attention"));
    }
    return {};
  }

  Result<bool> PlanDecode(const AttentionBatch& batch, const int32_t* positions, int32_t rows,
                          void* workspace, cudaStream_t stream) const override {
    if (!fused_ || batch.num_sequences == 0) return false;
    AISP_CHECK(batch.num_sequences <= config_.max_sequences);
    const FusedArgs args = PlaceArgs(batch, positions, rows, workspace);
    const int32_t ctas = FusedCtas(batch);
    if (IsOneSequence(args, ctas)) return false;
    AISP_RETURN_IF_ERROR(Check(LaunchFusedPlan(fused_shape(), ctas, args, stream),
                               "plan decode attention in one launch"));
    return true;
  }

  Status RunDecode(const AttentionBatch& batch, const RopeAppendCall& rope,
                   const AttentionCall& call, void* workspace, cudaStream_t stream) const override {
    if (!fused_ || rope.qkv_type != DType::kBF16) {
      return Unimplemented(
          "decode attention in one launch takes bf16 rows of head_dim 64 or 128, and of a "
          "sequence as many as two items have room for");
    }
    AISP_CHECK(batch.num_sequences <= config_.max_sequences);
    if (batch.num_sequences == 0) return {};
    FusedArgs args = PlaceArgs(batch, rope.positions, rope.rows, workspace);
    args.kv_slots = rope.kv_slots;
    args.qkv = rope.qkv;
    args.cos_sin = rope.cos_sin;
    args.q_norm = rope.q_norm;
    args.k_norm = rope.k_norm;
    args.out = call.out;
    AISP_CHECK(call.token_slots.sets == nullptr ||
               (batch.num_sequences == 1 && config_.out == DType::kBF16));
    args.token_slots = call.token_slots;
    args.pool = static_cast<uint8_t*>(call.layer->base);
    args.partials = reinterpret_cast<float*>(static_cast<uint8_t*>(workspace) + fused_partials_at_);
    args.device_scales = call.device_scales;
    args.qkv_row_stride = rope.qkv_row_stride;
    args.out_row_stride = call.out_row_stride;
    args.num_heads = config_.num_heads;
    args.norm_epsilon = rope.norm_epsilon;
    args.scale_log2 = config_.scale * kLog2E;
    args.k_scale = call.k_scale;
    args.v_scale = call.v_scale;
    args.out_is_f32 = config_.out == DType::kF32;
    args.poll = call.poll;
    return Check(LaunchFused(fused_shape(), FusedCtas(batch), !call.after_plan, args, stream),
                 "launch decode attention in one launch");
  }

  Result<bool> PlanMixed(const AttentionBatch& batch, const int32_t* positions, int32_t rows,
                         void* workspace, cudaStream_t stream) const override {
    AISP_RETURN_IF_ERROR(PlanStep(batch, StepKind::kPrompts, workspace, stream));
    return PlanDecode(batch, positions, rows, workspace, stream);
  }

  Status RunMixed(const AttentionBatch& batch, std::span<const RowSpan> spans,
                  const RopeAppendCall& rope, const AttentionCall& call, void* workspace,
                  cudaStream_t stream) const override {
    AISP_RETURN_IF_ERROR(RunDecode(batch, rope, call, workspace, stream));
    const int32_t most = std::max(1, config_.max_decode_tokens);
    for (size_t i = 0; i < spans.size();) {
      if (spans[i].num_rows <= most) {
        ++i;
        continue;
      }
      // Consecutive prompts share one launch.
      const int32_t first = spans[i].row_begin;
      int32_t end = first;
      for (; i < spans.size() && spans[i].num_rows > most && spans[i].row_begin == end; ++i)
        end += spans[i].num_rows;
      AISP_RETURN_IF_ERROR(RopeAppend(RowsOf(rope, first, end - first), stream));
    }
    return Run(batch, StepKind::kPrompts, call, workspace, stream);
  }

 private:
  struct DecodeRows {
    int32_t least = 1, most = 0;
  };
  // The rows per sequence that the decode kernel handles.
  DecodeRows RowsOfDecode(StepKind kind) const {
    const int32_t decodes = config_.max_decode_tokens, split = config_.split_tokens;
    switch (kind) {
      case StepKind::kDecode:
        return {1, decodes};
      case StepKind::kPrefill:
        return {1, split};
      case StepKind::kMixed:
        return {1, std::max(decodes, split)};
      case StepKind::kPrompts:
        return {decodes + 1, split};
    }
    return {};
  }
  bool Decodes(StepKind kind) const {
    const DecodeRows rows = RowsOfDecode(kind);
    return rows.most >= rows.least;
  }
  bool Prefills(StepKind kind) const {
    return kind != StepKind::kDecode && config_.split_tokens == 0;
  }

  // The same call for some of its rows.
  static RopeAppendCall RowsOf(RopeAppendCall call, int32_t first, int32_t rows) {
    const auto bytes = static_cast<int64_t>(DTypeBytes(call.qkv_type));
    call.qkv = static_cast<const uint8_t*>(call.qkv) + first * call.qkv_row_stride * bytes;
    call.q_out = static_cast<uint8_t*>(call.q_out) + first * call.q_out_row_stride * bytes;
    call.positions += first;
    call.kv_slots += first;
    call.rows = rows;
    return call;
  }

  // Sets where the keys of a step's sequences are.
  FusedArgs PlaceArgs(const AttentionBatch& batch, const int32_t* positions, int32_t rows,
                      void* workspace) const {
    FusedArgs args;
    args.sequences = batch.sequences;
    args.block_tables = batch.block_tables;
    args.positions = positions;
    args.plan = static_cast<uint8_t*>(workspace) + fused_plan_at_;
    args.num_sequences = batch.num_sequences;
    args.rows = rows;
    args.num_kv_heads = config_.num_kv_heads;
    args.group = group_;
    args.item_tokens = item_tokens_;
    args.item_rows = fused_shape().item_rows;
    args.most_rows = std::max(1, config_.max_decode_tokens);
    args.block_tokens = config_.block_tokens;
    args.runs_inverse = RunsInverse(static_cast<uint32_t>(config_.block_tokens / 16));
    args.window = config_.window;
    return args;
  }

  // With few sequences latency dominates: room for the next kernel matters more than loads in
  // flight.
  int32_t FusedCtas(const AttentionBatch& batch) const {
    const bool quick = batch.num_sequences <= 8 && !batch.long_contexts;
    const int32_t wanted = config_.decode_ctas > 0 ? config_.decode_ctas : quick ? 1 : 3;
    return ctas_ * std::min(wanted, FusedCtasPerProcessor(fused_shape().item_rows));
  }

  FusedShape fused_shape() const {
    return {config_.head_dim, fp8(), group_ * item_tokens_, item_tokens_ > 1};
  }
  bool fp8() const { return config_.kv == DType::kF8E4M3; }

  void LayOut() {
    int64_t at = Align(sizeof(PlanHeader));
    items_at_ = at;
    const int64_t items = config_.max_rows / (kPrefillRows / group_) + config_.max_sequences;
    at += Align(items * static_cast<int64_t>(sizeof(int2)));
    partials_at_ = at;
    at += Align(DecodePartialBytes(config_.head_dim, decode_, decode_.max_ranges(ctas_)));
    fused_partials_at_ = at;
    const int32_t item_rows = fused_shape().item_rows;
    const int32_t fused_ctas = ctas_ * FusedCtasPerProcessor(item_rows);
    if (fused_) at += Align(FusedPartialBytes(config_.head_dim, item_rows, fused_ctas));
    fused_plan_at_ = at;
    if (fused_) at += Align(FusedPlanBytes(fused_ctas));
    workspace_bytes_ = at;
  }

  // The pool as [part = (block, head, K|V)][half of a row][slot][128 bytes]. Boxes are 16 slots of
  // a {K, V} pair for the decode kernel, or box_tokens_ slots of one half of one part for the
  // prefill kernel.
  Status Encode(void* base, int64_t parts, bool box_halves, uint64_t (&to)[16]) const {
    const int64_t element = static_cast<int64_t>(DTypeBytes(config_.kv));
    const int64_t row_bytes = config_.head_dim * element;
    const int64_t inner_bytes = std::min<int64_t>(row_bytes, 128);
    const auto halves = static_cast<cuuint32_t>(row_bytes / inner_bytes);
    const auto inner = static_cast<cuuint32_t>(inner_bytes / element);
    const cuuint64_t sizes[4] = {inner, static_cast<cuuint64_t>(config_.block_tokens), halves,
                                 static_cast<cuuint64_t>(parts)};
    const cuuint64_t strides[3] = {static_cast<cuuint64_t>(row_bytes),
                                   static_cast<cuuint64_t>(inner_bytes),
                                   static_cast<cuuint64_t>(row_bytes * config_.block_tokens)};
    const cuuint32_t box[4] = {inner, box_halves ? 16U : static_cast<cuuint32_t>(box_tokens_),
                               box_halves ? halves : 1, box_halves ? 2U : 1U};
    const cuuint32_t steps[4] = {1, 1, 1, 1};
    CUtensorMap map;
    const CUresult result =
        encode_(&map, fp8() ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4,
                base, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                inner_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
      return Internal("the driver refused a tensor map of the KV pool: CUresult " +
                      std::to_string(static_cast<int>(result)));
    }
    static_assert(sizeof(map) == sizeof(to));
    std::memcpy(to, &map, sizeof(map));
    return {};
  }

  KernelArgs MakeArgs(const AttentionBatch& batch, StepKind kind, const AttentionCall& call,
                      void* workspace) const {
    auto* bytes = static_cast<uint8_t*>(workspace);
    auto* header = reinterpret_cast<PlanHeader*>(bytes);
    KernelArgs args;
    args.plan = header;
    args.prefill_items = reinterpret_cast<const int2*>(bytes + items_at_);
    args.next_range = &header->decode_next;
    args.partials = reinterpret_cast<float4*>(bytes + partials_at_);
    args.sequences = batch.sequences;
    args.block_tables = batch.block_tables;
    args.q = call.q;
    args.out = call.out;
    args.q_row_stride = call.q_row_stride;
    args.out_row_stride = call.out_row_stride;
    args.pool = call.layer->base;
    args.device_scales = call.device_scales;
    args.k_scale = call.k_scale;
    args.v_scale = call.v_scale;
    args.scale_log2 = config_.scale * kLog2E;
    args.num_kv_heads = config_.num_kv_heads;
    args.group = group_;
    args.window = config_.window;
    const DecodeRows rows = RowsOfDecode(kind);
    args.decode_least = rows.least;
    args.decode_tokens = rows.most;
    args.block_tokens = config_.block_tokens;
    args.box_tokens = box_tokens_;
    args.row_groups = decode_.row_groups;
    args.q_is_f32 = config_.q == DType::kF32;
    args.out_is_f32 = config_.out == DType::kF32;
    return args;
  }

  AttentionConfig config_;
  EncodeFunction encode_ = nullptr;
  int32_t ctas_ = 0;
  int32_t group_ = 0;
  int32_t item_tokens_ = 1;
  int32_t box_tokens_ = 16;
  DecodeTuning decode_;
  int32_t prefill_shared_ = 0;
  int32_t prefill_cluster_ = 1;  // CTAs that share keys
  int64_t items_at_ = 0;
  int64_t partials_at_ = 0;
  bool fused_ = false;  // there is a kernel for RunDecode
  int64_t fused_partials_at_ = 0;
  int64_t fused_plan_at_ = 0;
  int64_t workspace_bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<Attention>> Attention::Create(const AttentionConfig& config) {
  auto attention = std::make_unique<HopperAttention>();
  AISP_RETURN_IF_ERROR(attention->Init(config));
  return attention;
}

}  // namespace aisp::cuda
