// HttpTextAnswer: the answer to a request for text over HTTP: a JSON object at the end, or SSE
// events as tokens come, in the shape that the request's encoder writes (api/answer_encoder.h).
// Also the small helpers that every HTTP answer shares. The I/O thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "frontend/event_stream.h"
#include "frontend/generation_job.h"
#include "proto/http_exchange.h"

namespace aisp {

// The JSON of an error in the shape that a path's clients read: /v1/messages has its own.
std::string ErrorBodyFor(const HttpRequest& request, int status, std::string_view message);
std::string ErrorBodyFor(std::string_view path, std::string_view request_id, int status,
                         std::string_view message);

// The header x-aisp-ignored: which fields of the body nobody here knows. None: not there.
void AddIgnored(const PreparedRequest* prepared, HttpHeaders* headers);

// Answers `error` in that shape, with Retry-After where trying again makes sense. Returns the
// status.
int RespondError(HttpExchange& exchange, const ApiError& error, Duration retry_after = {},
                 HttpHeaders headers = {});

class HttpTextAnswer final : public AnswerSink {
 public:
  // `tenant`: whose turn it is when the pool writes a large answer.
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
  // A stream that is silent, before its first token too, gets a comment, so that no proxy takes it
  // for dead.
  void ArmKeepAlive();
  HttpHeaders Headers(std::string_view content_type) const;

  FrontendContext* const context_;
  const std::shared_ptr<HttpExchange> exchange_;
  const TenantShare tenant_;
  const PreparedRequest* prepared_ = nullptr;
  std::unique_ptr<AnswerEncoder> encoder_;  // of a whole answer
  std::shared_ptr<EventStream> events_;     // of a streamed one
  std::vector<bool> opened_;                // choices whose first event is out
  size_t gathered_ = 0;                     // by an encoder that says all of it at the end
  // Of the route and the trace, as far as they are known.
  void AddOwnHeaders(HttpHeaders* headers) const;

  std::string traceparent_;
  std::string route_;
  std::string taken_;       // "" when the head went out before the first token
  bool streaming_ = false;  // the head is out
  std::shared_ptr<EventLoop::Timer> keepalive_;
};

}  // namespace aisp
