#include "server/otlp_spans.h"

#include <algorithm>
#include <string>

namespace aisp {
namespace {

namespace otlp = opentelemetry::proto::collector::trace::v1;
constexpr uint32_t kSampledFlag = 1;

template <typename Id>
std::string Bytes(const Id& id) {
  return {reinterpret_cast<const char*>(id.data()), id.size()};
}

}  // namespace

std::vector<otlp::OtlpSpan> OtlpSpansOf(const RequestTrace& trace) {
  std::vector<otlp::OtlpSpan> out;
  out.reserve(trace.spans().size());
  for (const Span& span : trace.spans()) {
    otlp::OtlpSpan& to = out.emplace_back();
    to.set_trace_id(Bytes(trace.trace_id()));
    to.set_span_id(Bytes(span.id));
    to.set_trace_state(trace.state());
    if (span.parent >= 0) {
      to.set_parent_span_id(Bytes(trace.spans()[static_cast<size_t>(span.parent)].id));
    } else if (trace.caller() != SpanId{}) {
      to.set_parent_span_id(Bytes(trace.caller()));
    }
    to.set_name(span.name);
    to.set_kind(span.parent < 0 ? otlp::OtlpSpan::SPAN_KIND_SERVER
                                : otlp::OtlpSpan::SPAN_KIND_INTERNAL);
    to.set_start_time_unix_nano(static_cast<uint64_t>(trace.UnixNs(span.start)));
    to.set_end_time_unix_nano(static_cast<uint64_t>(trace.UnixNs(span.end)));
    for (const auto& [key, value] : span.attributes) {
      otlp::KeyValue* attribute = to.add_attributes();
      attribute->set_key(key);
      attribute->mutable_value()->set_string_value(value);
    }
    if (!span.error.empty()) {
      to.mutable_status()->set_code(otlp::OtlpStatus::STATUS_CODE_ERROR);
      to.mutable_status()->set_message(span.error);
    }
    to.set_flags(trace.sampled() ? kSampledFlag : 0);
  }
  return out;
}

}  // namespace aisp
