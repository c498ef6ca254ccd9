// The JSON of GET /admin/trace. Pure; any thread.
#pragma once

#include <string>

#include "tracing/request_trace.h"
#include "tracing/trace_ring.h"

namespace aisp {

// {"request","trace","finished", "spans":[{"name","parent","start_ms","ms","open","error",
// "attributes"}]}; `parent` is an index into spans.
std::string TraceJson(const RequestTrace& trace, Instant now);

// {"traces":[{"request","trace","finished","ms","error"}]}: the newest `limit`, newest first.
std::string TraceListJson(const TraceRing& ring, Instant now, size_t limit);

}  // namespace aisp
