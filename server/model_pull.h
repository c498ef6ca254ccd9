// Pulls a hub model for this server: hub/'s Pull with model/'s checks, so that an unsupported model
// is refused before its weights are downloaded. Shows progress.
#pragma once

#include <functional>

#include "common/result.h"
#include "config/config.h"
#include "hub/pull.h"

namespace aisp {

// As Pull. `config` is used only for logging.
Result<Pulled> PullModel(const Config& config, const HubOptions& hub, const HubRepo& repo,
                         bool weights, const std::function<bool()>& cancelled);

}  // namespace aisp
