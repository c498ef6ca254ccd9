// What GET /admin/overview and /admin/workers answer: the state of a router's cluster for people
// who look now. Pure; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "frontend/live_stats.h"
#include "router/router.h"

namespace aisp {

std::string WorkerJson(const WorkerStatus& worker);

// {"workers":[...],"totals":{"requests",...}}, the totals since the router's start.
std::string WorkersJson(const std::vector<WorkerStatus>& workers, const RouterTotals& totals);

// {"model","version","ready","reason","uptime_s","active",
//  "now":{rates and percentiles of the last 10 s},
//  "series":{"seconds":N,"tokens_per_s":[...],...},"moves":[...],"workers":[...]}.
// A percentile without a request is null.
std::string OverviewJson(std::string_view model, const Status& ready, const LiveStats& stats,
                         const std::vector<WorkerStatus>& workers);

}  // namespace aisp
