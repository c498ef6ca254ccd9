// Who proposes tokens on a decode worker: engine.speculative_config made into a Speculator.
#pragma once

#include <memory>

#include "common/clock.h"
#include "config/config.h"
#include "speculation/config.h"
#include "speculation/speculator.h"

namespace aisp {

// Rows of a step that verify proposed tokens, on a device of either kind; 0 where a step has no
// room beside its sequences. `engine` with the device's defaults (server/device_defaults.h).
int32_t MaxDraftRows(const Config::Engine& engine);

// INVALID_ARGUMENT: what speculation/config.h refuses, or longer drafts than a
// step has rows for, with both values. UNIMPLEMENTED: a method that is not there yet.
Result<SpeculationConfig> SpeculationConfigOf(const Config& config);

// Null where speculation is off.
Result<std::shared_ptr<Speculator>> MakeSpeculator(const Config& config, const Clock* clock);

}  // namespace aisp
