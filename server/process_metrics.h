// What Prometheus expects of every process, read from /proc when it asks: CPU time, memory, open
// files, start; and which build this is, and the log lines that could not be written.
#pragma once

#include <string>

#include "common/metrics.h"

namespace aisp {

void AddProcessMetrics(Metrics* metrics, const std::string& role);

}  // namespace aisp
