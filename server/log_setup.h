// LogSession options of an aisp process, from the configuration. Pure; any thread.
#pragma once

#include <string>

#include "common/log.h"
#include "config/config.h"

namespace aisp {

// `role` and `id` appear in every line.
LogOptions LogOptionsOf(const Config& config, std::string role, std::string id);

}  // namespace aisp
