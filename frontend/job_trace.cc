#include "frontend/job_trace.h"

#include <fmt/format.h>

namespace aisp {

JobTrace::JobTrace(Traces* traces, const Clock* clock, const Caller& caller,
                   const TraceHeaders& headers)
    : traces_(traces), clock_(clock) {
  if (traces_ == nullptr) return;
  trace_ = traces_->Start(caller.request_id, headers, caller.received);
  trace_->Set(RequestTrace::kRoot, "http.route", caller.path);
  if (!caller.tenant.empty()) trace_->Set(RequestTrace::kRoot, "aisp.tenant", caller.tenant);
  open_ = trace_->Begin("receive", RequestTrace::kRoot, caller.received);
}

JobTrace::Choice& JobTrace::Of(uint32_t choice) {
  if (choices_.size() <= choice) choices_.resize(choice + 1);
  return choices_[choice];
}

void JobTrace::Preparing() {
  if (!trace_) return;
  const Instant now = clock_->Now();
  trace_->End(open_, now);
  open_ = trace_->Begin("prepare", RequestTrace::kRoot, now);
}

void JobTrace::Prepared(const AnswerUsage& usage, size_t choices) {
  if (!trace_) return;
  const Instant now = clock_->Now();
  trace_->Set(open_, "aisp.prompt_tokens", std::to_string(usage.prompt_tokens));
  trace_->Set(open_, "aisp.choices", std::to_string(choices));
  trace_->End(open_, now);
  open_ = trace_->Begin("admit", RequestTrace::kRoot, now);
}

void JobTrace::Submitting(uint32_t choice) {
  if (!trace_) return;
  const Instant now = clock_->Now();
  trace_->End(open_, now);
  open_ = RequestTrace::kNone;
  Of(choice).route = trace_->Begin("route", RequestTrace::kRoot, now);
}

void JobTrace::Routed(uint32_t choice, const RouteDecision& route) {
  if (!trace_) return;
  const Instant now = clock_->Now();
  Choice& c = Of(choice);
  const bool again = c.route == RequestTrace::kNone;
  const int span = again ? trace_->Begin("route", RequestTrace::kRoot, now) : c.route;
  if (again) trace_->Set(span, "aisp.again", "its worker was lost or drains");
  trace_->Set(span, "aisp.decode_worker", route.decode_worker);
  trace_->Set(span, "aisp.prefill_worker",
              route.prefill_worker.empty() ? "local" : route.prefill_worker);
  trace_->Set(span, "aisp.reason", route.reason);
  trace_->Set(span, "aisp.predicted_ttft_ms", fmt::format("{:.1f}", route.predicted_ttft_ms));
  if (choice > 0) trace_->Set(span, "aisp.choice", std::to_string(choice));
  trace_->End(span, now);
  c.route = RequestTrace::kNone;
  c.worker = route.decode_worker;
  c.asked = now;
}

void JobTrace::FirstToken(uint32_t choice, const v1::Timing* timing) {
  if (!trace_) return;
  const Instant now = clock_->Now();
  Choice& c = Of(choice);
  if (timing != nullptr) trace_->AddReported(RequestTrace::kRoot, c.asked, timing->spans(), choice);
  c.decode = trace_->Begin("decode", RequestTrace::kRoot, now);
  if (choice > 0) trace_->Set(c.decode, "aisp.choice", std::to_string(choice));
  if (stream_ == RequestTrace::kNone) stream_ = trace_->Begin("stream", RequestTrace::kRoot, now);
}

void JobTrace::ChoiceEnded(const ChoiceStream& choice) {
  if (!trace_) return;
  Choice& c = Of(choice.index());
  trace_->Set(c.decode, "aisp.worker", c.worker);
  trace_->Set(c.decode, "aisp.tokens", std::to_string(choice.completion_tokens()));
  if (choice.preemptions() > 0)
    trace_->Set(c.decode, "aisp.preemptions", std::to_string(choice.preemptions()));
  trace_->End(c.decode, clock_->Now());
}

void JobTrace::Close(const Outcome& outcome) {
  if (!trace_) return;
  trace_->Set(RequestTrace::kRoot, "aisp.status", std::string(CodeName(outcome.code)));
  if (outcome.usage != nullptr) {
    trace_->Set(RequestTrace::kRoot, "aisp.completion_tokens",
                std::to_string(outcome.usage->completion_tokens));
    if (!outcome.usage->route_taken.empty())
      trace_->Set(RequestTrace::kRoot, "aisp.route_taken", outcome.usage->route_taken);
  }
  if (outcome.ttft)
    trace_->Set(RequestTrace::kRoot, "aisp.ttft_ms", fmt::format("{:.3f}", ToMs(*outcome.ttft)));
  if (!outcome.error.empty()) trace_->SetError(RequestTrace::kRoot, outcome.error);
  traces_->Finish(*trace_);
}

}  // namespace aisp
