// The size of a worker's KV pool: as configured, else from the available memory.
//
// CPU: a quarter of the free memory, at most four full contexts per sequence (max_sequences). GPU:
// the rest of gpu_memory_utilization of the card once the weights are loaded. Workers that share
// the memory (engine.pool_sharers) take equal parts. Pure functions: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"
#include "kernels/device/device.h"
#include "server/served_model.h"

namespace aisp {

// GPU memory of a draft model besides the served one.
struct DraftMemory {
  uint64_t fixed_bytes = 0;  // weights, logits, graphs
  uint64_t block_bytes = 0;  // per block of the served model's pool
};

struct KvPoolPlan {
  int32_t blocks = 0;
  std::string why;  // "a quarter of 23.1 GiB free"
};

// Number of workers that share this process's memory or card, including those of role split.
int64_t PoolSharers(const Config& config);

// `memory`: the device's, after loading the weights; `draft` counts on a GPU. RESOURCE_EXHAUSTED:
// no useful pool fits; the message has the numbers and the settings that help.
Result<KvPoolPlan> PlanKvPool(const Config& config, const ServedModel& served,
                              const MemoryInfo& memory, bool gpu, const DraftMemory& draft = {});

// The number of blocks in the settings, 0 when left open. INVALID_ARGUMENT: too few to serve
// anything.
Result<int32_t> ConfiguredKvBlocks(const Config& config, const KvLayout& layout,
                                   int32_t max_model_len);

// The smallest pool that a worker starts with: a short sequence plus the watermark.
int64_t LeastKvBlocks(const Config& config, const KvLayout& layout, int32_t max_model_len);

// Sequence length assumed for a typical load.
int32_t TypicalTokens(int32_t max_model_len);

// Logs the choice, and warns when the pool cannot hold max_sequences of typical length.
void LogKvPool(const Config& config, const ServedModel& served, const KvLayout& layout,
               const std::string& why);

}  // namespace aisp
