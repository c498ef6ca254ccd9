// AnswerSink: receives the answer to one text request, for any protocol. A GenerationJob owns it
// and calls, in order: OnPrepared, OnProgress whenever there is something new, then one of OnDone
// and OnFailed as the last call. OnFailed may come at any time, even first. The I/O thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "api/error.h"
#include "frontend/choice_stream.h"
#include "frontend/prepared_request.h"

namespace aisp {

// Usage of the whole request and its time to first token.
struct AnswerUsage {
  uint32_t prompt_tokens = 0;
  uint32_t completion_tokens = 0;
  uint32_t cached_tokens = 0;
  uint32_t reasoning_tokens = 0;
  std::string route;         // x-aisp-route
  std::string route_taken;   // the workers that ran it; "" before the first token
  std::string fallback;      // why it ran elsewhere than `route`; "": it did not
  uint32_t preemptions = 0;  // sum over all choices
  // Sums over all choices: verify steps, draft tokens, and accepted draft tokens.
  uint32_t draft_steps = 0, drafted = 0, accepted = 0;
  double mean_acceptance_length() const {
    return draft_steps == 0 ? 0 : 1 + static_cast<double>(accepted) / draft_steps;
  }
  bool timed = false;
  // TTFT; its parts are those the workers measured plus frontend_ms, the rest.
  double ttft_ms = 0;
  double frontend_ms = 0;
  v1::Timing timing;
};

class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  // The first call: the answer's traceparent; "" when requests are not traced.
  virtual void OnTraced(const std::string& traceparent) = 0;
  // The choices were submitted. `prepared` outlives the sink.
  virtual void OnPrepared(const PreparedRequest& prepared) = 0;
  virtual void OnRouted(const std::string& route) = 0;
  // `choice` has new output, or has ended.
  virtual void OnProgress(ChoiceStream& choice) = 0;
  virtual void OnDone(std::span<const std::unique_ptr<ChoiceStream>> choices,
                      const AnswerUsage& usage) = 0;
  // `retry_after`: when the client may retry.
  virtual void OnFailed(const ApiError& error, Duration retry_after) = 0;
};

}  // namespace aisp
