#include "server/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "common/log.h"
#include "common/strings.h"
#include "config/user_folders.h"
#include "engine/async_executor.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/load.h"
#include "proto/fingerprint.h"
#include "server/device_defaults.h"
#include "server/kv_pool.h"
#include "server/loading_progress.h"
#include "server/memory_plan.h"
#include "server/process.h"
#include "server/range_executor.h"
#include "server/speculation.h"

namespace aisp {
namespace {

ModelExecutorOptions ExecutorOptionsOf(const Config& config, const ServedModel& served) {
  const Config::Engine engine = EngineSettingsOf(config);
  ModelExecutorOptions o;
  if (config.model.dtype != "auto") o.model.compute_dtype = ParseDType(config.model.dtype);
  o.model.max_batch_tokens = static_cast<int32_t>(engine.max_batch_tokens);
  o.model.max_context = served.max_model_len;
  o.max_slots = static_cast<int32_t>(engine.max_sequences);
  o.model.max_logit_rows = o.max_slots;
  o.model.max_sequences = o.max_slots;
  o.max_draft_rows = MaxDraftRows(engine);
  o.block_tokens = served.kv_layout.block_tokens;
  o.num_blocks = served.kv_layout.num_blocks;  // 0: choose_blocks decides
  o.kv_dtype = served.kv_layout.dtype;
  return o;
}

// Index of the GPU; "auto" and "cuda" mean GPU 0.
Result<int32_t> CudaIndexOf(const std::string& device) {
  if (device == "auto" || device == "cuda") return 0;
  if (device.starts_with("cuda:")) {
    const auto index = ParseIntInRange(device.substr(5), 0, 1023);
    if (index) return static_cast<int32_t>(*index);
  }
  return InvalidArgument(
      fmt::format("model.device = '{}'; auto, cpu, cuda and cuda:N are possible", device));
}

// Without a cache folder the kernels are tuned at every start; nothing else changes.
std::string TuningCacheOf(const Config& config) {
  if (config.model.tuning_cache != "auto") return config.model.tuning_cache;
  const std::string folder = UserCacheFolder();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  return folder.empty() || error ? "" : folder + "/";
}

Status CheckMemory(const Config& config, const ServedModel& served, const Device& device) {
  AISP_ASSIGN_OR_RETURN(const MemoryInfo memory, device.GetMemoryInfo());
  if (device.info().asynchronous) return CheckGpuMemory(config, served, device.info(), memory);
  const KvLayout& kv = served.kv_layout;  // num_blocks is 0 when the pool's size is chosen later
  if (kv.PoolBytes() <= memory.free_bytes) return {};
  return ResourceExhausted(
      fmt::format("the KV pool wants {} ({} blocks), {} are free; lower --kv-memory or --kv-blocks",
                  HumanBytes(kv.PoolBytes()), kv.num_blocks, HumanBytes(memory.free_bytes)));
}

void WarnOfGpuFormats(const Config::Model& model) {
  if (model.quantization != "fp8" && model.quantization != "nvfp4" && model.fp8_activations != "on")
    return;
  LogWarning("a CPU does not quantise; weights and activations stay as without these settings",
             {{"quantization", model.quantization}, {"fp8_activations", model.fp8_activations}});
}

}  // namespace

std::optional<WeightFormat> WeightFormatOf(std::string_view quantization) {
  if (quantization == "none") return WeightFormat::kCompute;
  if (quantization == "fp8") return WeightFormat::kFp8;
  if (quantization == "nvfp4") return WeightFormat::kNvfp4;
  return std::nullopt;
}

Result<ComputeDevice> OpenComputeDevice(const Config& config, const ServedModel& served) {
  const std::string& wanted = config.model.device;
  if (wanted != "cpu") {
    const Config::Engine engine = EngineSettingsOf(config);
    CudaBackendOptions options;
    AISP_ASSIGN_OR_RETURN(options.index, CudaIndexOf(wanted));
    options.max_rows = static_cast<int32_t>(engine.max_batch_tokens);
    options.max_sequences = static_cast<int32_t>(engine.max_sequences);
    options.tuning_cache = TuningCacheOf(config);
    options.fp8_activation_rows = served.fp8_activation_rows;
    options.exclusive = config.role != "split";  // in role split two workers share the device
    const std::string here = ExecutableFolder();
    const std::string folders[] = {here + "/../lib", here};
    auto cuda = OpenCudaBackend(options, folders);
    if (cuda) return ComputeDevice{std::move(cuda->device), std::move(cuda->ops)};
    if (wanted != "auto") return tl::unexpected(cuda.error().WithContext("--device " + wanted));
    LogInfo("computing on the CPU", {{"no_gpu", cuda.error().message}});
  }
  WarnOfGpuFormats(config.model);
  ComputeDevice cpu;
  cpu.device = MakeCpuDevice();
  AISP_ASSIGN_OR_RETURN(cpu.ops, MakeCpuOps({.threads = static_cast<int>(config.model.threads)}));
  return cpu;
}

Result<std::optional<uint64_t>> RandomWeightsSeed(const Config& config) {
  constexpr std::string_view kRandom = "random:";
  const std::string_view text = config.model.weights;
  if (text.empty()) return std::nullopt;
  if (!text.starts_with(kRandom)) {
    return InvalidArgument(
        fmt::format("model.weights = '{}'; it is empty or random:SEED, as in random:1", text));
  }
  AISP_ASSIGN_OR_RETURN(const int64_t seed, ParseInt(text.substr(kRandom.size())));
  return static_cast<uint64_t>(seed);
}

namespace {

// Read again, since the router's side keeps only their digests.
Result<std::vector<std::shared_ptr<const LoraAdapter>>> AdaptersOfTheStart(
    const Config& config, const ServedModel& served) {
  std::vector<std::shared_ptr<const LoraAdapter>> out;
  for (const v1::Adapter& each : served.adapters->start().adapters()) {
    AISP_ASSIGN_OR_RETURN(auto adapter,
                          LoraAdapter::Load(each.name(), each.path(),
                                            static_cast<int32_t>(config.model.max_lora_rank)));
    if (adapter->digest() != each.digest()) {
      return FailedPrecondition(fmt::format(
          "{}: the files of the LoRA adapter '{}' changed while they were read; start again",
          each.path(), each.name()));
    }
    out.push_back(std::move(adapter));
  }
  return out;
}

}  // namespace

Result<Backend> MakeBackend(const Config& config, const ServedModel& served) {
  Backend backend;
  {
    AISP_ASSIGN_OR_RETURN(ComputeDevice opened, OpenComputeDevice(config, served));
    backend.device = std::move(opened.device);
    backend.ops = std::move(opened.ops);
  }
  AISP_RETURN_IF_ERROR(CheckMemory(config, served, *backend.device));
  ModelExecutorOptions options = ExecutorOptionsOf(config, served);
  AISP_ASSIGN_OR_RETURN(backend.random_weights, RandomWeightsSeed(config));
  backend.weight_format = WeightFormatOf(config.model.quantization);
  options.model.random_weights = backend.random_weights;
  options.model.weight_format = backend.weight_format;
  AISP_ASSIGN_OR_RETURN(options.model.adapters, AdaptersOfTheStart(config, served));
  if (config.model.runtime_lora) {
    options.model.max_adapters = static_cast<int32_t>(config.model.max_loras);
    options.model.max_adapter_rank = static_cast<int32_t>(config.model.max_lora_rank);
  }
  options.model.on_progress = WeightsProgress(config);
  AISP_ASSIGN_OR_RETURN(DraftNeeds draft, DraftNeedsOf(config, served, backend.device->info()));
  backend.feature_layers = draft.feature_layers;
  options.model.feature_layers = std::move(draft.feature_layers);
  KvPoolPlan pool{served.kv_layout.num_blocks, "as configured"};
  options.choose_blocks = [&](const MemoryInfo& memory) -> Result<int32_t> {
    AISP_ASSIGN_OR_RETURN(pool, PlanKvPool(config, served, memory,
                                           backend.device->info().asynchronous, draft.memory));
    return pool.blocks;
  };
  if (backend.device->info().asynchronous) {
    AISP_ASSIGN_OR_RETURN(backend.executor,
                          AsyncExecutor::Create(served.path, {.base = options, .use_graphs = true},
                                                *backend.device, *backend.ops));
  } else {
    AISP_ASSIGN_OR_RETURN(backend.executor, ModelExecutor::Create(served.path, options,
                                                                  *backend.device, *backend.ops));
  }
  if (config.trace.nvtx && backend.device->info().asynchronous) {
    const std::string here = ExecutableFolder();
    const std::string folders[] = {here + "/../lib", here};
    AISP_ASSIGN_OR_RETURN(const ProfilerRanges ranges, FindProfilerRanges(folders));
    backend.executor = WithProfilerRanges(std::move(backend.executor), ranges);
  }
  const KvLayout& kv = backend.executor->kv_layout();
  LogInfo("model loaded", {{"model", served.name},
                           {"device", backend.device->info().name},
                           {"dtype", DTypeName(backend.executor->model().compute_dtype())},
                           {"kv_dtype", DTypeName(kv.dtype)}});
  LogKvPool(config, served, kv, pool.why);
  return backend;
}

EngineOptions EngineOptionsOf(const Config& config, const v1::Fingerprint& fingerprint) {
  const Config::Engine engine = EngineSettingsOf(config);
  EngineOptions o;
  o.limits.max_batch_tokens = static_cast<int32_t>(engine.max_batch_tokens);
  o.limits.max_sequences = static_cast<int32_t>(engine.max_sequences);
  o.limits.max_prefill_chunk = static_cast<int32_t>(engine.max_prefill_chunk);
  o.limits.watermark_blocks = static_cast<int32_t>(engine.watermark_blocks);
  o.limits.max_draft_rows = MaxDraftRows(engine);
  o.enable_prefix_cache = engine.prefix_cache;
  o.max_sequences_total = static_cast<int32_t>(engine.max_waiting);
  o.weights_digest = PrefixDigest(fingerprint);
  return o;
}

}  // namespace aisp
