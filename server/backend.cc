#include "server/backend.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/log.h"
#include "common/strings.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_ops.h"

namespace aisp {
namespace {

ModelExecutorOptions ExecutorOptionsOf(const Config& config, const ServedModel& served) {
  ModelExecutorOptions o;
  if (config.model.dtype != "auto") o.model.compute_dtype = ParseDType(config.model.dtype);
  o.model.max_batch_tokens = static_cast<int32_t>(config.engine.max_batch_tokens);
  o.model.max_context = served.max_model_len;
  o.max_slots = static_cast<int32_t>(config.engine.max_sequences);
  o.model.max_logit_rows = o.max_slots;
  o.model.max_sequences = o.max_slots;
  o.block_tokens = served.kv_layout.block_tokens;
  o.num_blocks = served.kv_layout.num_blocks;
  o.kv_dtype = served.kv_layout.dtype;
  return o;
}

Status CheckMemory(const Device& device, const KvLayout& kv) {
  AISP_ASSIGN_OR_RETURN(const MemoryInfo memory, device.GetMemoryInfo());
  if (kv.PoolBytes() <= memory.free_bytes) return {};
  return ResourceExhausted(
      fmt::format("the KV pool wants {} ({} blocks), {} are free; lower --kv-memory or --kv-blocks",
                  HumanBytes(kv.PoolBytes()), kv.num_blocks, HumanBytes(memory.free_bytes)));
}

}  // namespace

Result<Backend> MakeBackend(const Config& config, const ServedModel& served) {
  Backend backend;
  backend.device = MakeCpuDevice();
  AISP_RETURN_IF_ERROR(CheckMemory(*backend.device, served.kv_layout));
  AISP_ASSIGN_OR_RETURN(backend.ops,
                        MakeCpuOps({.threads = static_cast<int>(config.model.threads)}));
  AISP_ASSIGN_OR_RETURN(backend.executor,
                        ModelExecutor::Create(served.path, ExecutorOptionsOf(config, served),
                                              *backend.device, *backend.ops));
  const KvLayout& kv = backend.executor->kv_layout();
  LogInfo("model loaded", {{"model", served.name},
                           {"device", backend.device->info().name},
                           {"dtype", DTypeName(backend.executor->model().compute_dtype())},
                           {"kv_dtype", DTypeName(kv.dtype)},
                           {"kv_blocks", kv.num_blocks},
                           {"kv_pool", HumanBytes(kv.PoolBytes())}});
  return backend;
}

EngineOptions EngineOptionsOf(const Config& config, const ServedModel& served) {
  EngineOptions o;
  o.limits.max_batch_tokens = static_cast<int32_t>(config.engine.max_batch_tokens);
  o.limits.max_sequences = static_cast<int32_t>(config.engine.max_sequences);
  o.limits.max_prefill_chunk = static_cast<int32_t>(config.engine.max_prefill_chunk);
  o.limits.watermark_blocks = static_cast<int32_t>(config.engine.watermark_blocks);
  o.enable_prefix_cache = config.engine.prefix_cache;
  o.max_sequences_total = static_cast<int32_t>(config.engine.max_waiting);
  o.weights_digest = served.fingerprint.weights_digest();
  return o;
}

}  // namespace aisp
