// The standard process metrics of Prometheus, read from /proc at each scrape: CPU time, memory,
// open files, start time. Also the build's version and the number of log lines lost.
#pragma once

#include <string>

#include "common/metrics.h"

namespace aisp {

void AddProcessMetrics(Metrics* metrics, const std::string& role);

}  // namespace aisp
