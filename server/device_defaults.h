// Defaults that depend on the kind of device: a step on a GPU has room for more. Any thread.
#pragma once

#include "config/config.h"

namespace aisp {

// Whether a worker with these settings will try a GPU; whether one works is known once opened.
bool WantsGpu(const Config& config);

// config.engine with defaults in place of 0 for the block size and the sizes of a step.
Config::Engine EngineSettingsOf(const Config& config);

}  // namespace aisp
