// A model of the hub for this server: hub/'s Pull with what model/ knows, so that what cannot be
// served is refused before its weights come, and with its progress shown.
#pragma once

#include <functional>

#include "common/result.h"
#include "config/config.h"
#include "hub/pull.h"

namespace aisp {

// As Pull. Of the configuration only how it logs is read.
Result<Pulled> PullModel(const Config& config, const HubOptions& hub, const HubRepo& repo,
                         bool weights, const std::function<bool()>& cancelled);

}  // namespace aisp
