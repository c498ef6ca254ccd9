#include "kernels/programme.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/check.h"

namespace aisp {

std::string_view NodeKindName(NodeKind kind) {
  constexpr std::array<std::string_view, kNodeKinds> kNames = {
      "embed",         "gather rows", "norm",     "linear",   "rope + append",
      "latent append", "attend",      "silu mul", "silu add", "select experts",
      "experts",       "all-reduce",  "tap",      "spread",   "draw"};
  return kNames[static_cast<size_t>(kind)];
}

NodeId Programme::OnlyReader(NodeId id) const {
  const ValueId output = node(id).output;
  if (output < 0 || value(output).readers.size() != 1) return -1;
  return value(output).readers.front();
}

NodeId Programme::Producer(NodeId id, size_t index) const {
  const ValueId input = node(id).inputs[index];
  return input < 0 ? -1 : value(input).producer;
}

bool Programme::Hands(NodeId from, NodeId to, HandOver form) const {
  const ValueId output = node(from).output;
  if (output < 0 || (value(output).forms & form) == 0) return false;
  const std::vector<NodeId>& readers = value(output).readers;
  return std::find(readers.begin(), readers.end(), to) != readers.end();
}

std::string Programme::Describe(NodeId id) const {
  const Node& n = node(id);
  const std::string_view name = n.name.empty() ? NodeKindName(n.kind) : n.name;
  return n.layer < 0 ? std::string(name) : fmt::format("layer {} {}", n.layer, name);
}

void Programme::BindAdapters(const std::function<const AdaptedLinear*(const PackedLinear*)>& find) {
  for (Node& node : nodes_) {
    auto* linear = std::get_if<LinearParams>(&node.params);
    if (linear == nullptr) continue;
    linear->adapters = find(linear->weight);
    AISP_CHECK(linear->adapters == nullptr || value(node.output).rows == RowSet::kStep);
  }
}

Status Programme::BindKv(std::span<const PagedKvView> layers) {
  if (layers.size() != static_cast<size_t>(num_layers_)) {
    return InvalidArgument(
        fmt::format("{} pools for a programme of {} layers", layers.size(), num_layers_));
  }
  const auto refuse = [&](NodeId id, int64_t heads, const PagedKvView& kv) {
    return InvalidArgument(
        fmt::format("{}: {} KV heads of the layer and a pool with {} of {} elements", Describe(id),
                    heads, kv.num_kv_heads, kv.head_dim));
  };
  for (NodeId id = 0; id < static_cast<NodeId>(nodes_.size()); ++id) {
    Node& n = nodes_[static_cast<size_t>(id)];
    if (n.layer < 0) continue;
    const PagedKvView& kv = layers[static_cast<size_t>(n.layer)];
    if (auto* rope = std::get_if<RopeAppendParams>(&n.params)) {
      const int64_t heads = rope->qkv.cols() / std::max(1, kv.head_dim) - rope->num_heads;
      if (heads != 2 * kv.num_kv_heads || rope->qkv.cols() % kv.head_dim != 0)
        return refuse(id, heads / 2, kv);
      rope->kv = kv;
    } else if (auto* latent = std::get_if<LatentAppendParams>(&n.params)) {
      if (kv.num_kv_heads != latent->num_heads ||
          kv.head_dim < std::max(latent->nope_dim + latent->rope_dim, latent->v_dim))
        return refuse(id, latent->num_heads, kv);
      latent->pool = kv;
    } else if (auto* attend = std::get_if<AttentionParams>(&n.params)) {
      if (kv.num_kv_heads < 1 || attend->num_heads % kv.num_kv_heads != 0 ||
          kv.head_dim < std::max(attend->q_head_dim, attend->v_head_dim))
        return refuse(id, attend->num_heads, kv);
      attend->kv = kv;
    }
  }
  kv_bound_ = true;
  return {};
}

NodeId ProgrammeBuilder::Add(NodeKind kind, std::string_view name, NodeParams params,
                             std::initializer_list<ValueId> inputs) {
  const auto id = static_cast<NodeId>(programme_.nodes_.size());
  Node& node = programme_.nodes_.emplace_back();
  node.kind = kind;
  node.name = name;
  node.layer = layer_;
  node.params = params;
  AISP_CHECK(inputs.size() <= node.inputs.size());
  size_t at = 0;
  for (const ValueId input : inputs) {
    AISP_CHECK(input >= 0 && static_cast<size_t>(input) < programme_.values_.size());
    node.inputs[at++] = input;
    programme_.values_[static_cast<size_t>(input)].readers.push_back(id);
  }
  return id;
}

// By value: a reference to another value would dangle when the list of values grows.
ValueId ProgrammeBuilder::Make(NodeId node, TensorView memory, bool kept) {
  const auto id = static_cast<ValueId>(programme_.values_.size());
  StepValue& value = programme_.values_.emplace_back();
  value.memory = memory;
  value.rows = rows_;
  value.producer = node;
  value.kept = kept;
  programme_.nodes_[static_cast<size_t>(node)].output = id;
  return id;
}

void ProgrammeBuilder::SetLayer(int32_t layer) {
  layer_ = layer;
  programme_.num_layers_ = std::max(programme_.num_layers_, layer + 1);
}

void ProgrammeBuilder::Embed(const EmbeddingParams& params) {
  residual_ = Make(Add(NodeKind::kEmbed, "embed", params, {}), params.hidden, true);
}

ValueId ProgrammeBuilder::Given(TensorView memory, RowSet rows) {
  const auto id = static_cast<ValueId>(programme_.values_.size());
  StepValue& value = programme_.values_.emplace_back();
  value.memory = memory;
  value.rows = rows;
  return id;
}

void ProgrammeBuilder::GivenResidual(const TensorView& hidden) {
  residual_ = Given(hidden);
  programme_.values_[static_cast<size_t>(residual_)].kept = true;
}

void ProgrammeBuilder::BeginResidual(ValueId x, const LinearParams& params, std::string_view name) {
  residual_ = Make(Add(NodeKind::kLinear, name, params, {x}), params.y, true);
}

void ProgrammeBuilder::BeginResidualOfTwo(ValueId left, ValueId right, const LinearParams& params,
                                          std::string_view name) {
  residual_ = Make(Add(NodeKind::kLinear, name, params, {left, right}), params.y, true);
}

ValueId ProgrammeBuilder::EmbedBeside(const EmbeddingParams& params) {
  return Make(Add(NodeKind::kEmbed, "embed", params, {}), params.hidden);
}

ValueId ProgrammeBuilder::Norm(ValueId x, const RmsNormParams& params, std::string_view name) {
  return Make(Add(NodeKind::kNorm, name, params, {x}), params.y);
}

ValueId ProgrammeBuilder::Linear(ValueId x, const LinearParams& params, std::string_view name) {
  return Make(Add(NodeKind::kLinear, name, params, {x}), params.y);
}

ValueId ProgrammeBuilder::LinearOfTwo(ValueId left, ValueId right, const LinearParams& params,
                                      std::string_view name) {
  return Make(Add(NodeKind::kLinear, name, params, {left, right}), params.y);
}

void ProgrammeBuilder::LinearAdd(ValueId x, const LinearParams& params, std::string_view name) {
  EmitTaps();
  residual_ = Make(Add(NodeKind::kLinear, name, params, {x, residual_}), params.y, true);
}

ValueId ProgrammeBuilder::RopeAppend(ValueId qkv, const RopeAppendParams& params) {
  return Make(Add(NodeKind::kRopeAppend, "rope + append", params, {qkv}), params.qkv);
}

ValueId ProgrammeBuilder::LatentAppend(ValueId q, ValueId kv, ValueId k_rope,
                                       const LatentAppendParams& params) {
  return Make(Add(NodeKind::kLatentAppend, "latent append", params, {q, kv, k_rope}), params.q);
}

ValueId ProgrammeBuilder::Attend(ValueId q, const AttentionParams& params) {
  return Make(Add(NodeKind::kAttend, "attend", params, {q}), params.out);
}

ValueId ProgrammeBuilder::SiluMul(ValueId x, const SiluMulParams& params) {
  return Make(Add(NodeKind::kSiluMul, "silu mul", params, {x}), params.y);
}

ValueId ProgrammeBuilder::SiluAdd(ValueId x, ValueId added, const SiluAddParams& params) {
  return Make(Add(NodeKind::kSiluAdd, "silu add", params, {x, added}),
              params.rounded.data != nullptr ? params.rounded : params.y);
}

ValueId ProgrammeBuilder::SelectExperts(ValueId logits, const SelectExpertsParams& params) {
  return Make(Add(NodeKind::kSelectExperts, "select experts", params, {logits}), params.experts);
}

void ProgrammeBuilder::Experts(ValueId x, ValueId chosen, const ExpertMlpParams& params) {
  EmitTaps();
  residual_ =
      Make(Add(NodeKind::kExperts, "experts", params, {x, chosen, residual_}), params.y, true);
}

void ProgrammeBuilder::AllReduce(Collective* collective) {
  EmitTaps();
  AllReduceParams params;
  params.x = programme_.values_[static_cast<size_t>(residual_)].memory;
  params.collective = collective;
  residual_ = Make(Add(NodeKind::kAllReduce, "all-reduce", params, {residual_}), params.x, true);
}

void ProgrammeBuilder::Tap(const TapParams& params) { taps_.push_back(params); }

void ProgrammeBuilder::EmitTaps() {
  for (const TapParams& tap : taps_) Add(NodeKind::kTap, "tap", tap, {residual_});
  taps_.clear();
}

void ProgrammeBuilder::TapRows(ValueId rows, const TapParams& params) {
  Add(NodeKind::kTap, "tap", params, {rows});
}

ValueId ProgrammeBuilder::Spread(ValueId x, const SpreadParams& params) {
  return Make(Add(NodeKind::kSpread, "spread", params, {x}), params.to);
}

ValueId ProgrammeBuilder::GatherRows() {
  EmitTaps();
  const NodeId node = Add(NodeKind::kGatherRows, "gather rows", GatherRowsParams{}, {residual_});
  rows_ = RowSet::kLogits;
  return Make(node, programme_.values_[static_cast<size_t>(residual_)].memory, true);
}

void ProgrammeBuilder::Draw(ValueId logits) {
  Add(NodeKind::kDraw, "draw",
      DrawNodeParams{programme_.values_[static_cast<size_t>(logits)].memory}, {logits});
}

uint8_t ProgrammeBuilder::FormsOf(const StepValue& value) const {
  uint8_t forms = kAsRows;
  // Another reader would find unspecified data in memory.
  if (value.kept || value.readers.size() == 1) forms |= kInsideLaunch;
  if (!value.kept && value.readers.size() == 1) forms |= kPublished;
  const bool fp8 = std::all_of(value.readers.begin(), value.readers.end(), [&](NodeId id) {
    const auto* linear = std::get_if<LinearParams>(&programme_.node(id).params);
    if (linear == nullptr) return false;
    const WeightFormat format = linear->weight->traits().format;
    return format == WeightFormat::kFp8 || format == WeightFormat::kFp8Block;
  });
  if (!value.kept && fp8) forms |= kAsFp8Rows;
  return forms;
}

Programme ProgrammeBuilder::Finish() {
  EmitTaps();
  for (ValueId id = 0; id < static_cast<ValueId>(programme_.values_.size()); ++id) {
    StepValue& value = programme_.values_[static_cast<size_t>(id)];
    value.forms = FormsOf(value);
    for (const NodeId reader : value.readers)
      programme_.edges_.push_back({id, value.producer, reader, value.forms});
  }
  return std::move(programme_);
}

}  // namespace aisp
