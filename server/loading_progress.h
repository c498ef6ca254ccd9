// What a process shows while weights come from disk or from the hub: a bar on the terminal, or a
// line of the log every few seconds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/progress.h"
#include "config/config.h"

namespace aisp {

// Draws a bar if stderr is this process's terminal and the log is text; else logs `event`.
std::unique_ptr<ProgressMeter> MakeLoadingMeter(const Config& config, const Clock* clock,
                                                const char* event);

// For ModelOptions::on_progress; its meter lives as long as the function.
std::function<void(uint64_t done_bytes, uint64_t total_bytes)> WeightsProgress(
    const Config& config);

}  // namespace aisp
