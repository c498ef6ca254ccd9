// JobTrace: records the events of one GenerationJob as the spans of its trace:
//
//   request
//     receive     from the first byte to the job
//     prepare     waits for a tokenizer; parse, template, tokenize
//     admit       until the router is asked
//     route       one for each choice and each takeover: until a worker is chosen
//     queue, prefill (below it a chunk per step), transfer, first decode
//                 as the workers report them
//     decode      from the first token of a choice to its last
//     stream      from the first token of all to the end of the answer
//
// Plain state without I/O. The router's thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "frontend/request_log.h"
#include "frontend/traces.h"
#include "router/router.h"

namespace aisp {

class JobTrace {
 public:
  // `traces` null: nothing is recorded.
  JobTrace(Traces* traces, const Clock* clock, const Caller& caller, const TraceHeaders& headers);

  void Preparing();
  void Prepared(const AnswerUsage& usage, size_t choices);
  void Submitting(uint32_t choice);
  void Routed(uint32_t choice, const RouteDecision& route);
  void FirstToken(uint32_t choice, const v1::Timing* timing);
  void ChoiceEnded(const ChoiceStream& choice);
  // Ends the trace; later calls record nothing.
  void Close(const Outcome& outcome);

  // The answer's traceparent; "" without a trace.
  std::string Traceparent() const { return trace_ ? trace_->Traceparent() : ""; }
  std::string trace_id() const { return trace_ ? ToHex(trace_->trace_id()) : ""; }

 private:
  struct Choice {
    int route = RequestTrace::kNone;  // the open span
    int decode = RequestTrace::kNone;
    std::string worker;
    Instant asked;  // when the request was sent to its worker
  };
  Choice& Of(uint32_t choice);

  Traces* const traces_;
  const Clock* const clock_;
  std::shared_ptr<RequestTrace> trace_;
  int open_ = RequestTrace::kNone;  // the open receive, prepare or admit span
  int stream_ = RequestTrace::kNone;
  std::vector<Choice> choices_;
};

}  // namespace aisp
