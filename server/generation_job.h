// GenerationJob: one HTTP request for text, from its body to the last byte of its answer.
//
//   parse, template, tokenize (a pool thread)  ->  submit every choice to the router  ->  stream or collect  ->  answer
//
// Ends in exactly one of: a whole answer, a finished stream, an error answer (before the first byte), an error event and
// [DONE] (after it), or silence because the client is gone; then everything it started is cancelled.
// Keeps itself alive while the exchange or the router may call it. The I/O thread, but for the parsing.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "api/request.h"
#include "api/response.h"
#include "common/metrics.h"
#include "net/http_server.h"
#include "server/choice_stream.h"
#include "server/served_model.h"
#include "server/work_pool.h"

namespace aisp {

// What all jobs share; outlives them.
struct FrontendContext {
  const ServedModel* model = nullptr;
  Router* router = nullptr;
  WorkPool* pool = nullptr;
  IoLoop* loop = nullptr;
  const Clock* clock = nullptr;
  Duration keepalive_comment = std::chrono::seconds(15);
  std::function<int64_t()> unix_time_s;
  std::function<void(Endpoint, int status)> count_request;
  Counter disconnected;
};

class GenerationJob final : public std::enable_shared_from_this<GenerationJob>,
                            public ChoiceStream::Listener {
 public:
  // Starts a job; it lives as long as it must.
  static void Start(FrontendContext* context, std::shared_ptr<HttpExchange> exchange,
                    Endpoint endpoint, std::string trace_id);

  void OnChoiceRouted(ChoiceStream& choice, const RouteDecision& route) override;
  void OnChoiceAdvanced(ChoiceStream& choice) override;
  void OnChoiceStopped(ChoiceStream& choice) override;

 private:
  // What a pool thread makes of the body.
  struct Prepared {
    GenerationOptions options;
    std::vector<std::vector<TokenId>> prompts;
    std::vector<std::string>
        echoes;  // one per prompt when the prompt's text is wanted back, else empty
  };

  GenerationJob(FrontendContext* context, std::shared_ptr<HttpExchange> exchange, Endpoint endpoint,
                std::string trace_id);
  static ApiResult<Prepared> Prepare(const ServedModel& model, Endpoint endpoint,
                                     const std::string& body);
  void OnPrepared(ApiResult<Prepared> prepared);
  ApiResult<void> CheckLengths() const;
  void SubmitAll();
  RouterRequest MakeRequest(size_t prompt, uint32_t choice) const;
  void OnGone(HttpExchange::Gone why);

  void BeginStream();
  void StreamChoice(ChoiceStream& choice);
  void ArmKeepAlive();
  void FinishStream();
  void AnswerWhole();
  void Fail(const ApiError& error, Duration retry_after);
  void Close();
  Usage MakeUsage() const;
  // The `aisp` object of usage: route, and TTFT with its parts in milliseconds.
  std::string MakeTimingJson() const;
  HttpHeaders MakeHeaders(std::string_view content_type) const;
  // Writes what has gathered in `out_`.
  void Flush();

  FrontendContext* const context_;
  std::shared_ptr<HttpExchange> exchange_;
  const Endpoint endpoint_;
  const std::string trace_id_;
  const Instant received_;
  Prepared prepared_;
  std::unique_ptr<ResponseEncoder> encoder_;
  std::vector<std::unique_ptr<ChoiceStream>> choices_;
  std::vector<bool> role_sent_;
  size_t ended_ = 0;
  RouteDecision route_;
  bool routed_ = false;
  bool streaming_ = false;  // the first byte is out
  bool closed_ = false;
  bool submitting_ = false;
  Instant submitted_;
  Instant first_token_ = kNever;
  Instant last_write_;
  std::string out_;
  std::shared_ptr<IoLoop::Timer> keepalive_;
  std::shared_ptr<GenerationJob> self_;  // until closed
};

}  // namespace aisp
