// Programme: the operations of a step as data, emitted once by the model at load.
//
// A programme is a list of nodes in computing order, and of the values between them. A node says
// what is computed. A backend's table alone decides which kernel computes it for which number of
// rows, and which nodes share a launch (Ops::Prepare). An edge says whose output a node reads and
// in which forms it may be passed.
//
// Values are in the model's workspace, and later values reuse their memory, so the order of the
// nodes is part of the programme. The residual stream is a chain of values at one address: each
// node that adds to it makes a new value.
//
// Built by one thread, then immutable except for BindKv; the weights and the workspace outlive it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/result.h"
#include "kernels/params.h"

namespace aisp {

using NodeId = int32_t;   // index into Programme::nodes()
using ValueId = int32_t;  // index into Programme::values()

enum class NodeKind : uint8_t {
  kEmbed,
  kGatherRows,  // the rows whose logits are wanted; a no-op if those are all
  kNorm,
  kLinear,  // with its epilogue
  kRopeAppend,
  kLatentAppend,
  kAttend,
  kSiluMul,
  kSiluAdd,
  kSelectExperts,
  kExperts,
  kAllReduce,
  kTap,
  kSpread,
  kDraw,
};
inline constexpr size_t kNodeKinds = static_cast<size_t>(NodeKind::kDraw) + 1;
std::string_view NodeKindName(NodeKind kind);

// Sums a tensor over the devices that share a layer. One object per device; all must call in the
// same order.
class Collective {
 public:
  virtual ~Collective() = default;
  virtual int32_t ranks() const = 0;
  // In place; `count` f32 elements in host memory.
  virtual Status AllReduceOnHost(float* values, int64_t count) = 0;
};

struct AllReduceParams {
  TensorView x;  // f32, summed in place
  Collective* collective = nullptr;
  int32_t rows = 0;
};

struct GatherRowsParams {};

// Masks, edits and draws; the rows come with the step.
struct DrawNodeParams {
  TensorView logits;  // f32 [rows, vocabulary]
};

// What changes between steps (rows, batch, pools) is empty here.
using NodeParams = std::variant<EmbeddingParams, GatherRowsParams, RmsNormParams, LinearParams,
                                RopeAppendParams, LatentAppendParams, AttentionParams,
                                SiluMulParams, SiluAddParams, SelectExpertsParams, ExpertMlpParams,
                                AllReduceParams, TapParams, SpreadParams, DrawNodeParams>;

// Forms in which an output may be passed to its reader, as a bit set.
enum HandOver : uint8_t {
  kAsRows = 1,  // rows in memory, complete before the reader begins
  kInsideLaunch =
      2,  // within one launch; memory is unspecified afterwards unless the value is kept
  kPublished =
      4,  // between two launches: published in slots, which the reader polls (token_slots.h)
  kAsFp8Rows = 8,  // rows of e4m3 with one scale each, for readers with e4m3 weights
};

// The rows of a step for which a value exists.
enum class RowSet : uint8_t {
  kStep,    // all
  kLogits,  // those whose logits are wanted
};

struct StepValue {
  TensorView memory;
  RowSet rows = RowSet::kStep;
  NodeId producer = -1;
  std::vector<NodeId> readers;
  // It must be in memory even if it is passed in another form: the residual stream.
  bool kept = false;
  uint8_t forms = kAsRows;  // HandOver forms possible for its readers
};

struct Node {
  NodeKind kind = NodeKind::kEmbed;
  std::string_view name;  // "qkv", "down"; a literal
  int32_t layer = -1;     // -1: outside the layers
  NodeParams params;
  std::array<ValueId, 4> inputs = {-1, -1, -1, -1};
  ValueId output = -1;  // -1: none besides the KV pool

  template <typename T>
  const T& As() const {
    return std::get<T>(params);
  }
};

struct Edge {
  ValueId value = -1;
  NodeId from = -1;
  NodeId to = -1;
  uint8_t forms = kAsRows;  // HandOver
};

class Programme {
 public:
  std::span<const Node> nodes() const { return nodes_; }
  std::span<const StepValue> values() const { return values_; }
  std::span<const Edge> edges() const { return edges_; }
  const Node& node(NodeId id) const { return nodes_[static_cast<size_t>(id)]; }
  const StepValue& value(ValueId id) const { return values_[static_cast<size_t>(id)]; }
  int32_t num_layers() const { return num_layers_; }

  // The only node that reads `id`'s output; -1 if there are none or several.
  NodeId OnlyReader(NodeId id) const;
  // The node that made input `index` of `id`; -1 without such an input.
  NodeId Producer(NodeId id, size_t index = 0) const;
  // Whether `to` reads `from`'s output and may receive it in this form.
  bool Hands(NodeId from, NodeId to, HandOver form) const;

  // Sets each layer's pool. INVALID_ARGUMENT names a layer that does not fit. Before the first
  // Ops::Prepare.
  Status BindKv(std::span<const PagedKvView> layers);
  bool kv_bound() const { return kv_bound_; }
  // Sets the adapters of each linear node of all rows; null for nodes without. Before the first
  // Ops::Prepare.
  void BindAdapters(const std::function<const AdaptedLinear*(const PackedLinear*)>& find);

  std::string Describe(NodeId id) const;  // "layer 3 qkv"

 private:
  friend class ProgrammeBuilder;
  std::vector<Node> nodes_;
  std::vector<StepValue> values_;
  std::vector<Edge> edges_;
  int32_t num_layers_ = 0;
  bool kv_bound_ = false;
};

// Emits nodes in order. Every call returns its node's value; x, logits and so on are values
// returned before. Parameters are without rows, batch and pools; their x and y are the values'
// memory.
class ProgrammeBuilder {
 public:
  // Later nodes belong to this layer; -1: to none.
  void SetLayer(int32_t layer);
  // Begins the residual stream.
  void Embed(const EmbeddingParams& params);
  ValueId residual() const { return residual_; }
  // Inputs from outside, for a programme that is a part of a model: a value without a node, and an
  // existing residual stream.
  ValueId Given(TensorView memory, RowSet rows = RowSet::kStep);
  void GivenResidual(const TensorView& hidden);
  // Begins the residual stream with a layer's output for `x`.
  void BeginResidual(ValueId x, const LinearParams& params, std::string_view name);
  // The same for two values that are concatenated per row.
  void BeginResidualOfTwo(ValueId left, ValueId right, const LinearParams& params,
                          std::string_view name);
  // Embedded rows, separate from the residual stream.
  ValueId EmbedBeside(const EmbeddingParams& params);

  ValueId Norm(ValueId x, const RmsNormParams& params, std::string_view name = "norm");
  ValueId Linear(ValueId x, const LinearParams& params, std::string_view name);
  // For rows concatenated from two values.
  ValueId LinearOfTwo(ValueId left, ValueId right, const LinearParams& params,
                      std::string_view name);
  // With Epilogue::kAccumulate: adds to the residual stream.
  void LinearAdd(ValueId x, const LinearParams& params, std::string_view name);
  // Appends to the layer's pool; returns the value from which attention reads its queries.
  ValueId RopeAppend(ValueId qkv, const RopeAppendParams& params);
  ValueId LatentAppend(ValueId q, ValueId kv, ValueId k_rope, const LatentAppendParams& params);
  ValueId Attend(ValueId q, const AttentionParams& params);
  ValueId SiluMul(ValueId x, const SiluMulParams& params);
  // Returns the rounded value if there is one.
  ValueId SiluAdd(ValueId x, ValueId added, const SiluAddParams& params);
  ValueId SelectExperts(ValueId logits, const SelectExpertsParams& params);
  // Adds to the residual stream.
  void Experts(ValueId x, ValueId chosen, const ExpertMlpParams& params);
  // Of the residual stream.
  void AllReduce(Collective* collective);
  // Copies the residual stream in its current state. The copy is made where the stream is written
  // next, so that it does not separate layers that could share a launch.
  void Tap(const TapParams& params);
  // Copies the rows of a value from GatherRows.
  void TapRows(ValueId rows, const TapParams& params);
  // Later values have only the rows whose logits are wanted.
  ValueId GatherRows();
  ValueId Spread(ValueId x, const SpreadParams& params);
  void Draw(ValueId logits);

  Programme Finish();

 private:
  NodeId Add(NodeKind kind, std::string_view name, NodeParams params,
             std::initializer_list<ValueId> inputs);
  ValueId Make(NodeId node, TensorView memory, bool kept = false);
  uint8_t FormsOf(const StepValue& value) const;
  void EmitTaps();

  Programme programme_;
  std::vector<TapParams> taps_;  // of the current residual stream
  int32_t layer_ = -1;
  ValueId residual_ = -1;
  RowSet rows_ = RowSet::kStep;
};

// ---- steps ----

enum class StepMode : uint8_t {
  // Every sequence has at most one row.
  kDecode,
  // Every sequence has at most kMostVerifyRows rows, and all logits are wanted; or it computes the
  // end of a prompt, at most kMostEndRows rows, in a step of at most kMostEndStepRows.
  kVerify,
  // Every sequence has several rows.
  kPrefill,
  kMixed,
};

// Maximum rows per sequence for which draft tokens are verified like decoding: reading its KV once.
inline constexpr int32_t kMostVerifyRows = 16;
// Rows of prompts whose other tokens are cached, which verify kernels compute faster: the prefill
// kernel reads all keys of a head in one CTA.
inline constexpr int32_t kMostEndRows = 8;
inline constexpr int32_t kMostEndStepRows = 64;  // more keep the prefill kernel's CTAs busy
// Rounds rows per sequence up to a bucket size: 4, 8 or 16.
constexpr int32_t VerifyRows(int32_t longest) { return longest <= 4 ? 4 : longest <= 8 ? 8 : 16; }

// The part of a programme to run: all, or only the forward pass or the draw.
enum class StepPart : uint8_t { kWhole, kForward, kDraw };

// The sizes by which kernels are chosen.
struct Bucket {
  int32_t sequences = 0;
  int32_t rows_per_sequence = 0;  // maximum
  int32_t rows = 0;               // total
  int32_t prompt_context = 0;     // maximum keys of a sequence with several rows
  StepMode mode = StepMode::kDecode;
  StepPart part = StepPart::kForward;
  int32_t logit_rows = 0;
  bool all_logits = false;  // logits of every row, in order
  int32_t draws = 0;        // may include several for one sequence
  bool draw_filters = false;
  bool draw_masks = false;
  bool adapters = false;  // some row has one

  bool operator==(const Bucket&) const = default;
};

// A step's inputs and outputs besides the programme's values: device memory, rewritten between
// steps.
struct StepInputs {
  RaggedBatch batch;
  const int32_t* tokens = nullptr;
  const int32_t* slot_of_row = nullptr;
  int32_t* slot_tokens = nullptr;
  const int32_t* logit_rows = nullptr;  // null: all rows
  int32_t num_logit_rows = 0;
  // [rows]: each row's adapter, -1: none. Null: no row has one.
  const int32_t* adapter_of_row = nullptr;
  DrawParams draw;  // without logits and slot_tokens
};

}  // namespace aisp
