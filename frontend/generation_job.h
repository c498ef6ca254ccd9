// GenerationJob: one request for text, from what the client sent to the last token of its answer,
// for any surface.
//
//   parse, template, tokenize, compile what the answer must follow (pool threads)  ->  submit every
//   choice to the router  ->  tell the sink  ->  one line in the log
//
// Ends in exactly one of: the sink's OnDone, its OnFailed, or silence because the client is gone
// (Abandon); then everything it started is cancelled. Keeps itself alive while the sink or the
// router may call it. The I/O thread, but for the parsing.
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

// What all requests share; outlives them.
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
  // Of whole answers while they are made: of one, of all, and what they hold now.
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
    // Of the surface (a header, the call's deadline), beside what the request itself says; zero:
    // none.
    Duration timeout{};
    PrefillPreference prefill = PrefillPreference::kAuto;
    Objective objective;
    std::optional<ServiceClass> service_class;  // counts before the request's own
    std::string idempotency_key;                // "": none
    Hash128 content;                            // with a key: of what was asked, and where
    size_t bytes = 0;                           // of the request as it came
    TraceHeaders trace;
    // Runs on a pool thread.
    std::function<ApiResult<PreparedRequest>()> prepare;
  };
  // Starts a job; it lives as long as it must.
  static std::shared_ptr<GenerationJob> Start(FrontendContext* context, Request request,
                                              std::unique_ptr<AnswerSink> sink);

  // The client is gone: nothing more is told to the sink. `why`: for the log.
  void Abandon(std::string_view why);

  void OnChoiceRouted(ChoiceStream& choice, const RouteDecision& route) override;
  void OnChoiceAdvanced(ChoiceStream& choice) override;
  void OnChoiceStopped(ChoiceStream& choice) override;

 private:
  GenerationJob(FrontendContext* context, Request request, std::unique_ptr<AnswerSink> sink);
  void Begin();
  // On a pool thread: parses and tokenizes, where that is still wanted.
  ApiResult<PreparedRequest> PrepareInTime() const;
  // Likewise: what follows. Constraints that are not kept compiled are not these threads' work.
  static void Compile(std::shared_ptr<GenerationJob> job, ApiResult<PreparedRequest> prepared,
                      const TenantShare& share);
  static void TellPrepared(std::shared_ptr<GenerationJob> job, ApiResult<PreparedRequest> prepared);
  void OnPrepared(ApiResult<PreparedRequest> prepared);
  void SubmitAll();
  // As many choices as may be under way at once; the others when those end.
  void SubmitMore();
  void SubmitOne(uint32_t index);
  size_t MostAtOnce() const;
  // What a whole answer holds since the last look; an error when that is too much.
  std::optional<ApiError> HoldAnswer(const ChoiceStream& choice);
  // What is left until the deadline; zero when it has passed.
  Duration TimeLeft() const;
  RouterRequest MakeRequest(uint32_t choice) const;
  int32_t Priority() const;
  TenantShare ShareOfTenant() const;
  // A promise of times is for interactive requests alone.
  ApiResult<void> CheckClass() const;
  void Fail(const ApiError& error, Duration retry_after);
  // As Fail, before the router saw it.
  void Reject(Rejection reason, const ApiError& error, Duration retry_after = {});
  // Cancels what still runs and lets go of itself; nothing is called after it.
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
  size_t first_choice_ = 0;              // whose token came first
  size_t held_ = 0;                      // by the choices of a whole answer
  std::vector<size_t> held_of_;          // each of them
  std::vector<uint32_t> counted_;        // tokens of each choice that the statistics know
  std::shared_ptr<GenerationJob> self_;  // until closed
};

// "remote" and "local" of x-aisp-prefill; anything else leaves it to the router.
PrefillPreference PrefillPreferenceOf(std::string_view header);
// x-slo-ttft-ms and x-slo-tpot-ms.
ApiResult<Objective> ObjectiveOf(std::string_view ttft, std::string_view tpot);

}  // namespace aisp
