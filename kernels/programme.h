// Programme: the operations of a step as data, emitted once by the model at load.
//
// A programme is a list of nodes in the order in which they compute, and of the values between
// them. A node says what is computed; which kernel computes it, for which number of rows, and which
// nodes share a launch is decided by a backend's table (Ops::Prepare) and nowhere else. An edge
// says whose output a node reads and in which forms it may be handed over.
//
// Values lie in the model's workspace; their memory is used again by later values, so the order of
// the nodes is part of the programme. The residual stream is a chain of values in one place: each
// node that adds to it makes a new one.
//
// Built by one thread, then immutable but for BindKv; the weights and the workspace outlive it.
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
  kGatherRows,  // the rows whose logits are wanted; nothing where those are all
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

// Sums a tensor over the devices that share a layer. One object for each of them; all have to call
// in the same order.
class Collective {
 public:
  virtual ~Collective() = default;
  virtual int32_t ranks() const = 0;
  // In place; `count` elements of f32 in host memory.
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

// What changes from step to step (rows, batch, pools) is empty here.
using NodeParams = std::variant<EmbeddingParams, GatherRowsParams, RmsNormParams, LinearParams,
                                RopeAppendParams, LatentAppendParams, AttentionParams,
                                SiluMulParams, SiluAddParams, SelectExpertsParams, ExpertMlpParams,
                                AllReduceParams, TapParams, SpreadParams, DrawNodeParams>;

// The forms in which an output may come to its reader; any number of them.
enum HandOver : uint8_t {
  kAsRows = 1,  // rows in memory, complete before the reader begins
  kInsideLaunch =
      2,  // within one launch; memory holds anything afterwards unless the value is kept
  kPublished =
      4,  // between two launches: published in slots, which the reader polls (token_slots.h)
  kAsFp8Rows = 8,  // rows of e4m3 with a scale each, for readers whose weights are e4m3
};

// Of which rows of a step a value has one.
enum class RowSet : uint8_t {
  kStep,    // all
  kLogits,  // those whose logits are wanted
};

struct StepValue {
  TensorView memory;
  RowSet rows = RowSet::kStep;
  NodeId producer = -1;
  std::vector<NodeId> readers;
  // It stays in memory whoever else is given it: the residual stream.
  bool kept = false;
  uint8_t forms = kAsRows;  // HandOver: in which its readers may have it
};

struct Node {
  NodeKind kind = NodeKind::kEmbed;
  std::string_view name;  // "qkv", "down"; a literal
  int32_t layer = -1;     // -1: outside the layers
  NodeParams params;
  std::array<ValueId, 4> inputs = {-1, -1, -1, -1};
  ValueId output = -1;  // -1: none beside the KV pool

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

  // The one node that reads `id`'s output; -1 if there are none or several.
  NodeId OnlyReader(NodeId id) const;
  // The node that made input `index` of `id`; -1 without such an input.
  NodeId Producer(NodeId id, size_t index = 0) const;
  // Whether `to` reads what `from` makes and may have it in this form.
  bool Hands(NodeId from, NodeId to, HandOver form) const;

  // The pool of each layer, of its own shape. INVALID_ARGUMENT names the layer that does not fit.
  // Before the first Ops::Prepare.
  Status BindKv(std::span<const PagedKvView> layers);
  bool kv_bound() const { return kv_bound_; }
  // What changes the matrix of each linear node of all rows; null of those that none changes.
  // Before the first Ops::Prepare.
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

// Emits nodes one after the other. Every call returns the value that its node makes; x, logits and
// so on are values that were returned before. Parameters are without rows, batch and pools; x and y
// of theirs are where the values lie.
class ProgrammeBuilder {
 public:
  // Nodes from now on belong to this layer; -1: to none.
  void SetLayer(int32_t layer);
  // Begins the residual stream.
  void Embed(const EmbeddingParams& params);
  ValueId residual() const { return residual_; }
  // What comes from outside, for a programme that is a part of a model's: a value without a node,
  // and a residual stream that is there already.
  ValueId Given(TensorView memory, RowSet rows = RowSet::kStep);
  void GivenResidual(const TensorView& hidden);
  // Begins the residual stream with what a layer makes of `x`.
  void BeginResidual(ValueId x, const LinearParams& params, std::string_view name);
  // Or of two values that make up its rows side by side.
  void BeginResidualOfTwo(ValueId left, ValueId right, const LinearParams& params,
                          std::string_view name);
  // Embedded rows beside the residual stream.
  ValueId EmbedBeside(const EmbeddingParams& params);

  ValueId Norm(ValueId x, const RmsNormParams& params, std::string_view name = "norm");
  ValueId Linear(ValueId x, const LinearParams& params, std::string_view name);
  // Of rows that two values make up side by side.
  ValueId LinearOfTwo(ValueId left, ValueId right, const LinearParams& params,
                      std::string_view name);
  // With Epilogue::kAccumulate: adds to the residual stream.
  void LinearAdd(ValueId x, const LinearParams& params, std::string_view name);
  // Appends to the layer's pool; the value is what attention reads its queries from.
  ValueId RopeAppend(ValueId qkv, const RopeAppendParams& params);
  ValueId LatentAppend(ValueId q, ValueId kv, ValueId k_rope, const LatentAppendParams& params);
  ValueId Attend(ValueId q, const AttentionParams& params);
  ValueId SiluMul(ValueId x, const SiluMulParams& params);
  // The value is the rounded one, where there is one.
  ValueId SiluAdd(ValueId x, ValueId added, const SiluAddParams& params);
  ValueId SelectExperts(ValueId logits, const SelectExpertsParams& params);
  // Adds to the residual stream.
  void Experts(ValueId x, ValueId chosen, const ExpertMlpParams& params);
  // Of the residual stream.
  void AllReduce(Collective* collective);
  // Copies the residual stream as it is here. The copy is made where the stream is written next, so
  // that it stands between no layers that can share a launch.
  void Tap(const TapParams& params);
  // Copies the rows of such a value: GatherRows.
  void TapRows(ValueId rows, const TapParams& params);
  // From here on values have the rows whose logits are wanted.
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
  std::vector<TapParams> taps_;  // of the residual stream as it is
  int32_t layer_ = -1;
  ValueId residual_ = -1;
  RowSet rows_ = RowSet::kStep;
};

// ---- a step of it ----

enum class StepMode : uint8_t {
  kDecode,   // every sequence has one row at most
  kVerify,   // every sequence has a few rows (kMostVerifyRows), and all logits are wanted
  kPrefill,  // every sequence has several
  kMixed,
};

// Rows of a sequence that verify proposed tokens as decoding does: reading its KV once.
inline constexpr int32_t kMostVerifyRows = 16;
// The size of a bucket for sequences of so many rows: 4, 8 or 16.
constexpr int32_t VerifyRows(int32_t longest) { return longest <= 4 ? 4 : longest <= 8 ? 8 : 16; }

// What part of a programme is run: whole, or cut between forward and draw.
enum class StepPart : uint8_t { kWhole, kForward, kDraw };

// The sizes that kernels are chosen by.
struct Bucket {
  int32_t sequences = 0;
  int32_t rows_per_sequence = 0;  // the most
  int32_t rows = 0;               // in all
  int32_t prompt_context = 0;     // the most keys of a sequence that computes several rows
  StepMode mode = StepMode::kDecode;
  StepPart part = StepPart::kForward;
  int32_t logit_rows = 0;
  bool all_logits = false;  // of every row, in order
  int32_t draws = 0;        // several of one sequence are possible
  bool draw_filters = false;
  bool draw_masks = false;
  bool adapters = false;  // some row has one

  bool operator==(const Bucket&) const = default;
};

// What a step reads and writes beside the programme's values: device memory, rewritten between
// steps as the caller likes.
struct StepInputs {
  RaggedBatch batch;
  const int32_t* tokens = nullptr;
  const int32_t* slot_of_row = nullptr;
  int32_t* slot_tokens = nullptr;
  const int32_t* logit_rows = nullptr;  // null: all rows
  int32_t num_logit_rows = 0;
  // [rows]: index of the adapter that the row runs with, -1: none. Null: no row has one.
  const int32_t* adapter_of_row = nullptr;
  DrawParams draw;  // without logits and slot_tokens
};

}  // namespace aisp
