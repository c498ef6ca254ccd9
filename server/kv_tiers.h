// The tiers of one worker's KV below its device pool, as the settings of the section kv say.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "config/config.h"
#include "kvcache/tiers/kv_tiers.h"
#include "kvcache/tiers/tier_threads.h"
#include "server/backend.h"

namespace aisp {

struct WorkerTiers {
  std::unique_ptr<TierThreads> threads;  // null: none are configured
  TierOptions options;                   // for the engine
};

// Opens them: allocates the host tier, locks, allocates and reads the disk's file. A full disk
// leaves the worker without a disk tier, and the log says so; INVALID_ARGUMENT: less than a block
// would fit; else what keeps the file from being used. `on_done` runs on threads of the tiers.
Result<WorkerTiers> OpenTiers(const Config& config, const v1::Fingerprint& fingerprint,
                              const std::string& role, const Backend& backend,
                              std::function<void()> on_done);

}  // namespace aisp
