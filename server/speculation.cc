#include "server/speculation.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "common/log.h"
#include "common/strings.h"
#include "engine/async_draft_head.h"
#include "engine/async_executor.h"
#include "engine/async_medusa_draws.h"
#include "engine/draft_model.h"
#include "engine/eagle.h"
#include "engine/medusa.h"
#include "engine/model_draft_head.h"
#include "model/medusa_head.h"
#include "server/device_defaults.h"
#include "server/draft_memory.h"
#include "speculation/ngram_proposer.h"
#include "speculation/suffix_proposer.h"
#include "text/plain_tokenizer.h"

namespace aisp {

int32_t MaxDraftRows(const Config::Engine& engine) {
  // Forced runs concern constrained sequences only, so fewer rows suffice.
  const int64_t most = engine.speculative_config != "off" ? 128
                       : engine.forced_runs == "on"       ? 64
                                                          : 0;
  return static_cast<int32_t>(
      std::clamp<int64_t>(engine.max_batch_tokens - engine.max_sequences, 0, most));
}

Result<SpeculationConfig> SpeculationConfigOf(const Config& config) {
  const std::string& text = config.engine.speculative_config;
  AISP_ASSIGN_OR_RETURN(SpeculationConfig parsed, ParseSpeculationConfig(text));
  if (parsed.method == SpeculationConfig::Method::kOff) return parsed;
  const int32_t rows = MaxDraftRows(EngineSettingsOf(config));
  if (parsed.num_tokens > rows) {
    return InvalidArgument(fmt::format(
        "num_speculative_tokens is {} and a step has {} rows for proposed tokens; lower it, or "
        "raise --max-batch-tokens above --max-num-seqs",
        parsed.num_tokens, rows));
  }
  return parsed;
}

Status CheckDraftModel(const std::string& draft, int32_t draft_vocabulary,
                       const std::string& draft_tokenizer, const ServedModel& served) {
  if (draft_vocabulary != served.spec.vocabulary) {
    return InvalidArgument(fmt::format(
        "speculative_config: the draft model '{}' has a vocabulary of {} tokens and '{}' one of "
        "{}; a draft needs the same",
        draft, draft_vocabulary, served.name, served.spec.vocabulary));
  }
  const std::string own = served.tokenizer ? served.tokenizer->Fingerprint() : "";
  if (draft_tokenizer == own) return {};
  const auto shown = [](const std::string& digest) { return digest.empty() ? "none" : digest; };
  return InvalidArgument(fmt::format(
      "speculative_config: the tokenizer of the draft model '{}' is {} and that of '{}' is {}; a "
      "draft needs the same",
      draft, shown(draft_tokenizer), served.name, shown(own)));
}

std::string DraftModelFolder(const std::string& named, const ServedModel& served) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::is_directory(named, error) || named.find('/') != std::string::npos) return named;
  const fs::path beside = fs::path(served.path).parent_path() / named;
  if (fs::is_directory(beside, error)) return beside.string();
  const std::string shape = beside.string() + ".json";
  return fs::exists(shape, error) ? shape : named;
}

std::string MtpFolder(const SpeculationConfig& chosen, const ServedModel& served) {
  return chosen.model.empty() ? served.path : DraftModelFolder(chosen.model, served);
}

namespace {

Status CheckModelIsThere(const SpeculationConfig& chosen, const ServedModel& served) {
  std::error_code error;
  const bool there = chosen.model.empty() ||
                     std::filesystem::exists(DraftModelFolder(chosen.model, served), error);
  if (there) return {};
  return NotFound(fmt::format(
      "speculative_config: the model '{}' is no folder, and there is none of that name beside '{}'",
      chosen.model, served.path));
}

// Enough blocks for all slots at full length, at most as many as the target's pool.
int32_t DraftBlocks(const ServedModel& served, const Backend& backend) {
  const KvLayout& kv = backend.executor->kv_layout();
  const int64_t most = int64_t{backend.executor->max_slots()} * kv.BlocksFor(served.max_model_len);
  return static_cast<int32_t>(std::min<int64_t>(kv.num_blocks, most));
}

Result<ModelExecutorOptions> DraftOptions(const SpeculationConfig& chosen, const ModelSpec& spec,
                                          const DraftModelOptions& draft, const ServedModel& served,
                                          const Backend& backend) {
  const bool gpu = backend.device->info().asynchronous;
  ModelExecutorOptions options;
  options.model.compute_dtype = backend.executor->model().compute_dtype();
  options.model.random_weights = backend.random_weights;
  options.model.weight_format =
      chosen.quantization.empty() ? backend.weight_format : WeightFormatOf(chosen.quantization);
  options.model.max_context = std::min(served.max_model_len, spec.max_position);
  options.max_slots = backend.executor->max_slots();
  options.max_scored_rows = 0;
  if (chosen.draft_vocabulary > spec.vocabulary) {
    return InvalidArgument(fmt::format(
        "speculative_config: draft_vocab_size is {} and the draft model has a vocabulary of {}; "
        "lower it, or leave it out",
        chosen.draft_vocabulary, spec.vocabulary));
  }
  options.model.output_tokens = chosen.draft_vocabulary;
  options.model.max_batch_tokens =
      std::max(draft.catch_up_tokens, DraftModelProposer::kTailRows * options.max_slots);
  // A GPU's kernels are built for the target's maximum of rows.
  const int32_t most = backend.executor->max_batch_tokens();
  if (gpu && options.model.max_batch_tokens > most) {
    return InvalidArgument(fmt::format(
        "speculative_config: a draft model takes up to {} rows a step for {} sequences, and "
        "engine.max_batch_tokens is {}; raise it (--max-batch-tokens) or lower --max-num-seqs",
        options.model.max_batch_tokens, options.max_slots, most));
  }
  options.block_tokens = backend.executor->kv_layout().block_tokens;
  options.num_blocks = DraftBlocks(served, backend);
  if (gpu) {
    options.kv_dtype = backend.executor->kv_layout().dtype;
    options.max_draft_rows = kDraftTailRows;
  }
  return options;
}

Result<std::unique_ptr<Proposer>> LoadDraftModel(const SpeculationConfig& chosen,
                                                 const ServedModel& served, const Backend& backend,
                                                 const Clock* clock) {
  const std::string folder = DraftModelFolder(chosen.model, served);
  AISP_ASSIGN_OR_RETURN(const ModelSpec spec, LoadModelSpec(folder));
  auto tokenizer = Tokenizer::Load(folder);
  const bool shape = !tokenizer && tokenizer.error().code == Code::kNotFound;
  if (shape && backend.random_weights) tokenizer = MakePlainTokenizer(spec.vocabulary);
  const bool none = !tokenizer && tokenizer.error().code == Code::kNotFound;
  if (!tokenizer && !none) return tl::unexpected(tokenizer.error());
  AISP_RETURN_IF_ERROR(
      CheckDraftModel(folder, spec.vocabulary, none ? "" : (*tokenizer)->Fingerprint(), served));
  const DraftModelOptions draft{.min_probability = chosen.min_probability};
  AISP_ASSIGN_OR_RETURN(const ModelExecutorOptions options,
                        DraftOptions(chosen, spec, draft, served, backend));
  std::unique_ptr<Executor> executor;
  if (backend.device->info().asynchronous) {
    AISP_ASSIGN_OR_RETURN(executor,
                          AsyncExecutor::Create(folder, {.base = options, .use_graphs = true},
                                                *backend.device, *backend.ops));
  } else {
    AISP_ASSIGN_OR_RETURN(executor,
                          ModelExecutor::Create(folder, options, *backend.device, *backend.ops));
  }
  const KvLayout& kv = executor->kv_layout();
  LogInfo("draft model loaded",
          {{"model", folder}, {"kv_blocks", kv.num_blocks}, {"kv", HumanBytes(kv.PoolBytes())}});
  return std::make_unique<DraftModelProposer>(draft, std::move(executor), clock);
}

// The format of a head's weights: as configured, else the target's, but FP8 on a GPU where the
// choice is free. It affects which tokens are proposed, never the output.
std::optional<WeightFormat> HeadFormat(const SpeculationConfig& chosen,
                                       std::optional<WeightFormat> target, DType compute,
                                       QuantFormat stored, bool gpu) {
  if (!chosen.quantization.empty()) return WeightFormatOf(chosen.quantization);
  const bool free_choice =
      target ? *target == WeightFormat::kCompute : stored == QuantFormat::kNone;
  return gpu && free_choice && compute == DType::kBF16 ? WeightFormat::kFp8 : target;
}

Result<DraftHeadOptions> HeadOptions(const SpeculationConfig& chosen, const ModelSpec& head,
                                     const ServedModel& served, const Backend& backend) {
  const bool gpu = backend.device->info().asynchronous;
  const ServingExecutor& target = *backend.executor;
  DraftHeadOptions options;
  options.head.compute_dtype = target.model().compute_dtype();
  options.head.random_weights = backend.random_weights;
  options.head.weight_format =
      HeadFormat(chosen, backend.weight_format, options.head.compute_dtype, head.quant.format, gpu);
  options.head.max_sequences = target.max_slots();
  options.head.max_rows = gpu ? DraftHeadRows(target.max_batch_tokens())
                              : std::max(target.max_batch_tokens(),
                                         EagleProposer::kWaiting * options.head.max_sequences);
  // A draft step has at least two rows per sequence: the last token and one accepted draft token.
  if (options.head.max_rows < 2 * options.head.max_sequences) {
    return InvalidArgument(fmt::format(
        "speculative_config: {} takes up two rows a step for each of {} sequences, and a step "
        "has {}; raise engine.max_batch_tokens (--max-batch-tokens) or lower --max-num-seqs",
        MethodName(chosen.method), options.head.max_sequences, options.head.max_rows));
  }
  options.head.max_context = std::min(served.max_model_len, head.max_position);
  options.block_tokens = target.kv_layout().block_tokens;
  options.kv_dtype = gpu ? target.kv_layout().dtype : options.head.compute_dtype;
  options.num_blocks = DraftBlocks(served, backend);
  return options;
}

std::unique_ptr<Proposer> ProposerOver(std::unique_ptr<DraftHead> head,
                                       const SpeculationConfig& chosen, const std::string& folder) {
  const KvLayout& kv = head->kv_layout();
  LogInfo("draft head loaded",
          {{"model", folder}, {"kv_blocks", kv.num_blocks}, {"kv", HumanBytes(kv.PoolBytes())}});
  return std::make_unique<EagleProposer>(EagleOptions{.min_probability = chosen.min_probability,
                                                      .method = MethodName(chosen.method),
                                                      .feature_window = chosen.prompt_features},
                                         std::move(head));
}

Result<std::unique_ptr<Proposer>> LoadEagle(const SpeculationConfig& chosen,
                                            const ServedModel& served, const Backend& backend) {
  const std::string folder = DraftModelFolder(chosen.model, served);
  const Model& model = backend.executor->model();
  AISP_ASSIGN_OR_RETURN(const EagleSpec spec, LoadEagleSpec(folder, model.spec()));
  AISP_ASSIGN_OR_RETURN(const DraftHeadOptions options,
                        HeadOptions(chosen, spec.layer, served, backend));
  std::unique_ptr<DraftHead> head;
  if (backend.device->info().asynchronous) {
    AISP_ASSIGN_OR_RETURN(
        head, AsyncDraftHead::Create(folder, spec, model.embedding(), options,
                                     *backend.executor->stream(), *backend.device, *backend.ops));
  } else {
    AISP_ASSIGN_OR_RETURN(head, ModelDraftHead::Create(folder, spec, model.embedding(), options,
                                                       *backend.device, *backend.ops));
  }
  return ProposerOver(std::move(head), chosen, folder);
}

Result<std::unique_ptr<Proposer>> LoadMtp(const SpeculationConfig& chosen,
                                          const ServedModel& served, const Backend& backend) {
  const std::string folder = MtpFolder(chosen, served);
  const Model& model = backend.executor->model();
  AISP_ASSIGN_OR_RETURN(const MtpSpec spec, LoadMtpSpec(folder, model.spec()));
  AISP_ASSIGN_OR_RETURN(const DraftHeadOptions options,
                        HeadOptions(chosen, spec.model, served, backend));
  std::unique_ptr<DraftHead> head;
  if (backend.device->info().asynchronous) {
    AISP_ASSIGN_OR_RETURN(
        head, AsyncDraftHead::Create(folder, spec, model, options, *backend.executor->stream(),
                                     *backend.device, *backend.ops));
  } else {
    AISP_ASSIGN_OR_RETURN(
        head, ModelDraftHead::Create(folder, spec, model, options, *backend.device, *backend.ops));
  }
  return ProposerOver(std::move(head), chosen, folder);
}

Result<std::unique_ptr<Proposer>> LoadMedusa(const SpeculationConfig& chosen,
                                             const ServedModel& served, const Backend& backend) {
  const std::string folder = DraftModelFolder(chosen.model, served);
  const ServingExecutor& target = *backend.executor;
  AISP_ASSIGN_OR_RETURN(const MedusaSpec spec, LoadMedusaSpec(folder, target.model().spec()));
  if (chosen.says_num_tokens && chosen.num_tokens > spec.heads) {
    return InvalidArgument(fmt::format(
        "speculative_config: num_speculative_tokens is {} and '{}' has {} heads (medusa_num_heads) "
        "for one token each; lower it, or leave it out",
        chosen.num_tokens, folder, spec.heads));
  }
  const bool gpu = backend.device->info().asynchronous;
  const MedusaOptions heads{
      .max_rows = target.max_slots(),
      .random_weights = backend.random_weights,
      .weight_format = HeadFormat(chosen, backend.weight_format, target.model().compute_dtype(),
                                  QuantFormat::kNone, gpu)};
  std::unique_ptr<MedusaDraws> draws;
  if (gpu) {
    AISP_ASSIGN_OR_RETURN(
        draws, AsyncMedusaDraws::Create(folder, spec, target.model(), {.heads = heads},
                                        *target.stream(), *backend.device, *backend.ops));
  } else {
    AISP_ASSIGN_OR_RETURN(auto loaded, MedusaHeads::Load(folder, spec, target.model(), heads,
                                                         *backend.device, *backend.ops));
    draws = std::make_unique<HostMedusaDraws>(std::move(loaded));
  }
  LogInfo("draft heads loaded", {{"model", folder}, {"heads", spec.heads}});
  return std::make_unique<MedusaProposer>(
      MedusaProposerOptions{.min_probability = chosen.min_probability,
                            .wants_prompts_end = chosen.prompt_features > 0},
      std::move(draws));
}

// Errors of a checkpoint's files do not say which setting names it.
template <typename T>
Result<T> OfTheSetting(Result<T> made) {
  constexpr std::string_view kSetting = "speculative_config";
  if (made || made.error().message.starts_with(kSetting)) return made;
  return tl::unexpected(made.error().WithContext(kSetting));
}

Result<std::vector<int32_t>> LoadFeatureLayers(const SpeculationConfig& chosen,
                                               const ServedModel& served) {
  AISP_RETURN_IF_ERROR(CheckModelIsThere(chosen, served));
  const auto behind_all = static_cast<int32_t>(served.spec.layers.size());
  if (chosen.method == SpeculationConfig::Method::kEagle3) {
    AISP_ASSIGN_OR_RETURN(EagleSpec spec,
                          LoadEagleSpec(DraftModelFolder(chosen.model, served), served.spec));
    return std::move(spec.feature_layers);
  }
  // Medusa and MTP specs are loaded here only to report unsupported ones early.
  if (chosen.method == SpeculationConfig::Method::kMedusa) {
    AISP_RETURN_IF_ERROR(LoadMedusaSpec(DraftModelFolder(chosen.model, served), served.spec));
    return std::vector<int32_t>{behind_all};
  }
  if (chosen.method == SpeculationConfig::Method::kMtp) {
    AISP_RETURN_IF_ERROR(LoadMtpSpec(MtpFolder(chosen, served), served.spec));
    return std::vector<int32_t>{behind_all};
  }
  return std::vector<int32_t>();
}

Result<std::unique_ptr<Proposer>> LoadProposer(const SpeculationConfig& chosen,
                                               const ServedModel& served, const Backend& backend,
                                               const Clock* clock) {
  AISP_RETURN_IF_ERROR(CheckModelIsThere(chosen, served));
  switch (chosen.method) {
    case SpeculationConfig::Method::kNgram:
      return std::make_unique<NgramProposer>(chosen.ngram);
    case SpeculationConfig::Method::kSuffix:
      return std::make_unique<SuffixProposer>(chosen.suffix);
    case SpeculationConfig::Method::kDraftModel:
      return LoadDraftModel(chosen, served, backend, clock);
    case SpeculationConfig::Method::kEagle3:
      return LoadEagle(chosen, served, backend);
    case SpeculationConfig::Method::kMedusa:
      return LoadMedusa(chosen, served, backend);
    case SpeculationConfig::Method::kMtp:
      return LoadMtp(chosen, served, backend);
    case SpeculationConfig::Method::kOff:
      break;
  }
  return nullptr;
}

}  // namespace

Result<DraftNeeds> DraftNeedsOf(const Config& config, const ServedModel& served,
                                const DeviceInfo& device) {
  AISP_ASSIGN_OR_RETURN(const SpeculationConfig chosen, SpeculationConfigOf(config));
  DraftNeeds needs;
  AISP_ASSIGN_OR_RETURN(needs.feature_layers, FeatureLayersOf(chosen, served));
  if (device.asynchronous) {
    AISP_ASSIGN_OR_RETURN(needs.memory, OfTheSetting(DraftMemoryOf(config, served)));
  }
  return needs;
}

Result<std::vector<int32_t>> FeatureLayersOf(const SpeculationConfig& chosen,
                                             const ServedModel& served) {
  return OfTheSetting(LoadFeatureLayers(chosen, served));
}

Result<std::shared_ptr<Speculator>> MakeSpeculator(const Config& config, const ServedModel& served,
                                                   const Backend& backend, const Clock* clock) {
  AISP_ASSIGN_OR_RETURN(const SpeculationConfig chosen, SpeculationConfigOf(config));
  const bool forced_runs = EngineSettingsOf(config).forced_runs == "on";
  return MakeSpeculator(chosen, forced_runs, served, backend, clock);
}

Result<std::unique_ptr<Proposer>> MakeProposer(const SpeculationConfig& chosen,
                                               const ServedModel& served, const Backend& backend,
                                               const Clock* clock) {
  return OfTheSetting(LoadProposer(chosen, served, backend, clock));
}

Result<std::shared_ptr<Speculator>> MakeSpeculator(const SpeculationConfig& chosen,
                                                   bool forced_runs, const ServedModel& served,
                                                   const Backend& backend, const Clock* clock) {
  AISP_ASSIGN_OR_RETURN(auto proposer, MakeProposer(chosen, served, backend, clock));
  if (proposer == nullptr && !forced_runs) return std::shared_ptr<Speculator>();
  if (proposer != nullptr)
    LogInfo("speculation", {{"method", MethodName(chosen.method)}, {"tokens", chosen.num_tokens}});
  const SpeculatorOptions options{.num_tokens = chosen.num_tokens,
                                  .adaptive = proposer == nullptr || chosen.adaptive,
                                  .forced_runs = forced_runs};
  return std::make_shared<Speculator>(options, std::move(proposer), clock);
}

}  // namespace aisp
