// The JSON of GET /admin/overview and /admin/workers: the current state of a cluster. Pure; any
// thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "frontend/live_stats.h"
#include "router/router.h"

namespace aisp {

std::string WorkerJson(const WorkerStatus& worker);

// {"workers":[...],"totals":{"requests",...}}; totals count from the router's start.
std::string WorkersJson(const std::vector<WorkerStatus>& workers, const RouterTotals& totals);

// {"model","version","ready","reason","uptime_s","active", "now":{rates and percentiles of the last
// 10 s}, "series":{"seconds":N,"tokens_per_s":[...],...},"moves":[...],"workers":[...]}. A
// percentile is null without requests.
std::string OverviewJson(std::string_view model, const Status& ready, const LiveStats& stats,
                         const std::vector<WorkerStatus>& workers);

}  // namespace aisp
