#include "model/medusa_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "common/check.h"
#include "model/bf16.h"
#include "model/feature_head.h"
#include "model/files.h"
#include "model/json_reader.h"
#include "model/tensor_cutter.h"

namespace aisp {
namespace {

// A bucket of independent rows.
Bucket BucketOfRows(int32_t rows) {
  Bucket bucket;
  bucket.rows = bucket.sequences = rows;
  bucket.rows_per_sequence = 1;
  return bucket;
}

Bucket BucketOfDraws(const StepDraws& draws) {
  Bucket bucket = BucketOfRows(draws.params.num_rows);
  bucket.part = StepPart::kDraw;
  bucket.draws = draws.params.num_rows;
  bucket.draw_filters = draws.params.filters;
  bucket.draw_masks = draws.params.masks != nullptr;
  return bucket;
}

}  // namespace

Result<MedusaSpec> ParseMedusaSpec(std::string_view config_json, const ModelSpec& target) {
  AISP_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(config_json, "config.json"));
  JsonReader r(json, "config.json");
  MedusaSpec spec;
  spec.heads = r.Int("medusa_num_heads", 1, 64);
  spec.blocks = r.IntOr("medusa_num_layers", 1, 0, 16);
  // The first published heads lack these two keys; their tensors show the values.
  spec.hidden = r.IntOr("hidden_size", target.hidden, 1, 1 << 24);
  spec.vocabulary = r.IntOr("vocab_size", target.vocabulary, 1, 1 << 28);
  spec.draft_vocabulary = r.IntOr("truncated_vocab_size", target.vocabulary, 1, target.vocabulary);
  AISP_RETURN_IF_ERROR(r.status());
  const auto refuse = [](std::string_view what, int32_t have, int32_t want) {
    return InvalidArgument(
        fmt::format("config.json: {} is {}, and the target's is {}", what, have, want));
  };
  if (spec.hidden != target.hidden) return refuse("hidden_size", spec.hidden, target.hidden);
  if (spec.vocabulary != target.vocabulary)
    return refuse("vocab_size", spec.vocabulary, target.vocabulary);
  return spec;
}

Result<MedusaSpec> LoadMedusaSpec(const std::string& directory, const ModelSpec& target) {
  const bool is_file = directory.ends_with(".json");
  AISP_ASSIGN_OR_RETURN(const std::string text,
                        ReadTextFile(is_file ? directory : directory + "/config.json"));
  auto spec = ParseMedusaSpec(text, target);
  if (!spec) return tl::unexpected(spec.error().WithContext(directory));
  return spec;
}

Result<std::unique_ptr<MedusaHeads>> MedusaHeads::Load(const std::string& directory,
                                                       const MedusaSpec& spec, const Model& target,
                                                       const MedusaOptions& options, Device& device,
                                                       Ops& ops) {
  std::unique_ptr<MedusaHeads> heads(new MedusaHeads(spec, target, options, device, ops));
  AISP_ASSIGN_OR_RETURN(heads->stream_, device.CreateStream());
  AISP_RETURN_IF_ERROR(heads->LoadWeights(directory));
  AISP_RETURN_IF_ERROR(heads->Allocate());
  AISP_RETURN_IF_ERROR(heads->FillTables());
  heads->EmitProgrammes();
  return heads;
}

MedusaHeads::MedusaHeads(const MedusaSpec& spec, const Model& target, const MedusaOptions& options,
                         Device& device, Ops& ops)
    : spec_(spec),
      target_(target),
      options_(options),
      device_(device),
      ops_(ops),
      feature_dtype_(device.info().asynchronous ? target.compute_dtype() : DType::kF32),
      heads_(static_cast<size_t>(spec.heads)) {}

// Without a token map a head covers the target's whole vocabulary or, with random weights, tokens
// spread over it.
Status MedusaHeads::ReadTokenMap(const Checkpoint* checkpoint) {
  const int64_t count = spec_.draft_vocabulary, all = vocabulary();
  for (int64_t i = 0; i < count; ++i)
    target_tokens_.push_back(static_cast<TokenId>(i * all / count));
  if (checkpoint == nullptr || count == all) return {};
  const std::array<int64_t, 1> shape = {count};
  AISP_ASSIGN_OR_RETURN(const TensorView map, checkpoint->Get("token_map", shape));
  if (map.dtype != DType::kI64) {
    return InvalidArgument(fmt::format("{}: token_map has dtype {}; i64 is expected",
                                       checkpoint->directory(), DTypeName(map.dtype)));
  }
  for (int64_t i = 0; i < count; ++i) {
    int64_t token = 0;
    std::memcpy(&token, static_cast<const std::byte*>(map.data) + sizeof(token) * size_t(i),
                sizeof(token));
    if (token < 0 || token >= all) {
      return InvalidArgument(fmt::format(
          "{}: token_map[{}] is {}, which is outside of the target's vocabulary of {} tokens",
          checkpoint->directory(), i, token, all));
    }
    target_tokens_[static_cast<size_t>(i)] = static_cast<TokenId>(token);
  }
  return {};
}

Status MedusaHeads::LoadWeights(const std::string& directory) {
  std::unique_ptr<Checkpoint> checkpoint;
  if (!options_.random_weights) {
    AISP_ASSIGN_OR_RETURN(checkpoint, Checkpoint::Open(directory));
  }
  AISP_RETURN_IF_ERROR(ReadTokenMap(checkpoint.get()));
  WeightReader reader(checkpoint.get(), QuantSpec{});
  if (options_.random_weights) {
    reader.MakeRandom(*options_.random_weights, beside_host() ? nullptr : &ops_, stream_.get());
  }
  Workspace unused;
  LoadContext c{device_,           ops_,        *stream_, reader, unused, target_.compute_dtype(),
                options_.max_rows, TensorView{}};
  c.weight_format = options_.weight_format;
  for (int32_t i = 0; i < spec_.heads; ++i) {
    Head& head = heads_[static_cast<size_t>(i)];
    for (int32_t block = 0; block < spec_.blocks; ++block) {
      const StackedPart part{fmt::format("{}.{}.linear", i, block), hidden()};
      AISP_ASSIGN_OR_RETURN(head.blocks.emplace_back(),
                            LoadStacked(c, {.parts = {&part, 1}, .in = hidden(), .bias = true}));
    }
    AISP_ASSIGN_OR_RETURN(
        head.matrix, LoadLinear(c, fmt::format("{}.{}", i, spec_.blocks), spec_.draft_vocabulary,
                                hidden(), Epilogue::kStore));
  }
  return {};
}

Status MedusaHeads::Allocate() {
  const int64_t rows = ops_.RowCapacity(options_.max_rows);
  const auto cut = [&](TensorCutter c) {
    features_ = c.Take(feature_dtype_, rows, hidden());
    for (TensorView* each : {&normed_, &x_, &added_}) *each = c.Take(DType::kF32, rows, hidden());
    if (rounds()) {
      for (TensorView* each : {&normed_rounded_, &rounded_})
        *each = c.Take(target_.compute_dtype(), rows, hidden());
    }
    if (beside_host()) target_logits_ = c.Take(DType::kF32, rows * spec_.heads, spec_.vocabulary);
    // Spread logits are consumed at once, so all heads share one buffer for their own.
    const TensorView own =
        spreads() ? c.Take(DType::kF32, rows, spec_.draft_vocabulary) : TensorView{};
    for (size_t i = 0; i < heads_.size(); ++i) {
      heads_[i].logits = spreads()       ? own
                         : beside_host() ? target_logits_.Rows(static_cast<int64_t>(i) * rows, rows)
                                         : c.Take(DType::kF32, rows, spec_.draft_vocabulary);
    }
    return c.used();
  };
  const size_t bytes = cut(TensorCutter(nullptr));
  AISP_ASSIGN_OR_RETURN(memory_, device_.Allocate(bytes, MemoryKind::kDevice));
  cut(TensorCutter(static_cast<std::byte*>(memory_.data())));
  return {};
}

// Each token's column in a head's logits; tokens without one never get a logit.
Status MedusaHeads::FillTables() {
  if (!spreads()) return {};
  const size_t bytes = target_tokens_.size() * sizeof(TokenId);
  AISP_ASSIGN_OR_RETURN(columns_, device_.Allocate(bytes, MemoryKind::kDevice));
  AISP_RETURN_IF_ERROR(device_.Copy(columns_.data(), target_tokens_.data(), bytes, *stream_));
  const std::vector<float> none(static_cast<size_t>(spec_.vocabulary), kNoLogit);
  for (int64_t row = 0; row < target_logits_.rows(); ++row) {
    AISP_RETURN_IF_ERROR(device_.Copy(target_logits_.Rows(row, 1).data, none.data(),
                                      none.size() * sizeof(float), *stream_));
  }
  return device_.Synchronize(*stream_);
}

void MedusaHeads::EmitProgrammes() {
  const auto emitted = [&](const auto& emit, Programme* programme,
                           std::optional<PreparedSteps>* prepared) {
    ProgrammeBuilder b;
    emit(b);
    *programme = b.Finish();
    AISP_CHECK(programme->BindKv({}));
    prepared->emplace(ops_, *programme);
  };
  emitted([&](ProgrammeBuilder& b) { EmitNorm(b); }, &norm_, &prepared_norm_);
  for (size_t i = 0; i < heads_.size(); ++i) {
    emitted([&](ProgrammeBuilder& b) { EmitHead(b, i); }, &heads_[i].programme,
            &heads_[i].prepared);
  }
  if (!beside_host()) return;
  emitted([&](ProgrammeBuilder& b) { b.Draw(b.Given(target_logits_)); }, &draw_, &prepared_draw_);
}

void MedusaHeads::EmitNorm(ProgrammeBuilder& b) const {
  const ValueId features = b.Given(features_);
  const float epsilon = target_.spec().norm_epsilon;
  b.Norm(features, {features_, nullptr, target_.final_norm(), normed_, 0, epsilon});
  if (rounds())
    b.Norm(features, {features_, nullptr, target_.final_norm(), normed_rounded_, 0, epsilon});
}

void MedusaHeads::EmitHead(ProgrammeBuilder& b, size_t index) const {
  const Head& head = heads_[index];
  TensorView residual = normed_, read = normed_input();
  ValueId x = b.Given(read);
  for (const auto& block : head.blocks) {
    const ValueId added = b.Linear(x, {block.get(), read, added_}, "block");
    x = b.SiluAdd(x, added, {residual, added_, x_, rounds() ? rounded_ : TensorView{}});
    residual = x_;
    read = input();
  }
  const ValueId logits = b.Linear(x, {head.matrix.get(), read, head.logits}, "logits");
  if (!spreads()) return;
  const TensorView all =
      target_logits_.Rows(LogitIndex(static_cast<int32_t>(index), 0), features_.rows());
  b.Spread(logits, {head.logits, all, static_cast<const int32_t*>(columns_.data())});
}

void MedusaHeads::FormatFeatures(std::span<const float> rows, std::byte* to) const {
  if (feature_dtype_ == DType::kF32) {
    std::memcpy(to, rows.data(), rows.size_bytes());
  } else {
    AISP_CHECK(feature_dtype_ == DType::kBF16);
    RoundToBf16(rows, reinterpret_cast<uint16_t*>(to));
  }
}

Status MedusaHeads::TakeFeatures(std::span<const std::byte* const> rows, Stream& stream) {
  AISP_CHECK(!rows.empty() && rows.size() <= static_cast<size_t>(options_.max_rows));
  // `base` is the address that offsets are relative to.
  const std::byte* const base = *std::min_element(rows.begin(), rows.end());
  ranges_.clear();
  for (size_t i = 0; i < rows.size(); ++i)
    ranges_.push_back({static_cast<size_t>(rows[i] - base), i * feature_bytes(), feature_bytes()});
  return device_.CopyRanges(features_.data, base, ranges_, stream);
}

Status MedusaHeads::Enqueue(int32_t rows, int32_t heads, const StepDraws& draws, Stream& stream) {
  AISP_CHECK(rows <= options_.max_rows && heads <= spec_.heads);
  StepInputs inputs;
  inputs.batch.rows = inputs.batch.num_sequences = rows;
  inputs.batch.longest_rows = 1;
  const Bucket bucket = BucketOfRows(rows);
  AISP_ASSIGN_OR_RETURN(PreparedStep* const norm, prepared_norm_->For(bucket));
  AISP_RETURN_IF_ERROR(norm->Run(inputs, {}, stream));
  for (int32_t i = 0; i < heads; ++i) {
    AISP_ASSIGN_OR_RETURN(PreparedStep* const head,
                          heads_[static_cast<size_t>(i)].prepared->For(bucket));
    AISP_RETURN_IF_ERROR(head->Run(inputs, {}, stream));
  }
  return draws.params.num_rows > 0 ? EnqueueDraws(draws, stream) : Status{};
}

Status MedusaHeads::EnqueueDraws(const StepDraws& draws, Stream& stream) {
  AISP_ASSIGN_OR_RETURN(PreparedStep* const draw, prepared_draw_->For(BucketOfDraws(draws)));
  StepInputs inputs;
  inputs.draw = draws.params;
  return draw->Run(inputs, {}, stream);
}

Status MedusaHeads::Prepare(int32_t rows, int32_t heads, const StepDraws& draws) {
  const Bucket bucket = BucketOfRows(rows);
  AISP_RETURN_IF_ERROR(prepared_norm_->For(bucket));
  for (int32_t i = 0; i < heads; ++i)
    AISP_RETURN_IF_ERROR(heads_[static_cast<size_t>(i)].prepared->For(bucket));
  if (draws.params.num_rows > 0) AISP_RETURN_IF_ERROR(prepared_draw_->For(BucketOfDraws(draws)));
  return {};
}

Status MedusaHeads::Run(std::span<const float* const> rows, int32_t heads) {
  const auto count = static_cast<int32_t>(rows.size());
  AISP_CHECK(count <= options_.max_rows && !beside_host());
  for (int32_t i = 0; i < count; ++i)
    std::copy_n(rows[static_cast<size_t>(i)], hidden(), features_.as<float>() + i * hidden());
  return Enqueue(count, heads, {}, *stream_);
}

std::span<const float> MedusaHeads::Logits(int32_t head, int32_t row) const {
  const TensorView& logits = heads_[static_cast<size_t>(head)].logits;
  return {logits.as<float>() + row * logits.cols(), static_cast<size_t>(logits.cols())};
}

}  // namespace aisp
