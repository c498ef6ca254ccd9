// AnswerSink: where the answer to one request for text goes, whatever the client speaks. A
// GenerationJob owns one and tells it, in order: OnPrepared, then OnProgress as often as there is
// something new, then one of OnDone and OnFailed, which is the last call. OnFailed may come at any
// moment, also first. The I/O thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "api/error.h"
#include "frontend/choice_stream.h"
#include "frontend/prepared_request.h"

namespace aisp {

// What the whole request has used, and how long the first token took.
struct AnswerUsage {
  uint32_t prompt_tokens = 0;
  uint32_t completion_tokens = 0;
  uint32_t cached_tokens = 0;
  uint32_t reasoning_tokens = 0;
  std::string route;         // x-aisp-route
  std::string route_taken;   // where it ran after all; "" before the first token
  std::string fallback;      // why that differs from the route; "": it does not
  uint32_t preemptions = 0;  // of all choices
  // Likewise: steps that verified proposed tokens, how many tokens, and those that stood.
  uint32_t draft_steps = 0, drafted = 0, accepted = 0;
  double mean_acceptance_length() const {
    return draft_steps == 0 ? 0 : 1 + static_cast<double>(accepted) / draft_steps;
  }
  bool timed = false;
  // The parts add up to ttft_ms: what the workers measured, and what is left for the frontend.
  double ttft_ms = 0;
  double frontend_ms = 0;
  v1::Timing timing;
};

class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  // First of all: the answer's traceparent; "" when requests are not traced.
  virtual void OnTraced(const std::string& traceparent) = 0;
  // `prepared` outlives the sink. The choices have been submitted.
  virtual void OnPrepared(const PreparedRequest& prepared) = 0;
  virtual void OnRouted(const std::string& route) = 0;
  // `choice` has news, or has ended.
  virtual void OnProgress(ChoiceStream& choice) = 0;
  virtual void OnDone(std::span<const std::unique_ptr<ChoiceStream>> choices,
                      const AnswerUsage& usage) = 0;
  // `retry_after`: of what may be tried again.
  virtual void OnFailed(const ApiError& error, Duration retry_after) = 0;
};

}  // namespace aisp
