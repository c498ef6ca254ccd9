// Settings that are left to the program and follow from what it will compute on: a step of a GPU
// has room for more. Any thread.
#pragma once

#include "config/config.h"

namespace aisp {

// Whether a worker with these settings will try to compute on a GPU; that one answers is only seen
// when it is opened.
bool WantsGpu(const Config& config);

// config.engine with a value for the block size and each size of a step that is 0 there.
Config::Engine EngineSettingsOf(const Config& config);

}  // namespace aisp
