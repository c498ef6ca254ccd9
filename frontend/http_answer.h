// HttpTextAnswer: the HTTP answer to a text request: a JSON object at the end, or SSE events as
// tokens come, in the shape of the request's encoder (api/answer_encoder.h). Also helpers that all
// HTTP answers share. The I/O thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "frontend/event_stream.h"
#include "frontend/generation_job.h"
#include "proto/http_exchange.h"

namespace aisp {

// The JSON of an error in the shape of the path's API: /v1/messages has its own.
std::string ErrorBodyFor(const HttpRequest& request, int status, std::string_view message);
std::string ErrorBodyFor(std::string_view path, std::string_view request_id, int status,
                         std::string_view message);

// Adds x-aisp-ignored: the body's unrecognized fields. No header if there are none.
void AddIgnored(const PreparedRequest* prepared, HttpHeaders* headers);

// Answers `error` in that shape, with Retry-After if a retry may succeed. Returns the status.
int RespondError(HttpExchange& exchange, const ApiError& error, Duration retry_after = {},
                 HttpHeaders headers = {});

class HttpTextAnswer final : public AnswerSink {
 public:
  // `tenant`: for the pool's fair scheduling of large answers.
  HttpTextAnswer(FrontendContext* context, std::shared_ptr<HttpExchange> exchange,
                 TenantShare tenant);

  void OnTraced(const std::string& traceparent) override { traceparent_ = traceparent; }
  void OnPrepared(const PreparedRequest& prepared) override;
  void OnRouted(const std::string& route) override { route_ = route; }
  void OnProgress(ChoiceStream& choice) override;
  void OnDone(std::span<const std::unique_ptr<ChoiceStream>> choices,
              const AnswerUsage& usage) override;
  void OnFailed(const ApiError& error, Duration retry_after) override;

 private:
  void BeginStream();
  std::unique_ptr<AnswerEncoder> MakeEncoder() const;
  std::string CallId(uint32_t choice, uint32_t call) const;
  void AnswerWhole(std::span<const std::unique_ptr<ChoiceStream>> choices, const Usage& usage);
  // A stream without events, even before its first token, sends comments so that proxies keep it.
  void ArmKeepAlive();
  HttpHeaders Headers(std::string_view content_type) const;

  FrontendContext* const context_;
  const std::shared_ptr<HttpExchange> exchange_;
  const TenantShare tenant_;
  const PreparedRequest* prepared_ = nullptr;
  std::unique_ptr<AnswerEncoder> encoder_;  // for a whole answer
  std::shared_ptr<EventStream> events_;     // for a streamed answer
  std::vector<bool> opened_;                // choices whose first event was sent
  size_t gathered_ = 0;                     // bytes held by an encoder that repeats everything at
                                            // the end
  // Headers about route and trace, as far as known.
  void AddOwnHeaders(HttpHeaders* headers) const;

  std::string traceparent_;
  std::string route_;
  std::string taken_;       // "" when the head was sent before the first token
  bool streaming_ = false;  // the head was sent
  std::shared_ptr<EventLoop::Timer> keepalive_;
};

}  // namespace aisp
