// Progress while weights are read or downloaded: a bar on a terminal, or a log line every few
// seconds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/progress.h"
#include "config/config.h"

namespace aisp {

// Draws a bar if stderr is this process's terminal and logs are text; otherwise logs `event`.
std::unique_ptr<ProgressMeter> MakeLoadingMeter(const Config& config, const Clock* clock,
                                                const char* event);

// For ModelOptions::on_progress; the function owns the meter.
std::function<void(uint64_t done_bytes, uint64_t total_bytes)> WeightsProgress(
    const Config& config);

}  // namespace aisp
