#include "server/trace_json.h"

#include <fmt/format.h>

#include "api/response.h"

namespace aisp {
namespace {

std::string Quoted(std::string_view text) {
  std::string out;
  AppendJsonString(text, &out);
  return out;
}

std::string SpanJson(const Span& span, Instant begin, Instant now) {
  std::string attributes;
  for (const auto& [key, value] : span.attributes) {
    if (!attributes.empty()) attributes += ',';
    attributes += Quoted(key) + ":" + Quoted(value);
  }
  const Instant end = span.end == kNever ? now : span.end;
  return fmt::format(
      R"({{"name":{},"id":"{}","parent":{},"start_ms":{:.3f},"ms":{:.3f},"open":{},"error":{},)"
      R"("attributes":{{{}}}}})",
      Quoted(span.name), ToHex(span.id), span.parent, ToMs(span.start - begin),
      ToMs(end - span.start), span.end == kNever, Quoted(span.error), attributes);
}

}  // namespace

std::string TraceJson(const RequestTrace& trace, Instant now) {
  const Instant begin = trace.spans()[RequestTrace::kRoot].start;
  std::string spans;
  for (const Span& span : trace.spans()) {
    if (!spans.empty()) spans += ',';
    spans += SpanJson(span, begin, now);
  }
  return fmt::format(
      R"({{"request":{},"trace":"{}","sampled":{},"finished":{},"started_unix_ms":{},)"
      R"("dropped_spans":{},"spans":[{}]}})",
      Quoted(trace.request_id()), ToHex(trace.trace_id()), trace.sampled(), trace.finished(),
      trace.UnixNs(begin) / 1'000'000, trace.dropped_spans(), spans);
}

std::string TraceListJson(const TraceRing& ring, Instant now, size_t limit) {
  std::string out;
  for (const auto& trace : ring.Newest(limit)) {
    const Span& root = trace->spans()[RequestTrace::kRoot];
    const Instant end = root.end == kNever ? now : root.end;
    if (!out.empty()) out += ',';
    out += fmt::format(R"({{"request":{},"trace":"{}","finished":{},"ms":{:.3f},"error":{}}})",
                       Quoted(trace->request_id()), ToHex(trace->trace_id()), trace->finished(),
                       ToMs(end - root.start), Quoted(root.error));
  }
  return fmt::format(R"({{"traces":[{}]}})", out);
}

}  // namespace aisp
