// The KV tiers of a worker below its device pool, as configured in the section kv.
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
  std::unique_ptr<TierThreads> threads;  // null: no tiers
  TierOptions options;                   // for the engine
};

// Opens the tiers: allocates the host tier, locks and reads the disk tier's file. On a full disk
// the worker runs without a disk tier, and logs it. INVALID_ARGUMENT: less than one block fits;
// otherwise the reason why the file cannot be used. `on_done` runs on the tiers' threads.
Result<WorkerTiers> OpenTiers(const Config& config, const v1::Fingerprint& fingerprint,
                              const std::string& role, const Backend& backend,
                              std::function<void()> on_done);

}  // namespace aisp
