#include "engine/model_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/strings.h"

namespace aisp {
namespace {

ModelExecutorOptions Complete(ModelExecutorOptions options) {
  options.model.max_sequences = options.max_slots;
  options.model.max_logit_rows =
      options.max_slots + options.max_draft_rows + options.max_scored_rows;
  return options;
}

}  // namespace

Result<KvLayout> MakeKvLayout(const KvShape& shape, int32_t block_tokens, DType dtype,
                              int32_t num_blocks, size_t kv_bytes) {
  if (block_tokens < 16 || block_tokens > 128 || block_tokens % 16 != 0) {
    return InvalidArgument(
        fmt::format("a block of {} tokens; 16 to 128 in steps of 16 are possible", block_tokens));
  }
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF8E4M3) {
    return InvalidArgument(
        fmt::format("KV in {} is not supported; f32, bf16 and fp8 are", DTypeName(dtype)));
  }
  KvLayout layout;
  layout.num_layers = shape.num_layers;
  layout.num_kv_heads = shape.num_kv_heads;
  layout.head_dim = shape.head_dim;
  layout.block_tokens = block_tokens;
  layout.dtype = dtype;
  layout.num_blocks = num_blocks;
  if (num_blocks == 0) {
    layout.num_blocks =
        static_cast<int32_t>(std::min<size_t>(kv_bytes / layout.BlockBytes(), INT32_MAX / 2));
  }
  if (layout.num_blocks < 1) {
    return InvalidArgument(fmt::format("{} of KV memory hold no block of {}; give more",
                                       HumanBytes(kv_bytes), HumanBytes(layout.BlockBytes())));
  }
  // Rows address the pool by block * block_tokens + slot in 32 bits.
  if (int64_t{layout.num_blocks} * block_tokens > INT32_MAX) {
    return InvalidArgument(fmt::format("{} blocks of {} tokens; at most {} tokens are possible",
                                       layout.num_blocks, block_tokens, INT32_MAX));
  }
  return layout;
}

Result<KvLayout> MakeKvLayout(const ModelExecutorOptions& options, const Model& model,
                              const Device& device) {
  int32_t blocks = options.num_blocks;
  if (blocks == 0 && options.kv_bytes == 0 && options.choose_blocks) {
    AISP_ASSIGN_OR_RETURN(const MemoryInfo memory, device.GetMemoryInfo());
    AISP_ASSIGN_OR_RETURN(blocks, options.choose_blocks(memory));
  }
  return MakeKvLayout(model.spec().kv(), options.block_tokens,
                      options.kv_dtype.value_or(model.compute_dtype()), blocks, options.kv_bytes);
}

std::vector<PagedKvView> KvViews(const KvLayout& layout, void* pool) {
  std::vector<PagedKvView> views;
  views.reserve(static_cast<size_t>(layout.num_layers));
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    views.push_back({static_cast<std::byte*>(pool) + layout.Offset(layer, BlockId(0)), layout.dtype,
                     layout.num_kv_heads, layout.head_dim, layout.block_tokens, layout.num_blocks});
  }
  return views;
}

void CopyRangesOf(const KvLayout& layout, std::span<const CopiedBlock> copies,
                  std::vector<CopyRange>* ranges) {
  ranges->clear();
  for (const CopiedBlock& copy : copies) {
    for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
      ranges->push_back({layout.Offset(layer, copy.from), layout.Offset(layer, copy.to),
                         layout.LayerBlockBytes()});
    }
  }
}

Result<std::unique_ptr<ModelExecutor>> ModelExecutor::Create(const std::string& model_directory,
                                                             const ModelExecutorOptions& options,
                                                             Device& device, Ops& ops) {
  if (device.info().asynchronous) {
    return Unimplemented(fmt::format(
        "this executor computes inside Launch; a {} device needs another one", device.info().kind));
  }
  if (options.max_slots < 1) return InvalidArgument("max_slots has to be positive");
  std::unique_ptr<ModelExecutor> executor(new ModelExecutor(Complete(options), device));
  AISP_RETURN_IF_ERROR(executor->Start(model_directory, ops));
  return executor;
}

Status ModelExecutor::Start(const std::string& model_directory, Ops& ops) {
  ops_ = &ops;
  AISP_ASSIGN_OR_RETURN(model_, Model::Load(model_directory, options_.model, device_, ops));
  const ModelSpec& spec = model_->spec();
  AISP_ASSIGN_OR_RETURN(layout_, MakeKvLayout(options_, *model_, device_));
  AISP_ASSIGN_OR_RETURN(pool_, device_.Allocate(layout_.PoolBytes(), MemoryKind::kShareable));
  AISP_ASSIGN_OR_RETURN(slot_tokens_,
                        device_.Allocate(static_cast<size_t>(options_.max_slots) * sizeof(int32_t),
                                         MemoryKind::kDevice));
  AISP_ASSIGN_OR_RETURN(stream_, device_.CreateStream());
  sampler_.emplace(spec.vocabulary);
  return model_->Bind(KvViews(layout_, pool_.data()), static_cast<int32_t*>(slot_tokens_.data()));
}

Status ModelExecutor::Forward(const StepInput& input) {
  for (int32_t block : input.batch.block_tables)
    AISP_CHECK(block >= 0 && block < layout_.num_blocks);
  std::function<void(int32_t)> on_layer;
  const bool pushes = input.sink != nullptr && !input.slices.empty();
  if (pushes || input.between_layers) {
    on_layer = [&input, pushes](int32_t layer) {
      if (pushes) input.sink->OnLayer(layer, input.slices);
      if (input.between_layers) input.between_layers();
    };
  }
  CopyRangesOf(layout_, input.copies, &ranges_);
  AISP_RETURN_IF_ERROR(device_.CopyRanges(pool_.data(), pool_.data(), ranges_, *stream_));
  AISP_ASSIGN_OR_RETURN(const DeviceBatch batch,
                        model_->Upload(input.batch, layout_.block_tokens, 0, 0, *stream_));
  return model_->Enqueue(batch, {}, on_layer, *stream_);
}

void ModelExecutor::DrawTokens(const StepInput& input) {
  const TensorView logits = model_->logits();
  const auto vocabulary = static_cast<size_t>(logits.cols());
  auto* slots = static_cast<int32_t*>(slot_tokens_.data());
  result_.tokens.clear();
  for (const SampleRow& row : input.samples) {
    AISP_CHECK(row.logit_index >= 0 &&
               static_cast<size_t>(row.logit_index) < input.batch.logit_rows.size());
    AISP_CHECK(row.slot >= 0 && row.slot < options_.max_slots);
    const std::span<const float> values(
        logits.as<float>() + static_cast<size_t>(row.logit_index) * vocabulary, vocabulary);
    result_.tokens.push_back(sampler_->Sample(values, row));
    if (result_.tokens.back().token >= 0) slots[row.slot] = result_.tokens.back().token;
  }
}

void ModelExecutor::ScoreRows(const StepInput& input) {
  const TensorView logits = model_->logits();
  const auto vocabulary = static_cast<size_t>(logits.cols());
  result_.scores.clear();
  for (const ScoredRow& row : input.scored) {
    AISP_CHECK(row.logit_index >= 0 &&
               static_cast<size_t>(row.logit_index) < input.batch.logit_rows.size());
    const std::span<const float> values(
        logits.as<float>() + static_cast<size_t>(row.logit_index) * vocabulary, vocabulary);
    result_.scores.push_back(Sampler::Score(values, row));
  }
}

Status ModelExecutor::ReadHidden(const StepInput& input) {
  result_.hidden.resize(input.hidden_rows.size() * static_cast<size_t>(hidden_size()));
  return model_->HiddenStates(input.hidden_rows, result_.hidden, *stream_);
}

void ModelExecutor::ReadFeatures(const StepInput& input) {
  const TensorView features = model_->features();
  const auto size = static_cast<size_t>(feature_size());
  result_.features.resize(input.feature_rows.size() * size);
  for (size_t i = 0; i < input.feature_rows.size(); ++i) {
    const float* const row = features.as<float>() + input.feature_rows[i] * features.strides[0];
    std::copy(row, row + size, result_.features.data() + i * size);
  }
}

Result<Ticket> ModelExecutor::Launch(const StepInput& input) {
  AISP_CHECK_MSG(!in_flight_, "a step is launched while another one is not collected");
  const SteadyClock clock;
  const Instant begin = clock.Now();
  AISP_RETURN_IF_ERROR(Forward(input));
  if (input.before_draw) input.before_draw();
  DrawTokens(input);
  ScoreRows(input);
  AISP_RETURN_IF_ERROR(ReadHidden(input));
  ReadFeatures(input);
  result_.device_time = clock.Now() - begin;
  in_flight_ = true;
  return Ticket{++launched_};
}

Result<StepResult> ModelExecutor::Collect(Ticket ticket) {
  AISP_CHECK_MSG(in_flight_ && ticket.value == launched_,
                 "a step is collected that is not in flight");
  in_flight_ = false;
  return std::exchange(result_, {});
}

}  // namespace aisp
