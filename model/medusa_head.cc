#include "model/medusa_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "common/check.h"
#include "model/bf16.h"
#include "model/files.h"
#include "model/json_reader.h"
#include "model/tensor_cutter.h"

namespace aisp {
namespace {

std::span<float> Values(const TensorView& rows, int32_t count) {
  return {rows.as<float>(), static_cast<size_t>(count * rows.cols())};
}

}  // namespace

Result<MedusaSpec> ParseMedusaSpec(std::string_view config_json, const ModelSpec& target) {
  AISP_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(config_json, "config.json"));
  JsonReader r(json, "config.json");
  MedusaSpec spec;
  spec.heads = r.Int("medusa_num_heads", 1, 64);
  spec.blocks = r.IntOr("medusa_num_layers", 1, 0, 16);
  // Heads as they were first published do not say these two; their tensors do.
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
  if (device.info().asynchronous) {
    return Unimplemented(fmt::format(
        "speculative_config: method medusa does not run on a {} device; eagle3 and draft_model do",
        device.info().kind));
  }
  std::unique_ptr<MedusaHeads> heads(new MedusaHeads(spec, target, options, device, ops));
  AISP_ASSIGN_OR_RETURN(heads->stream_, device.CreateStream());
  AISP_RETURN_IF_ERROR(heads->LoadWeights(directory));
  AISP_RETURN_IF_ERROR(heads->Allocate());
  return heads;
}

// Without one, a head has all of the target's vocabulary, or, with random weights, tokens from all
// over it.
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
  if (options_.random_weights) reader.MakeRandom(*options_.random_weights, &ops_, stream_.get());
  Workspace unused;
  const LoadContext c{
      device_,           ops_,        *stream_, reader, unused, target_.compute_dtype(),
      options_.max_rows, TensorView{}};
  for (int32_t i = 0; i < spec_.heads; ++i) {
    Head& head = heads_.emplace_back();
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
    for (TensorView* each : {&features_, &normed_, &x_, &added_})
      *each = c.Take(DType::kF32, rows, hidden());
    rounded_ = c.Take(target_.compute_dtype(), rows, hidden());
    for (Head& head : heads_) head.logits = c.Take(DType::kF32, rows, spec_.draft_vocabulary);
    return c.used();
  };
  const size_t bytes = cut(TensorCutter(nullptr));
  AISP_ASSIGN_OR_RETURN(memory_, device_.Allocate(bytes, MemoryKind::kDevice));
  cut(TensorCutter(static_cast<std::byte*>(memory_.data())));
  return {};
}

Status MedusaHeads::Run(std::span<const float* const> rows, int32_t heads) {
  const auto count = static_cast<int32_t>(rows.size());
  AISP_CHECK(count <= options_.max_rows && heads <= spec_.heads);
  for (int32_t i = 0; i < count; ++i)
    std::copy_n(rows[static_cast<size_t>(i)], hidden(), features_.as<float>() + i * hidden());
  RmsNormParams norm;
  norm.x = features_;
  norm.weight = target_.final_norm();
  norm.y = normed_;
  norm.rows = count;
  norm.epsilon = target_.spec().norm_epsilon;
  AISP_RETURN_IF_ERROR(ops_.RmsNorm(norm, *stream_));
  for (int32_t i = 0; i < heads; ++i)
    AISP_RETURN_IF_ERROR(RunHead(heads_[static_cast<size_t>(i)], count));
  return {};
}

Status MedusaHeads::RunHead(const Head& head, int32_t rows) {
  std::ranges::copy(Values(normed_, rows), x_.as<float>());
  for (const auto& block : head.blocks) {
    AISP_RETURN_IF_ERROR(ops_.Linear({block.get(), Input(rows), added_, rows}, *stream_));
    const std::span<float> x = Values(x_, rows), added = Values(added_, rows);
    for (size_t i = 0; i < x.size(); ++i) x[i] += added[i] / (1 + std::exp(-added[i]));
  }
  return ops_.Linear({head.matrix.get(), Input(rows), head.logits, rows}, *stream_);
}

const TensorView& MedusaHeads::Input(int32_t rows) {
  if (rounded_.dtype == DType::kF32) return x_;
  RoundToBf16(Values(x_, rows), rounded_.as<uint16_t>());
  return rounded_;
}

std::span<const float> MedusaHeads::Logits(int32_t head, int32_t row) const {
  const TensorView& logits = heads_[static_cast<size_t>(head)].logits;
  return {logits.as<float>() + row * logits.cols(), static_cast<size_t>(logits.cols())};
}

}  // namespace aisp
