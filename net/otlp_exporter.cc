#include "net/otlp_exporter.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>

#include "common/log.h"
#include "common/strings.h"
#include "common/threads.h"
#include "net/connection_bytes.h"
#include "net/dialled_bytes.h"
#include "net/host_port.h"
#include "otlp.grpc.pb.h"

namespace aisp {
namespace {

// Codes of an unreachable or overloaded collector; other errors would repeat.
bool WorthRetrying(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
    case grpc::StatusCode::ABORTED:
      return true;
    default:
      return false;
  }
}

struct Target {
  std::string address;
  bool tls = false;
};

Result<Target> ParseEndpoint(std::string_view endpoint) {
  Target out;
  std::string_view rest = endpoint;
  constexpr std::string_view kHttp = "http://", kHttps = "https://";
  if (rest.starts_with(kHttp)) rest.remove_prefix(kHttp.size());
  if (rest.starts_with(kHttps)) {
    rest.remove_prefix(kHttps.size());
    out.tls = true;
  }
  while (rest.ends_with('/')) rest.remove_suffix(1);
  const SplitAddress split = SplitHostPort(rest);
  const bool has_port = split.port && ParseIntInRange(*split.port, 1, UINT16_MAX);
  if (!has_port || split.host.empty() || rest.find('/') != std::string_view::npos) {
    return InvalidArgument(
        fmt::format("trace.otlp_endpoint is '{}'; it wants host:port of an OTLP/gRPC collector, as "
                    "localhost:4317, with http:// or https:// (TLS) in front if you like",
                    Excerpt(endpoint)));
  }
  out.address = std::string(rest);
  return out;
}

// Limits a collector's answer, since it is not trusted with our memory.
constexpr size_t kMaxAnswerBytes = 64 << 10;
constexpr const char* kConnection = "collector";

std::shared_ptr<grpc::Channel> Connect(const Target& target, DialledBytes* dialled) {
  grpc::ChannelArguments arguments;
  DialledBytes::Bound(kMaxAnswerBytes, &arguments);
  dialled->Watch(kConnection, &arguments);
  return grpc::CreateCustomChannel(
      target.address, target.tls ? grpc::SslCredentials({}) : grpc::InsecureChannelCredentials(),
      arguments);
}

class OtlpExporterImpl final : public OtlpExporter {
 public:
  OtlpExporterImpl(const OtlpOptions& options, const Target& target, Metrics* metrics)
      : options_(options),
        address_(target.address),
        stub_(otlp::TraceService::NewStub(Connect(target, &dialled_))),
        complaints_(std::chrono::seconds(30)) {
    sent_ = metrics->AddCounter("aisp_trace_spans_exported_total",
                                "Spans that the OTLP collector has taken");
    const auto dropped = [metrics](const char* reason) {
      return metrics->AddCounter("aisp_trace_spans_dropped_total",
                                 "Spans that no OTLP collector will see, by reason",
                                 {{"reason", reason}});
    };
    dropped_queue_ = dropped("queue_full");
    dropped_failed_ = dropped("not_delivered");
    dropped_refused_ = dropped("refused");
    thread_ = Thread("otlp", [this] { Run(); });
  }
  ~OtlpExporterImpl() override { Stop({}); }

  void Send(std::vector<otlp::OtlpSpan> spans) override {
    const auto count = static_cast<double>(spans.size());
    {
      const std::lock_guard lock(mutex_);
      if (!stopping_ && queue_.size() + spans.size() <= options_.queue_spans) {
        std::move(spans.begin(), spans.end(), std::back_inserter(queue_));
        // A full batch is sent at once; others wait for more spans.
        if (queue_.size() >= options_.batch_spans) wake_.notify_one();
        return;
      }
    }
    dropped_queue_.Add(count);
  }

  void Stop(Duration limit) override {
    {
      const std::lock_guard lock(mutex_);
      if (!stopping_) give_up_ = clock_.Now() + limit;
      stopping_ = true;
      // Also cancels a call in progress.
      if (limit <= Duration{} && call_ != nullptr) call_->TryCancel();
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.Join();
  }

 private:
  void Run() {
    for (;;) {
      auto batch = TakeBatch();
      if (batch.empty()) return;
      Deliver(std::move(batch));
    }
  }

  // Waits for spans; empty: stopped.
  std::vector<otlp::OtlpSpan> TakeBatch() {
    std::unique_lock lock(mutex_);
    const auto full = [this] { return stopping_ || queue_.size() >= options_.batch_spans; };
    while (!wake_.wait_for(lock, options_.batch_interval, full) && queue_.empty()) {
    }
    if (stopping_ && clock_.Now() >= give_up_) {
      dropped_failed_.Add(static_cast<double>(queue_.size()));
      queue_.clear();
    }
    const auto count = static_cast<std::ptrdiff_t>(std::min(queue_.size(), options_.batch_spans));
    std::vector<otlp::OtlpSpan> batch(std::make_move_iterator(queue_.begin()),
                                      std::make_move_iterator(queue_.begin() + count));
    queue_.erase(queue_.begin(), queue_.begin() + count);
    return batch;
  }

  void Deliver(std::vector<otlp::OtlpSpan> spans) {
    const auto count = static_cast<double>(spans.size());
    const otlp::ExportTraceServiceRequest request = MakeRequest(std::move(spans));
    Duration pause = options_.retry_min;
    for (int attempt = 1;; ++attempt, pause *= 2) {
      const grpc::Status status = Call(request, static_cast<int64_t>(count));
      if (status.ok()) return sent_.Add(count);
      complaints_.Log(clock_.Now(), LogLevel::kWarning, "the OTLP collector took no spans",
                      {{"endpoint", address_}, {"error", Excerpt(status.error_message(), 300)}});
      if (!WorthRetrying(status.error_code())) return dropped_refused_.Add(count);
      if (attempt >= options_.max_attempts || !Pause(pause)) return dropped_failed_.Add(count);
    }
  }

  // False when there is no time for another attempt.
  bool Pause(Duration pause) {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, pause, [this] { return stopping_; });
    return !stopping_ || clock_.Now() + pause < give_up_;
  }

  grpc::Status Call(const otlp::ExportTraceServiceRequest& request, int64_t sent) {
    grpc::ClientContext context;
    {
      const std::lock_guard lock(mutex_);
      const Duration limit = stopping_ ? std::clamp<Duration>(give_up_ - clock_.Now(), Duration{},
                                                              options_.call_timeout)
                                       : options_.call_timeout;
      context.set_deadline(std::chrono::system_clock::now() +
                           std::chrono::duration_cast<std::chrono::system_clock::duration>(limit));
      call_ = &context;
    }
    otlp::ExportTraceServiceResponse response;
    bytes_->OnReading(kConnection);
    const grpc::Status status = stub_->Export(&context, request, &response);
    bytes_->OnRead(kConnection, status.ok());
    {
      const std::lock_guard lock(mutex_);
      call_ = nullptr;
    }
    // The collector accepted only a part.
    const auto rejected = std::clamp<int64_t>(response.partial_success().rejected_spans(), 0, sent);
    if (status.ok() && rejected > 0) dropped_refused_.Add(static_cast<double>(rejected));
    return status;
  }

  otlp::ExportTraceServiceRequest MakeRequest(std::vector<otlp::OtlpSpan> spans) const {
    otlp::ExportTraceServiceRequest request;
    otlp::ResourceSpans* resource = request.add_resource_spans();
    for (const auto& [key, value] : options_.resource) {
      otlp::KeyValue* attribute = resource->mutable_resource()->add_attributes();
      attribute->set_key(key);
      attribute->mutable_value()->set_string_value(value);
    }
    otlp::ScopeSpans* scope = resource->add_scope_spans();
    scope->mutable_scope()->set_name("aisp");
    scope->mutable_scope()->set_version(options_.version);
    for (otlp::OtlpSpan& span : spans) *scope->add_spans() = std::move(span);
    return request;
  }

  const OtlpOptions options_;
  const std::string address_;
  const SteadyClock clock_;
  const std::shared_ptr<ConnectionBytes> bytes_ =
      std::make_shared<ConnectionBytes>(kMaxAnswerBytes);
  DialledBytes dialled_{bytes_};
  const std::unique_ptr<otlp::TraceService::Stub> stub_;
  Counter sent_;
  Counter dropped_queue_;
  Counter dropped_failed_;
  Counter dropped_refused_;
  LogThrottle complaints_;  // used by the thread

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<otlp::OtlpSpan> queue_;
  grpc::ClientContext* call_ = nullptr;
  bool stopping_ = false;
  Instant give_up_ = kNever;
  Thread thread_;  // last: it uses the other members
};

}  // namespace

Result<std::unique_ptr<OtlpExporter>> OtlpExporter::Create(const OtlpOptions& options,
                                                           Metrics* metrics) {
  AISP_ASSIGN_OR_RETURN(const Target target, ParseEndpoint(options.endpoint));
  return std::unique_ptr<OtlpExporter>(new OtlpExporterImpl(options, target, metrics));
}

}  // namespace aisp
