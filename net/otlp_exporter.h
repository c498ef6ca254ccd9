// OtlpExporter: sends spans to an OpenTelemetry collector with OTLP over gRPC and never blocks its
// callers: it has a bounded queue and a thread. Spans that do not fit or cannot be delivered are
// counted and dropped.
//
// An unreachable collector is retried with growing pauses; a batch that it rejects is dropped at
// once. Send: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/metrics.h"
#include "common/result.h"
#include "otlp.pb.h"

namespace aisp {

namespace otlp = opentelemetry::proto::collector::trace::v1;

struct OtlpOptions {
  std::string endpoint;  // "host:4317", "http://host:4317", "https://host:4317"
  // Attributes of the process, e.g. service.name.
  std::vector<std::pair<std::string, std::string>> resource;
  std::string version;
  size_t queue_spans = 8192;
  size_t batch_spans = 512;
  Duration batch_interval = std::chrono::milliseconds(500);
  Duration call_timeout = std::chrono::seconds(5);
  int max_attempts = 5;
  Duration retry_min = std::chrono::milliseconds(500);
};

class OtlpExporter {
 public:
  // INVALID_ARGUMENT for a malformed endpoint. The collector need not be reachable.
  static Result<std::unique_ptr<OtlpExporter>> Create(const OtlpOptions& options, Metrics* metrics);
  virtual ~OtlpExporter() = default;

  // Queues the spans of one request, all or none.
  virtual void Send(std::vector<otlp::OtlpSpan> spans) = 0;
  // Delivers what is queued, within `limit`; later spans are refused. Idempotent.
  virtual void Stop(Duration limit) = 0;
};

}  // namespace aisp
