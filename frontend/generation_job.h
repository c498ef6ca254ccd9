// GenerationJob: one text request on any surface, from the client's bytes to the last token.
//
//   parse, template, tokenize, compile constraints (pool threads)
//     ->  submit every choice to the router  ->  report to the sink  ->  write one log line
//
// It ends with exactly one of: the sink's OnDone, its OnFailed, or nothing because the client is
// gone (Abandon). Then everything it started is cancelled. It keeps itself alive while the sink or
// the router may call it. The I/O thread, except for the pool's part.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/event_loop.h"
#include "common/hash.h"
#include "frontend/answer_ids.h"
#include "frontend/answer_sink.h"
#include "frontend/frontend_metrics.h"
#include "frontend/job_trace.h"
#include "frontend/live_stats.h"
#include "frontend/lora_requests.h"
#include "frontend/pool_turn.h"
#include "frontend/request_log.h"
#include "frontend/response_store.h"
#include "frontend/tenants.h"
#include "frontend/work_queue.h"

namespace aisp {

// Shared by all requests, and outlives them.
struct FrontendContext {
  const TextModel* model = nullptr;
  Router* router = nullptr;
  WorkQueue* pool = nullptr;
  EventLoop* loop = nullptr;
  const Clock* clock = nullptr;
  Tenants* tenants = nullptr;
  RequestLog* log = nullptr;
  LiveStats* stats = nullptr;
  std::shared_ptr<ResponseStore> responses;
  Traces* traces = nullptr;  // null: requests are not traced
  Duration keepalive_comment = std::chrono::seconds(15);
  Duration default_timeout = std::chrono::seconds(300);
  // Memory of answers under construction: limit for one, limit for all, and current use.
  size_t max_answer_bytes = 64 << 20;
  size_t max_answers_bytes = 1 << 30;
  size_t answers_bytes = 0;
  int64_t started_unix_s = 0;
  FrontendMetrics metrics;
  LoraRequests* loras = nullptr;
};

class GenerationJob final : public std::enable_shared_from_this<GenerationJob>,
                            public ChoiceStream::Listener {
 public:
  struct Request {
    Caller caller;
    // Timeout from the surface (a header or gRPC deadline), besides the request's own; zero: none.
    Duration timeout{};
    PrefillPreference prefill = PrefillPreference::kAuto;
    Objective objective;
    std::optional<ServiceClass> service_class;  // overrides the request's own
    std::string idempotency_key;                // "": none
    Hash128 content;                            // with a key: hash of the request and its path
    size_t bytes = 0;                           // size of the request as received
    TraceHeaders trace;
    // Runs on a pool thread.
    std::function<ApiResult<PreparedRequest>()> prepare;
  };
  // Starts a job, which owns itself.
  static std::shared_ptr<GenerationJob> Start(FrontendContext* context, Request request,
                                              std::unique_ptr<AnswerSink> sink);

  // The client is gone: the sink is not called again. `why`: for the log.
  void Abandon(std::string_view why);

  void OnChoiceRouted(ChoiceStream& choice, const RouteDecision& route) override;
  void OnChoiceAdvanced(ChoiceStream& choice) override;
  void OnChoiceStopped(ChoiceStream& choice) override;

 private:
  GenerationJob(FrontendContext* context, Request request, std::unique_ptr<AnswerSink> sink);
  void Begin();
  // On a pool thread: parses and tokenizes, unless the request is no longer wanted.
  ApiResult<PreparedRequest> PrepareInTime() const;
  // On a pool thread: the next step. Uncached constraints are compiled on other threads.
  static void Compile(std::shared_ptr<GenerationJob> job, ApiResult<PreparedRequest> prepared,
                      const TenantShare& share);
  static void TellPrepared(std::shared_ptr<GenerationJob> job, ApiResult<PreparedRequest> prepared);
  void OnPrepared(ApiResult<PreparedRequest> prepared);
  void SubmitAll();
  // Submits choices up to the limit of concurrent ones; called again as choices end.
  void SubmitMore();
  void SubmitOne(uint32_t index);
  size_t MostAtOnce() const;
  // Counts the memory that a choice holds; an error when a limit is exceeded.
  std::optional<ApiError> HoldAnswer(const ChoiceStream& choice);
  // Time until the deadline; zero when it has passed.
  Duration TimeLeft() const;
  RouterRequest MakeRequest(uint32_t choice) const;
  int32_t Priority() const;
  TenantShare ShareOfTenant() const;
  // Latency targets are for interactive requests only.
  ApiResult<void> CheckClass() const;
  void Fail(const ApiError& error, Duration retry_after);
  // As Fail, for a request that the router has not seen.
  void Reject(Rejection reason, const ApiError& error, Duration retry_after = {});
  // Cancels what still runs and releases itself; nothing is called afterwards.
  void Close(Outcome outcome);
  void CountTokens(const ChoiceStream& choice);
  void CountEnd(const Outcome& outcome);
  AnswerUsage MakeUsage() const;

  FrontendContext* const context_;
  const Request request_;
  const std::unique_ptr<AnswerSink> sink_;
  JobTrace trace_;
  Tenants::Slot slot_;
  PreparedRequest prepared_;
  LoraRequests::Use lora_;
  std::vector<std::unique_ptr<ChoiceStream>> choices_;
  size_t ended_ = 0;
  std::string route_;
  bool closed_ = false;
  PoolTurn turn_;
  Instant first_token_ = kNever;
  Instant last_token_ = kNever;
  size_t first_choice_ = 0;              // the one with the first token
  size_t held_ = 0;                      // bytes held by the choices
  std::vector<size_t> held_of_;          // per choice
  std::vector<uint32_t> counted_;        // tokens of each choice already in the statistics
  std::shared_ptr<GenerationJob> self_;  // released by Close
};

// The value of x-aisp-route. `waited`: since the request was received, which the router does not
// know of; a client's TTFT contains it.
std::string RouteText(const RouteDecision& route, Duration waited);

// Parses x-aisp-prefill: "remote", "local"; any other value leaves it to the router.
PrefillPreference PrefillPreferenceOf(std::string_view header);
// Parses x-slo-ttft-ms and x-slo-tpot-ms, and the same under llm-d's names (x-llm-d-slo-...); of
// two values the smaller counts. `header`: the value of a header, "" if absent.
ApiResult<Objective> ObjectiveOf(const std::function<std::string_view(std::string_view)>& header);

}  // namespace aisp
