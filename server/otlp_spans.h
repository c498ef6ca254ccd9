// A finished RequestTrace as OTLP spans. Pure; any thread.
#pragma once

#include <vector>

#include "otlp.pb.h"
#include "tracing/request_trace.h"

namespace aisp {

std::vector<opentelemetry::proto::collector::trace::v1::OtlpSpan> OtlpSpansOf(
    const RequestTrace& trace);

}  // namespace aisp
