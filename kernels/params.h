// The arguments of a step's operations: weights, the rows of a step, and a parameter struct per
// operation. Plain data, except packed weights, which a backend makes. kernels/ops.h describes the
// operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/device/dtype.h"
#include "kernels/device/tensor_view.h"

namespace aisp {

struct AdaptedLinear;  // kernels/adapters.h

// ---- weights ----

enum class Epilogue : uint8_t {
  kStore,       // y = x W^T + b
  kAccumulate,  // y += x W^T + b, y is f32
  // Parts {gate, up}: y = silu(x gate^T) * (x up^T), half as wide. Only where Ops::Fuses allows.
  kGatedSilu,
};

// Format of a weight in device memory.
enum class WeightFormat : uint8_t {
  kCompute,   // in its compute dtype
  kFp8,       // e4m3 with an f32 scale per output row
  kFp8Block,  // e4m3 with an f32 scale per block of 128 x 128
  kNvfp4,     // e2m1, an e4m3 scale per 16 elements of a row, an f32 scale per output row
};

// The properties that kernels are chosen by.
struct LinearTraits {
  WeightFormat format = WeightFormat::kCompute;
  DType input = DType::kF32;   // of x, for kCompute also of the weight
  DType output = DType::kF32;  // of y
  Epilogue epilogue = Epilogue::kStore;
  bool bias = false;
  int64_t n = 0;  // rows of the weight, gate and up together
  int64_t k = 0;
  uint8_t family = 0;  // how the backend packed it, in its own numbering
  size_t bytes = 0;    // read by a call

  int64_t out_features() const { return epilogue == Epilogue::kGatedSilu ? n / 2 : n; }
};

// A weight matrix in the layout of the backend's kernels. Immutable.
class PackedLinear {
 public:
  virtual ~PackedLinear() = default;
  virtual LinearTraits traits() const = 0;
  // Device bytes.
  virtual size_t bytes() const = 0;

  int64_t in_features() const { return traits().k; }
  int64_t out_features() const { return traits().out_features(); }
  DType input_dtype() const { return traits().input; }
  DType output_dtype() const { return traits().output; }
};

// Scales of a quantised part. Host memory.
struct PartScales {
  std::span<const float> scales;  // kFp8: [out] or [1]; kFp8Block: [ceil(out/128), ceil(K/128)]
  const void* group_scales = nullptr;  // kNvfp4: e4m3 [out, K / 16]
  float scale = 1.0f;                  // kNvfp4: for the whole part
};

struct LinearSource {
  // Host memory, [out_i, K] each, f32, bf16 or f16; stacked along the output: q, k and v, or gate
  // and up. A part without data gets random weights. With `scales`, parts are in `format`: e4m3, or
  // (kU8, [out_i, K / 2]) pairs of e2m1.
  std::span<const TensorView> parts;
  // One f32, bf16 or f16 [out_i] per part (a null view: zeros), or empty.
  std::span<const TensorView> biases;
  DType compute_dtype = DType::kF32;
  Epilogue epilogue = Epilogue::kStore;
  DType output_dtype = DType::kF32;
  WeightFormat format = WeightFormat::kCompute;
  std::span<const PartScales> scales = {};
  uint64_t random_seed = 0;
};

// The gated MLPs of a layer's experts.
class PackedExperts {
 public:
  virtual ~PackedExperts() = default;
  virtual int32_t num_experts() const = 0;
  virtual size_t bytes() const = 0;
};

struct ExpertsSource {
  struct Expert {
    TensorView gate, up;  // [intermediate, hidden]; without data: random weights
    TensorView down;      // [hidden, intermediate]
  };
  std::span<const Expert> experts;
  DType compute_dtype = DType::kF32;
  int32_t max_rows = 0;  // per call
  int32_t top_k = 0;     // experts per row
  uint64_t random_seed = 0;
};

// ---- what a step is made of ----

// The pool of one layer: [block][kv_head][K|V][slot][head_dim].
struct PagedKvView {
  void* layer = nullptr;  // first block of the layer
  DType dtype = DType::kF32;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_tokens = 0;  // a multiple of 16
  int32_t num_blocks = 0;

  size_t part_bytes() const {
    return static_cast<size_t>(block_tokens) * static_cast<size_t>(head_dim) * DTypeBytes(dtype);
  }
  size_t head_bytes() const { return 2 * part_bytes(); }
  size_t block_bytes() const { return static_cast<size_t>(num_kv_heads) * head_bytes(); }
};

// One sequence's rows of a step; positions are consecutive and end at context_len - 1.
struct RowSpan {
  int32_t row_begin = 0;
  int32_t num_rows = 0;
  int32_t context_len = 0;
  int32_t table_begin = 0;  // index of its first entry in block_tables
};

// Ragged rows in device memory. `host_sequences` equals `sequences`, for sizing a launch's grid;
// empty in a capture.
struct RaggedBatch {
  int32_t rows = 0;
  int32_t num_sequences = 0;
  int32_t longest_rows = 0;  // maximum rows of a sequence; 1: all decode
  std::span<const RowSpan> host_sequences;
  const RowSpan* sequences = nullptr;
  const int32_t* positions = nullptr;     // [rows]
  const int32_t* kv_slots = nullptr;      // [rows]: block * block_tokens + slot in the block
  const int32_t* block_tables = nullptr;  // concatenated
};

struct LinearParams {
  const PackedLinear* weight = nullptr;
  TensorView x;  // [rows, in], the weight's input dtype, dense
  TensorView y;  // [rows, out], the weight's output dtype, dense
  int32_t rows = 0;
  const AdaptedLinear* adapters = nullptr;  // null: no adapters
};

// y[i] = x[row_indices ? row_indices[i] : i] / rms(x) * weight
struct RmsNormParams {
  TensorView x;                          // f32 [.., dim], on a GPU also bf16; rows may be strided
  const int32_t* row_indices = nullptr;  // [rows]
  TensorView weight;                     // f32 [dim]
  TensorView y;                          // f32 or bf16 [rows, dim]
  int32_t rows = 0;
  float epsilon = 1e-6f;
};

struct EmbeddingParams {
  TensorView table;                 // [vocabulary, hidden], f32, bf16 or f16
  const int32_t* tokens = nullptr;  // [rows]; negative: the token is slot_tokens[slot_of_row[row]]
  const int32_t* slot_of_row = nullptr;  // [rows]
  const int32_t* slot_tokens = nullptr;  // [slots]
  int32_t rows = 0;
  TensorView hidden;   // f32 [rows, hidden]
  RmsNormParams norm;  // if its x has data: also computes the norm of `hidden`, which is that x
};

// Norms (if there are norm weights) and rotates q and k, and appends k and v to the pool. Rotation
// as in Hugging Face's Llama: element i pairs with i + rotary_dim / 2.
struct RopeAppendParams {
  TensorView qkv;  // f32 or bf16 [rows, (heads + 2 kv_heads) * head_dim]; q is replaced in place
  TensorView
      cos_sin;  // f32 [positions, head_dim]: cosines of the head_dim/2 angles, then their sines
  TensorView q_norm;  // f32 [head_dim] or null
  TensorView k_norm;  // f32 [head_dim] or null
  float norm_epsilon = 1e-6f;
  int32_t num_heads = 0;
  RaggedBatch batch;
  PagedKvView kv;
};

// Assembles q, k and v of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1)
// in expanded form: a head's k is [k_nope | k_rope], with k_rope shared by all heads; v is padded
// with zeros to the pool's head_dim. Rotation pairs element 2i with 2i + 1.
struct LatentAppendParams {
  TensorView q;  // f32 [rows, heads * (nope + rope)]; the last `rope` elements per head are rotated
                 // in place
  TensorView kv;       // f32 [rows, heads * (nope + v_dim)]: k_nope and v of each head
  TensorView k_rope;   // f32 [rows, >= rope], rows strided: the shared key part before rotation
  TensorView cos_sin;  // f32 [positions, rope]
  int32_t num_heads = 0;
  int32_t nope_dim = 0;
  int32_t rope_dim = 0;
  int32_t v_dim = 0;
  RaggedBatch batch;
  PagedKvView pool;  // num_kv_heads = heads, head_dim >= nope + rope and >= v_dim
};

// Causal attention of every row over its sequence's pool; prefill chunks and decode rows in one
// call.
struct AttentionParams {
  TensorView q;            // f32 or bf16 [rows, >= heads * q_head_dim]; rows may be strided
  int32_t q_head_dim = 0;  // <= kv.head_dim; the rest of a key is ignored
  int32_t v_head_dim = 0;  // <= kv.head_dim; elements per head in the output
  int32_t num_heads = 0;   // a multiple of kv.num_kv_heads
  float scale = 1.0f;      // of the scores
  int32_t window = 0;      // > 0: a row at position p sees positions > p - window only
  RaggedBatch batch;
  PagedKvView kv;
  TensorView out;  // f32 or bf16 [rows, heads * v_head_dim]
};

// y = silu(x[:, :dim]) * x[:, dim:]
struct SiluMulParams {
  TensorView x;  // f32 [rows, 2 * dim]
  TensorView y;  // f32 or bf16 [rows, dim]
  int32_t rows = 0;
};

// y = x + silu(added), also rounded if `rounded` has data.
struct SiluAddParams {
  TensorView x;        // f32 [rows, dim]; may be y
  TensorView added;    // f32 [rows, dim]
  TensorView y;        // f32 [rows, dim]
  TensorView rounded;  // bf16 [rows, dim]
};

enum class ExpertScore : uint8_t { kSoftmax, kSigmoid };

// Selects experts and their weights per row. With groups (DeepSeek-V3, arXiv:2412.19437, section
// 2.1.2) only the `top_groups` groups with the largest sum of their two best scores take part. Ties
// go to the lower index.
struct SelectExpertsParams {
  TensorView logits;           // f32 [rows, experts]
  TensorView correction_bias;  // f32 [experts] or null: added for the selection only
  ExpertScore score = ExpertScore::kSoftmax;
  int32_t top_k = 1;
  int32_t num_groups = 1;
  int32_t top_groups = 1;
  bool normalise = true;  // weights of a row sum to 1 before `scale`
  float scale = 1.0f;
  TensorView experts;  // i32 [rows, top_k], ascending in a row
  TensorView weights;  // f32 [rows, top_k]
  int32_t rows = 0;
};

// y += sum over a row's experts of weight * down(silu(gate x) * up x)
struct ExpertMlpParams {
  const PackedExperts* packed = nullptr;
  TensorView x;        // [rows, hidden], compute dtype
  TensorView experts;  // i32 [rows, top_k]
  TensorView weights;  // f32 [rows, top_k]
  TensorView y;        // f32 [rows, hidden]
  int32_t rows = 0;
};

// ---- copies of rows ----

// Copies the residual stream. `from` is f32, `to` f32 or bf16, possibly strided.
struct TapParams {
  TensorView from, to;
};

// to[row][columns[i]] = from[row][i]. Both f32; other columns are unchanged.
struct SpreadParams {
  TensorView from, to;
  const int32_t* columns = nullptr;  // [from.cols], device memory
};

// ---- drawing tokens ----

// Edits of a row's logits, in this order: repetition penalty if `repeated`, presence and frequency
// penalties by `count`, bias, ban. Each token once.
struct TokenEdit {
  int32_t token = 0;
  int32_t count = 0;  // in the generated tokens
  float bias = 0;
  uint16_t repeated = 0;  // in the prompt or the generated tokens
  uint16_t banned = 0;
};

// One row to draw for, as defined in engine/request.h. Plain data for device memory.
struct DrawRow {
  int32_t logit_index = 0;  // negative: padding
  int32_t slot = 0;         // where the token is stored for the next step; negative: nowhere
  uint32_t position = 0;    // of the drawn token
  uint32_t choice = 0;
  uint64_t seed = 0;
  float temperature = 1;  // 0: greedy
  float top_p = 1;
  float min_p = 0;
  int32_t top_k = 0;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  float repetition_penalty = 1;
  int32_t edit_begin = 0;
  int32_t edit_count = 0;
  int32_t num_logprobs = -1;
  int32_t drawn_at = 0;  // index into DrawParams::drawn
  int32_t mask = -1;     // index into DrawParams::masks; -1: none
};

enum class DrawStatus : int32_t { kDrawn = 0, kNotFinite = 1, kNothingLeft = 2 };

struct alignas(16) DrawnToken {
  int32_t token = -1;
  DrawStatus status = DrawStatus::kDrawn;
  float logprob = 0;  // of the unedited distribution; only if num_logprobs >= 0
  float log_sum = 0;  // log of the sum of the exponentials of the row's logits; likewise
};

struct DrawParams {
  TensorView logits;  // f32 [.., vocabulary]
  const DrawRow* rows = nullptr;
  const TokenEdit* edits = nullptr;
  int32_t num_rows = 0;
  bool filters = true;  // false: no row has top_k, top_p or min_p, which may save launches
  // One bit per token of the vocabulary, 1: allowed; [.., mask_words] words, rows by DrawRow::mask.
  // Null: no row has a mask.
  const uint32_t* masks = nullptr;
  int32_t mask_words = 0;
  int32_t* slot_tokens = nullptr;
  DrawnToken* drawn = nullptr;  // by DrawRow::drawn_at; may be MemoryKind::kHost
};

}  // namespace aisp
