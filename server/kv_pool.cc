#include "server/kv_pool.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/log.h"
#include "common/strings.h"
#include "server/device_defaults.h"
#include "server/memory_plan.h"

namespace aisp {
namespace {

constexpr int64_t kShortSequence = 256;  // tokens that the smallest pool holds
constexpr int64_t kMostContexts = 4;  // full contexts per sequence on a CPU; more would hold only
                                      // prefixes
constexpr int64_t kGpuExtra = int64_t{1} << 30;  // a worker's CUDA context, graphs and step buffers

std::string SharedBy(int64_t sharers) {
  return sharers > 1 ? fmt::format(", shared by {} workers", sharers) : "";
}

KvPoolPlan CpuPlan(const Config& config, const ServedModel& served, const MemoryInfo& memory) {
  const KvLayout& kv = served.kv_layout;
  const auto block_bytes = static_cast<int64_t>(kv.BlockBytes());
  const int64_t sharers = PoolSharers(config);
  const int64_t by_memory = static_cast<int64_t>(memory.free_bytes) / 4 / sharers / block_bytes;
  const int64_t sequences = EngineSettingsOf(config).max_sequences;
  const int64_t useful = kMostContexts * sequences * kv.BlocksFor(served.max_model_len);
  KvPoolPlan plan;
  plan.blocks =
      static_cast<int32_t>(std::min({by_memory, useful, int64_t{INT32_MAX} / kv.block_tokens}));
  plan.why =
      by_memory <= useful
          ? fmt::format("a quarter of {} free{}", HumanBytes(memory.free_bytes), SharedBy(sharers))
          : fmt::format("{} contexts for each of {} sequences", kMostContexts, sequences);
  return plan;
}

KvPoolPlan GpuPlan(const Config& config, const ServedModel& served, const MemoryInfo& memory,
                   const DraftMemory& draft) {
  const KvLayout& kv = served.kv_layout;
  const int64_t sharers = PoolSharers(config);
  const double share = config.engine.gpu_memory_utilization;
  const auto total = static_cast<double>(memory.total_bytes);
  // The card's free memory without the part that is reserved for others.
  double bytes = static_cast<double>(memory.free_bytes) - (1 - share) * total;
  if (sharers > 1) {
    // The sharers may still be loading, so each keeps to its part regardless of what is free now.
    const auto own = static_cast<double>(WeightBytesOnGpu(config, served.spec)) + kGpuExtra;
    bytes = std::min(bytes, share * total / static_cast<double>(sharers) - own);
  }
  bytes -= static_cast<double>(draft.fixed_bytes);
  const auto block_bytes = static_cast<int64_t>(kv.BlockBytes() + draft.block_bytes);
  const int64_t blocks = static_cast<int64_t>(std::max(0.0, bytes)) / block_bytes;
  KvPoolPlan plan;
  plan.blocks = static_cast<int32_t>(std::min(blocks, int64_t{INT32_MAX} / kv.block_tokens));
  plan.why = fmt::format("what the model leaves of {} x {}{}", share,
                         HumanBytes(memory.total_bytes), SharedBy(sharers));
  return plan;
}

}  // namespace

int64_t PoolSharers(const Config& config) {
  return config.engine.pool_sharers * (config.role == "split" ? 2 : 1);
}

int32_t TypicalTokens(int32_t max_model_len) { return std::min(max_model_len, 2048); }

int64_t LeastKvBlocks(const Config& config, const KvLayout& layout, int32_t max_model_len) {
  const auto tokens = std::min<int64_t>(max_model_len, kShortSequence);
  return config.engine.watermark_blocks + layout.BlocksFor(static_cast<int32_t>(tokens));
}

Result<int32_t> ConfiguredKvBlocks(const Config& config, const KvLayout& layout,
                                   int32_t max_model_len) {
  const Config::Engine& e = config.engine;
  if (e.kv_blocks == 0 && e.kv_memory == 0) return 0;
  const auto block_bytes = static_cast<int64_t>(layout.BlockBytes());
  const int64_t blocks = e.kv_blocks > 0 ? e.kv_blocks : e.kv_memory / block_bytes;
  const std::string named =
      e.kv_blocks > 0 ? fmt::format("engine.kv_blocks (--kv-blocks) = {}", e.kv_blocks)
                      : fmt::format("engine.kv_memory (--kv-memory) = {}, {} blocks",
                                    HumanBytes(static_cast<uint64_t>(e.kv_memory)), blocks);
  const int64_t least = LeastKvBlocks(config, layout, max_model_len);
  if (blocks < least) {
    return InvalidArgument(fmt::format(
        "{} is a KV pool of {} tokens; at least {} blocks of {} are needed, for one short sequence "
        "beside the {} of engine.watermark_blocks",
        named, blocks * layout.block_tokens, least, HumanBytes(layout.BlockBytes()),
        e.watermark_blocks));
  }
  if (blocks * layout.block_tokens > INT32_MAX) {
    return InvalidArgument(fmt::format("{}: a KV pool of {} tokens; at most {} are possible", named,
                                       blocks * layout.block_tokens, INT32_MAX));
  }
  return static_cast<int32_t>(blocks);
}

Result<KvPoolPlan> PlanKvPool(const Config& config, const ServedModel& served,
                              const MemoryInfo& memory, bool gpu, const DraftMemory& draft) {
  const KvLayout& kv = served.kv_layout;
  if (kv.num_blocks > 0) return KvPoolPlan{kv.num_blocks, "as configured"};
  KvPoolPlan plan = gpu ? GpuPlan(config, served, memory, draft) : CpuPlan(config, served, memory);
  const int64_t least = LeastKvBlocks(config, kv, served.max_model_len);
  if (plan.blocks >= least) return plan;
  return ResourceExhausted(fmt::format(
      "no room for a KV pool: {} would be {} blocks of {}, the least is {}; {} of {} are free with "
      "the weights of {} loaded. Give more (--kv-memory{}), end what else uses the memory, or keep "
      "the weights smaller",
      plan.why, plan.blocks, HumanBytes(kv.BlockBytes()), least, HumanBytes(memory.free_bytes),
      HumanBytes(memory.total_bytes), served.name, gpu ? ", --gpu-memory-utilization" : ""));
}

void LogKvPool(const Config& config, const ServedModel& served, const KvLayout& layout,
               const std::string& why) {
  const int64_t tokens = int64_t{layout.num_blocks} * layout.block_tokens;
  const int32_t typical = TypicalTokens(served.max_model_len);
  const int64_t fit = tokens / typical;
  const int64_t wanted = EngineSettingsOf(config).max_sequences;
  LogInfo("KV pool", {{"size", HumanBytes(layout.PoolBytes())},
                      {"blocks", layout.num_blocks},
                      {"tokens", tokens},
                      {"why", why},
                      {"holds", fmt::format("{} sequences of {} tokens", fit, typical)}});
  if (fit >= wanted) return;
  LogWarning(
      "the KV pool is small for max_sequences: beyond what it holds, sequences wait or are "
      "preempted; raise --kv-memory or lower --max-num-seqs",
      {{"holds", fmt::format("{} sequences of {} tokens", fit, typical)},
       {"max_sequences", wanted}});
}

}  // namespace aisp
