// How large a worker's KV pool is: as configured, else from the memory that there is.
//
// CPU: a quarter of what is free, at most four full contexts for each of max_sequences. GPU: what
// is left of gpu_memory_utilization of the card once the weights are in it. Workers that share the
// memory (engine.pool_sharers) take equal parts. Pure functions: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"
#include "kernels/device/device.h"
#include "server/served_model.h"

namespace aisp {

// What a draft model keeps of the card beside the served one.
struct DraftMemory {
  uint64_t fixed_bytes = 0;  // weights, logits, graphs
  uint64_t block_bytes = 0;  // for each block of the served model's pool
};

struct KvPoolPlan {
  int32_t blocks = 0;
  std::string why;  // "a quarter of 23.1 GiB free"
};

// Workers that share this process's memory or card, those of a split process counted.
int64_t PoolSharers(const Config& config);

// `memory` is the device's with the weights in it; `draft` counts on a GPU. RESOURCE_EXHAUSTED:
// what is left holds no useful pool; the error has the numbers and the settings that help.
Result<KvPoolPlan> PlanKvPool(const Config& config, const ServedModel& served,
                              const MemoryInfo& memory, bool gpu, const DraftMemory& draft = {});

// Blocks that the settings name outright, 0 when they leave it open. INVALID_ARGUMENT: too few to
// serve anything.
Result<int32_t> ConfiguredKvBlocks(const Config& config, const KvLayout& layout,
                                   int32_t max_model_len);

// The least pool that a worker starts with: a short sequence beside the watermark.
int64_t LeastKvBlocks(const Config& config, const KvLayout& layout, int32_t max_model_len);

// Sequences of this length stand for a typical load.
int32_t TypicalTokens(int32_t max_model_len);

// Logs the choice in one line, and warns when it cannot hold max_sequences of typical length.
void LogKvPool(const Config& config, const ServedModel& served, const KvLayout& layout,
               const std::string& why);

}  // namespace aisp
