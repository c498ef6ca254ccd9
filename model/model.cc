#include "model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "model/adapter_table.h"
#include "model/batch_upload.h"
#include "model/layer_plan.h"
#include "model/prepared_steps.h"
#include "model/rope.h"
#include "model/safetensors.h"
#include "model/sublayer.h"

namespace aisp {
namespace {

// Approximate number of elements in all matrices of the layers.
int64_t CountElements(const ModelSpec& spec) {
  int64_t sum = int64_t{spec.vocabulary} * spec.hidden;
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& a = layer.attention;
    sum += int64_t{2} * spec.hidden * (a.num_heads + a.num_kv_heads) * a.head_dim;
    sum += int64_t{3} * spec.hidden * layer.mlp.intermediate * std::max(1, layer.mlp.num_experts);
  }
  return sum;
}

int64_t CountElements(const Checkpoint& checkpoint) {
  int64_t sum = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    sum +=
        std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
  }
  return sum;
}

uint64_t StoredBytes(const Checkpoint& checkpoint) {
  uint64_t sum = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) sum += tensor.data.size();
  return sum;
}

struct Layer {
  std::unique_ptr<Sublayer> attention, mlp;
};

class LoadedModel final : public Model {
 public:
  LoadedModel(ModelSpec spec, const ModelOptions& options, Device& device, Ops& ops)
      : spec_(std::move(spec)),
        options_(options),
        device_(device),
        ops_(ops),
        adapters_(std::max(options.max_adapters, static_cast<int32_t>(options.adapters.size()))) {
    if (options_.max_context == 0) options_.max_context = spec_.max_position;
  }

  Status Load(const std::string& directory);
  const ModelSpec& spec() const override { return spec_; }
  DType compute_dtype() const override { return dtype_; }
  int32_t max_context() const override { return options_.max_context; }
  size_t workspace_bytes() const override {
    return workspace_.bytes() + output_.bytes() + first_memory_.bytes() + feature_memory_.bytes() +
           upload_.bytes();
  }
  Status Bind(std::span<const PagedKvView> layers, int32_t* slot_tokens) override;
  const Programme& programme() const override { return programme_; }
  Result<PackedAdapter> PackAdapter(const LoraAdapter& adapter) const override {
    return adapters_.Pack(adapter);
  }
  Status SetPackedAdapter(int32_t slot, PackedAdapter adapter) override;
  int32_t adapter_slots() const override { return adapters_.slots(); }
  int32_t FindAdapter(std::string_view digest) const override { return adapters_.Find(digest); }
  std::string_view AdapterIn(int32_t slot) const override { return adapters_.DigestIn(slot); }
  Result<DeviceBatch> Upload(const ForwardBatch& batch, int32_t block_tokens, int32_t pad_to,
                             int32_t place, Stream& stream) override;
  DeviceBatch Padded(int32_t rows, int32_t longest, int32_t place, bool adapters) const override {
    return upload_.Padded(rows, longest, place, true, adapters);
  }
  Status Enqueue(const DeviceBatch& batch, const StepDraws& draws,
                 const std::function<void(int32_t layer)>& on_layer, Stream& stream) override;
  Result<PreparedStep*> Prepare(const Bucket& bucket) override { return prepared_->For(bucket); }
  size_t weight_bytes() const override { return weight_bytes_ + expert_bytes_; }
  double StreamedBytes(int32_t rows) const override {
    double share = 1;
    for (const LayerSpec& layer : spec_.layers) {
      if (layer.mlp.kind != MlpKind::kExperts) continue;
      share = 1 - std::pow(1 - static_cast<double>(layer.mlp.top_k) / layer.mlp.num_experts, rows);
      break;
    }
    return static_cast<double>(weight_bytes_) + share * static_cast<double>(expert_bytes_);
  }
  TensorView logits() const override { return logits_; }
  TensorView features() const override { return features_; }
  TensorView embedding() const override { return embedding_; }
  TensorView final_norm() const override { return final_norm_.view; }
  const PackedLinear& head() const override { return *head_; }
  Status HiddenStates(std::span<const int32_t> rows, std::span<float> out, Stream& stream) override;

 private:
  Status CheckOptions() const;
  // Returns the bytes of all weights, and from now on reports to options_.on_progress.
  uint64_t WatchProgress(const Checkpoint* checkpoint, WeightReader* reader);
  Status LoadEmbedding(WeightReader& reader, Stream& stream);
  Status LoadLayers(const LoadContext& context);
  Status LoadHead(const LoadContext& context);
  Result<TensorView> LoadRope(Stream& stream);
  Status AllocateOutput();
  Status AllocateFirstLogits(int64_t rows);
  Status AllocateFeatures();
  Status LoadAdapters();
  void EmitTaps(ProgrammeBuilder& b, int32_t layer) const;
  void EmitProgramme();

  const ModelSpec spec_;
  ModelOptions options_;
  Device& device_;
  Ops& ops_;
  DType dtype_ = DType::kF32;
  size_t weight_bytes_ = 0;  // without the experts
  size_t expert_bytes_ = 0;
  Buffer embedding_memory_, rope_memory_, output_, first_memory_, feature_memory_;
  TensorView embedding_, features_;
  std::vector<Layer> layers_;
  DeviceVector final_norm_;
  std::unique_ptr<PackedLinear> head_;
  Workspace workspace_;
  TensorView head_input_, logits_;
  TensorView first_logits_;  // with output_tokens
  BatchUpload upload_;
  AdapterTable adapters_;
  Programme programme_;
  int32_t* slot_tokens_ = nullptr;
  std::optional<PreparedSteps> prepared_;  // set by Bind
};

Status LoadedModel::CheckOptions() const {
  if (options_.max_context < 1 || options_.max_context > spec_.max_position) {
    return InvalidArgument(fmt::format("a context of {} tokens; this model knows {} positions",
                                       options_.max_context, spec_.max_position));
  }
  if (options_.output_tokens < 0 || options_.output_tokens > spec_.vocabulary) {
    return InvalidArgument(fmt::format("logits of {} tokens; this model's vocabulary has {}",
                                       options_.output_tokens, spec_.vocabulary));
  }
  const auto layers = static_cast<int32_t>(spec_.layers.size());
  for (const int32_t layer : options_.feature_layers) {
    if (layer >= 0 && layer <= layers) continue;
    return InvalidArgument(
        fmt::format("features in front of layer {}; this model has {} layers", layer, layers));
  }
  if (options_.max_batch_tokens < 1 || options_.max_logit_rows < 1 || options_.max_sequences < 1) {
    return InvalidArgument(
        "max_batch_tokens, max_logit_rows and max_sequences have to be positive");
  }
  return {};
}

Status LoadedModel::Load(const std::string& directory) {
  AISP_RETURN_IF_ERROR(CheckOptions());
  std::unique_ptr<Checkpoint> checkpoint;
  if (!options_.random_weights) {
    AISP_ASSIGN_OR_RETURN(checkpoint, Checkpoint::Open(directory));
  }
  AISP_ASSIGN_OR_RETURN(const auto stream, device_.CreateStream());
  dtype_ = options_.compute_dtype
               ? *options_.compute_dtype
               : ops_.PreferredComputeDType(
                     spec_.dtype, checkpoint ? CountElements(*checkpoint) : CountElements(spec_));
  // On a CPU, random weights are generated in host memory like loaded ones; on a GPU, in place.
  WeightReader reader(checkpoint.get(), spec_.quant);
  if (options_.random_weights) {
    reader.MakeRandom(*options_.random_weights, device_.info().asynchronous ? nullptr : &ops_,
                      stream.get());
  }
  const uint64_t total_bytes = WatchProgress(checkpoint.get(), &reader);
  const SteadyClock clock;
  const Instant begin = clock.Now();
  AISP_RETURN_IF_ERROR(LoadEmbedding(reader, *stream));
  AISP_ASSIGN_OR_RETURN(const TensorView rope, LoadRope(*stream));
  LoadContext context{device_, ops_, *stream, reader, workspace_, dtype_, options_.max_batch_tokens,
                      rope};
  context.activation_dtype = ops_.ActivationDType(dtype_);
  context.weight_format = options_.weight_format;
  context.weight_bytes = &weight_bytes_;
  context.adapters = &adapters_;
  context.expert_bytes = &expert_bytes_;
  workspace_.Need(Scratch::kHidden, DType::kF32, spec_.hidden);
  AISP_RETURN_IF_ERROR(LoadLayers(context));
  context.adapters = nullptr;  // adapters apply to all rows, not to the logit rows alone
  AISP_RETURN_IF_ERROR(LoadHead(context));
  if (options_.on_progress) options_.on_progress(total_bytes, total_bytes);
  const double weights_s = ToSeconds(clock.Now() - begin);
  AISP_RETURN_IF_ERROR(workspace_.Allocate(device_, ops_.RowCapacity(options_.max_batch_tokens)));
  AISP_RETURN_IF_ERROR(AllocateOutput());
  AISP_RETURN_IF_ERROR(AllocateFeatures());
  EmitProgramme();
  AISP_RETURN_IF_ERROR(LoadAdapters());
  AISP_ASSIGN_OR_RETURN(
      upload_, BatchUpload::Create(device_, {options_.max_batch_tokens, options_.max_sequences,
                                             options_.max_logit_rows, options_.max_context}));
  LogInfo("model_loaded", {{"path", directory},
                           {"architecture", spec_.architecture},
                           {"compute_dtype", DTypeName(dtype_)},
                           {"kernels", ops_.Describe()},
                           {"weights_s", weights_s},
                           {"adapter_slots", static_cast<int64_t>(adapters_.slots())},
                           {"adapter_bytes", static_cast<int64_t>(adapters_.bytes())},
                           {"workspace_bytes", static_cast<int64_t>(workspace_bytes())}});
  return {};
}

uint64_t LoadedModel::WatchProgress(const Checkpoint* checkpoint, WeightReader* reader) {
  const uint64_t total = checkpoint != nullptr ? StoredBytes(*checkpoint)
                                               : static_cast<uint64_t>(CountElements(spec_)) *
                                                     DTypeBytes(DType::kBF16);
  if (!options_.on_progress) return total;
  reader->Watch([this, total, done = uint64_t{0}](uint64_t bytes) mutable {
    // A tied embedding is read twice.
    done = std::min(total, done + bytes);
    options_.on_progress(done, total);
  });
  return total;
}

Status LoadedModel::LoadEmbedding(WeightReader& reader, Stream& stream) {
  AISP_ASSIGN_OR_RETURN(const TensorView stored,
                        reader.Plain("model.embed_tokens", spec_.vocabulary, spec_.hidden));
  AISP_ASSIGN_OR_RETURN(embedding_memory_, device_.Allocate(stored.bytes(), MemoryKind::kDevice));
  embedding_ =
      TensorView::Dense(embedding_memory_.data(), stored.dtype, {spec_.vocabulary, spec_.hidden});
  if (stored.data == nullptr) {
    AISP_RETURN_IF_ERROR(
        ops_.FillRandom(embedding_, 1.0f, reader.SeedOf("model.embed_tokens"), stream));
  } else {
    AISP_RETURN_IF_ERROR(device_.Copy(embedding_.data, stored.data, stored.bytes(), stream));
  }
  AISP_RETURN_IF_ERROR(device_.Synchronize(stream));
  reader.Release();
  return {};
}

Result<TensorView> LoadedModel::LoadRope(Stream& stream) {
  const AttentionSpec& a = spec_.layers.front().attention;
  const int32_t dim = a.kind == AttentionKind::kLatent ? a.rope_dim : a.head_dim;
  const std::vector<float> table = RopeTable(spec_.rope, dim, options_.max_context);
  AISP_ASSIGN_OR_RETURN(rope_memory_,
                        device_.Allocate(table.size() * sizeof(float), MemoryKind::kDevice));
  AISP_RETURN_IF_ERROR(
      device_.Copy(rope_memory_.data(), table.data(), table.size() * sizeof(float), stream));
  AISP_RETURN_IF_ERROR(device_.Synchronize(stream));
  return TensorView::Dense(rope_memory_.data(), DType::kF32, {options_.max_context, dim});
}

Status LoadedModel::LoadLayers(const LoadContext& context) {
  for (const LayerPlan& plan : CompileLayers(spec_)) {
    Layer layer;
    AISP_ASSIGN_OR_RETURN(layer.attention, LoadAttention(plan, context));
    AISP_ASSIGN_OR_RETURN(layer.mlp, LoadMlp(plan, context));
    layers_.push_back(std::move(layer));
  }
  return {};
}

Status LoadedModel::LoadHead(const LoadContext& context) {
  AISP_ASSIGN_OR_RETURN(final_norm_, LoadVector(context, "model.norm.weight", spec_.hidden));
  const bool tied = spec_.tied_embeddings || !context.weights.Has("lm_head.weight");
  const std::string name = tied ? "model.embed_tokens" : "lm_head";
  // Quantising the head costs more quality than it saves memory, so only if the checkpoint does.
  const StackedPart head[] = {{name, spec_.vocabulary}};
  AISP_ASSIGN_OR_RETURN(head_,
                        LoadStacked(context, {.parts = head,
                                              .in = spec_.hidden,
                                              .keep_precision = context.weight_format.has_value(),
                                              .first_rows = options_.output_tokens}));
  return {};
}

Status LoadedModel::AllocateOutput() {
  const int64_t rows = ops_.RowCapacity(options_.max_logit_rows);
  const size_t input_bytes =
      DeviceArena::Padded(static_cast<size_t>(rows * spec_.hidden) * DTypeBytes(dtype_));
  const size_t logit_bytes = static_cast<size_t>(rows * spec_.vocabulary) * sizeof(float);
  AISP_ASSIGN_OR_RETURN(output_, device_.Allocate(input_bytes + logit_bytes, MemoryKind::kDevice));
  head_input_ = TensorView::Dense(output_.data(), dtype_, {rows, spec_.hidden});
  logits_ = TensorView::Dense(static_cast<std::byte*>(output_.data()) + input_bytes, DType::kF32,
                              {rows, spec_.vocabulary});
  return options_.output_tokens > 0 ? AllocateFirstLogits(rows) : Status{};
}

// The computed logits, and the columns of logits_ that they are copied to in every step; the other
// columns are set here.
Status LoadedModel::AllocateFirstLogits(int64_t rows) {
  const int64_t count = options_.output_tokens;
  const size_t column_bytes = DeviceArena::Padded(static_cast<size_t>(count) * sizeof(int32_t));
  const size_t logit_bytes = static_cast<size_t>(rows * count) * sizeof(float);
  AISP_ASSIGN_OR_RETURN(first_memory_,
                        device_.Allocate(column_bytes + logit_bytes, MemoryKind::kDevice));
  first_logits_ = TensorView::Dense(static_cast<std::byte*>(first_memory_.data()) + column_bytes,
                                    DType::kF32, {rows, count});
  AISP_ASSIGN_OR_RETURN(const auto stream, device_.CreateStream());
  std::vector<int32_t> columns(static_cast<size_t>(count));
  std::iota(columns.begin(), columns.end(), 0);
  AISP_RETURN_IF_ERROR(device_.Copy(first_memory_.data(), columns.data(),
                                    columns.size() * sizeof(int32_t), *stream));
  const std::vector<float> none(static_cast<size_t>(spec_.vocabulary), kNoLogit);
  for (int64_t row = 0; row < rows; ++row) {
    AISP_RETURN_IF_ERROR(
        device_.Copy(logits_.Rows(row, 1).data, none.data(), none.size() * sizeof(float), *stream));
  }
  return device_.Synchronize(*stream);
}

Status LoadedModel::AllocateFeatures() {
  const auto size = static_cast<int64_t>(options_.feature_layers.size()) * spec_.hidden;
  if (size == 0) return {};
  const int64_t rows = ops_.RowCapacity(options_.max_batch_tokens);
  // On a GPU features stay there, for heads that use this dtype anyway.
  const DType dtype = device_.info().asynchronous ? dtype_ : DType::kF32;
  AISP_ASSIGN_OR_RETURN(
      feature_memory_,
      device_.Allocate(static_cast<size_t>(rows * size) * DTypeBytes(dtype), MemoryKind::kDevice));
  features_ = TensorView::Dense(feature_memory_.data(), dtype, {rows, size});
  return {};
}

void LoadedModel::EmitTaps(ProgrammeBuilder& b, int32_t layer) const {
  for (size_t i = 0; i < options_.feature_layers.size(); ++i) {
    if (options_.feature_layers[i] != layer) continue;
    TapParams tap;
    tap.from = workspace_.View(Scratch::kHidden, DType::kF32, spec_.hidden);
    tap.to = features_;
    tap.to.shape[1] = spec_.hidden;
    tap.to.data = static_cast<std::byte*>(features_.data) +
                  i * static_cast<size_t>(spec_.hidden) * DTypeBytes(features_.dtype);
    b.Tap(tap);
  }
}

Result<DeviceBatch> LoadedModel::Upload(const ForwardBatch& batch, int32_t block_tokens,
                                        int32_t pad_to, int32_t place, Stream& stream) {
  return upload_.Upload(batch, spec_.vocabulary, block_tokens, pad_to, place, device_, stream);
}

void LoadedModel::EmitProgramme() {
  ProgrammeBuilder b;
  EmbeddingParams embedding;
  embedding.table = embedding_;
  embedding.hidden = workspace_.View(Scratch::kHidden, DType::kF32, spec_.hidden);
  b.Embed(embedding);
  for (size_t i = 0; i < layers_.size(); ++i) {
    b.SetLayer(static_cast<int32_t>(i));
    EmitTaps(b, static_cast<int32_t>(i));
    layers_[i].attention->Emit(b, workspace_);
    layers_[i].mlp->Emit(b, workspace_);
  }
  b.SetLayer(-1);
  EmitTaps(b, static_cast<int32_t>(layers_.size()));
  const ValueId rows = b.GatherRows();
  const ValueId x = b.Norm(
      rows, {embedding.hidden, nullptr, final_norm_.view, head_input_, 0, spec_.norm_epsilon});
  const bool all = options_.output_tokens == 0;
  ValueId logits = b.Linear(x, {head_.get(), head_input_, all ? logits_ : first_logits_}, "logits");
  if (!all) {
    const auto* const columns = static_cast<const int32_t*>(first_memory_.data());
    logits = b.Spread(logits, {first_logits_, logits_, columns});
  }
  b.Draw(logits);
  programme_ = b.Finish();
}

Status LoadedModel::Bind(std::span<const PagedKvView> layers, int32_t* slot_tokens) {
  AISP_RETURN_IF_ERROR(programme_.BindKv(layers));
  slot_tokens_ = slot_tokens;
  prepared_.emplace(ops_, programme_);
  // Reports shapes that no kernel supports.
  Bucket smallest;
  smallest.sequences = smallest.rows = smallest.rows_per_sequence = smallest.logit_rows = 1;
  smallest.all_logits = true;
  smallest.part = StepPart::kWhole;
  smallest.draws = 1;
  AISP_RETURN_IF_ERROR(Prepare(smallest));
  return {};
}

// Allocates all slots and loads the configured adapters.
Status LoadedModel::LoadAdapters() {
  if (adapters_.slots() == 0) return {};
  adapters_.Bind(&programme_);
  int32_t rank = options_.max_adapter_rank;
  for (const auto& adapter : options_.adapters) rank = std::max(rank, adapter->config().rank);
  AISP_RETURN_IF_ERROR(ops_.ReserveAdapters(programme_, adapters_.slots(), rank));
  for (size_t slot = 0; slot < options_.adapters.size(); ++slot)
    AISP_RETURN_IF_ERROR(SetAdapter(static_cast<int32_t>(slot), options_.adapters[slot]));
  options_.adapters.clear();
  return {};
}

Status LoadedModel::SetPackedAdapter(int32_t slot, PackedAdapter adapter) {
  AISP_ASSIGN_OR_RETURN(const auto stream, device_.CreateStream());
  adapters_.Set(slot, std::move(adapter));
  Status placed = ops_.PlaceAdapter(programme_, slot, *stream);
  if (!placed) {
    adapters_.Set(slot, {});
  } else if (device_.info().asynchronous) {
    adapters_.DropFactors(slot);
  }
  return placed;
}

Status LoadedModel::Enqueue(const DeviceBatch& batch, const StepDraws& draws,
                            const std::function<void(int32_t layer)>& on_layer, Stream& stream) {
  AISP_CHECK_MSG(prepared_, "a step before Bind");
  AISP_ASSIGN_OR_RETURN(PreparedStep* const step,
                        prepared_->For(BucketOf(batch, draws.part, draws.params)));
  StepInputs inputs;
  inputs.batch = batch.ragged;
  inputs.tokens = batch.tokens;
  inputs.slot_of_row = batch.slot_of_row;
  inputs.slot_tokens = slot_tokens_;
  inputs.logit_rows = batch.logit_rows;
  inputs.num_logit_rows = batch.num_logit_rows;
  inputs.adapter_of_row = batch.adapter_of_row;
  inputs.draw = draws.params;
  return step->Run(inputs, on_layer, stream);
}

// A step's residual stream is kept until the next step.
Status LoadedModel::HiddenStates(std::span<const int32_t> rows, std::span<float> out,
                                 Stream& stream) {
  const auto count = static_cast<int64_t>(rows.size());
  AISP_CHECK(out.size() == rows.size() * static_cast<size_t>(spec_.hidden));
  if (count == 0) return {};
  RmsNormParams norm;
  norm.x = workspace_.View(Scratch::kHidden, DType::kF32, spec_.hidden);
  norm.row_indices = rows.data();
  norm.weight = final_norm_.view;
  norm.y = TensorView::Dense(out.data(), DType::kF32, {count, spec_.hidden});
  norm.rows = static_cast<int32_t>(count);
  norm.epsilon = spec_.norm_epsilon;
  return ops_.RmsNorm(norm, stream);
}

}  // namespace

Status Model::SetAdapter(int32_t slot, const std::shared_ptr<const LoraAdapter>& adapter) {
  PackedAdapter packed;
  if (adapter != nullptr) {
    AISP_ASSIGN_OR_RETURN(packed, PackAdapter(*adapter));
  }
  return SetPackedAdapter(slot, std::move(packed));
}

Result<std::unique_ptr<Model>> Model::Load(const std::string& directory,
                                           const ModelOptions& options, Device& device, Ops& ops) {
  AISP_ASSIGN_OR_RETURN(ModelSpec spec, LoadModelSpec(directory));
  auto model = std::make_unique<LoadedModel>(std::move(spec), options, device, ops);
  AISP_RETURN_IF_ERROR(model->Load(directory));
  return model;
}

}  // namespace aisp
