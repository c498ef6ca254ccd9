// How a process of aisp logs: the options of its LogSession from the configuration. Pure; any
// thread.
#pragma once

#include <string>

#include "common/log.h"
#include "config/config.h"

namespace aisp {

// `role` and `id` stand in every line.
LogOptions LogOptionsOf(const Config& config, std::string role, std::string id);

}  // namespace aisp
