#include "tests/sim/client.h"

#include <fmt/format.h>

#include "tests/sim/sim_clock.h"
#include "tests/sim/timed_executor.h"

namespace aisp {
namespace {

SequenceRequest AsSequence(const RouterRequest& request) {
  SequenceRequest s;
  s.tokens = request.tokens;
  s.prompt_tokens = static_cast<int32_t>(request.tokens.size());
  s.sampling.temperature = request.sampling.temperature();
  s.sampling.seed = request.sampling.seed();
  s.sampling.choice = request.choice;
  s.sampling.num_logprobs = request.sampling.num_logprobs();
  s.sampling.frequency_penalty = request.sampling.frequency_penalty();
  s.sampling.presence_penalty = request.sampling.presence_penalty();
  s.sampling.repetition_penalty = request.sampling.repetition_penalty();
  s.max_new_tokens = static_cast<int32_t>(request.max_new_tokens);
  s.min_new_tokens = static_cast<int32_t>(request.min_new_tokens);
  s.stop_token_ids = request.stop_token_ids;
  s.pooling = static_cast<Pooling>(request.pooling);
  s.prompt_logprobs = request.prompt_logprobs;
  return s;
}

}  // namespace

SimClient::SimClient(SimWorld* world, SimCoverage* coverage, std::string name,
                     const ProvenanceOptions& model, RouterRequest request, const SimHabits& habits,
                     Duration grace, EndRequest end)
    : world_(world),
      coverage_(coverage),
      name_(std::move(name)),
      request_(std::move(request)),
      habits_(habits),
      grace_(grace),
      end_(std::move(end)) {
  const SequenceRequest sequence = AsSequence(request_);
  if (request_.pooling != v1::POOL_NONE) {
    expected_embedding_ = ExpectedEmbedding(model, sequence);
    expected_.finish = FinishReason::kStop;
  } else if (request_.max_new_tokens > 0) {
    expected_ = ExpectedOutput(model, sequence);
  } else {
    expected_.finish = FinishReason::kLength;
  }
  if (request_.prompt_logprobs >= 0) expected_logprobs_ = ExpectedPromptLogprobs(model, sequence);
}

void SimClient::Fail(const std::string& what) { world_->Fail(fmt::format("{}: {}", name_, what)); }

void SimClient::Submitted(const Result<RequestId>& id) {
  submitted_ = world_->Now();
  if (state_ != State::kNew) return;  // it ended inside Submit
  if (id) {
    state_ = State::kWaiting;
    id_ = *id;
    return;
  }
  state_ = State::kDone;
  outcome_ = "refused: " + id.error().message;
  const bool never_fits = id.error().code == Code::kOutOfRange;
  coverage_->Count(never_fits ? "request too large for a link" : "request refused");
  world_->Trace(name_, outcome_);
}

void SimClient::Leave(const std::string& why) {
  state_ = State::kGone;
  outcome_ = why;
}

void SimClient::OnRouted(const RouteDecision& route) {
  if (state_ != State::kNew && state_ != State::kWaiting) Fail("routed after its end");
  coverage_->Count("route " + route.reason);
  if (++routes_ > 1) {
    coverage_->Count("takeover");
    if (!received_.empty()) coverage_->Count("takeover in mid-stream");
  }
  world_->Trace(
      name_,
      fmt::format("routed to {} prefill={} ({}, predicted ttft {:.1f} ms, cached {}/{})",
                  route.decode_worker, route.prefill_worker, route.reason, route.predicted_ttft_ms,
                  route.cached_tokens_decode, route.cached_tokens_prefill));
}

void SimClient::OnTokens(const v1::TokenEvent& event) {
  if (state_ != State::kWaiting) return Fail("tokens without a request that waits");
  const size_t position = request_.tokens.size() + received_.size();
  if (event.first_position() != position) {
    return Fail(
        fmt::format("tokens at position {}, expected {}", event.first_position(), position));
  }
  if (received_.empty()) {
    first_token_ = world_->Now();
    CheckTiming(event.timing());
  }
  if (request_.sampling.num_logprobs() >= 0 && event.logprobs_size() != event.tokens_size())
    return Fail(
        fmt::format("{} logprobs of {} tokens", event.logprobs_size(), event.tokens_size()));
  for (int i = 0; i < event.tokens_size() && state_ == State::kWaiting; ++i) {
    TakeToken(event, i);
    ReadOn();
  }
}

void SimClient::CheckTiming(const v1::Timing& t) {
  if (t.queue_ns() < 0 || t.prefill_ns() < 0 || t.transfer_ns() < 0 || t.first_decode_ns() < 0)
    return Fail("a part of the TTFT is negative: " + t.ShortDebugString());
  const int64_t sum = t.queue_ns() + t.prefill_ns() + t.transfer_ns() + t.first_decode_ns();
  // By the worker's clock, which may run faster than this one.
  const auto waited = static_cast<double>((world_->Now() - submitted_).count());
  if (static_cast<double>(sum) > waited * (1 + SimClock::kMostDrift) + 1000) {
    return Fail(fmt::format("the parts of the TTFT are {} ns, it was {} ns", sum,
                            (world_->Now() - submitted_).count()));
  }
  if (t.has_pull())
    coverage_->Count("prefix pull " + v1::PrefixPull::Result_Name(t.pull().result()));
  if (t.kv_blocks_moved() == 0) return;
  coverage_->Count("first token after remote KV");
  if (t.first_decode_ns() > 0) return coverage_->Count("first token drawn behind remote KV");
  coverage_->Count("first token with remote KV");
  if (routes_ > 1) coverage_->Count("first token with remote KV after a takeover");
  if (expected_.tokens.size() == 1) coverage_->Count("first token with remote KV and the end");
}

void SimClient::TakeToken(const v1::TokenEvent& event, int at) {
  const TokenId token = event.tokens(at);
  const size_t i = received_.size();
  if (i >= expected_.tokens.size()) return Fail(fmt::format("token {} after the expected end", i));
  if (token != expected_.tokens[i]) {
    return Fail(fmt::format("token {} is {}, the oracle says {}: foreign or stale KV", i, token,
                            expected_.tokens[i]));
  }
  if (!expected_.logprobs.empty()) {
    if (event.logprobs(at).logprob() != expected_.logprobs[i])
      return Fail(fmt::format("the logprob of token {} is not the oracle's", i));
    coverage_->Count("logprob");
  }
  received_.push_back(token);
  world_->Digest(static_cast<uint64_t>(token));
}

void SimClient::ReadOn() {
  if (world_->failed()) return;
  if (received_.size() == habits_.stop_string_after) {
    coverage_->Count("stop string");
    state_ = State::kDone;
    ok_ = true;
    outcome_ = "ok";
    world_->Trace(name_, fmt::format("has a stop string after {} tokens", received_.size()));
    return end_(id_, /*completed=*/true);
  }
  if (habits_.reads_per_s <= 0) return;
  const double read = ToSeconds(world_->Now() - first_token_) * habits_.reads_per_s;
  if (static_cast<double>(received_.size()) - read <= static_cast<double>(habits_.most_unread))
    return;
  coverage_->Count("slow reader cut off");
  world_->Trace(name_, "reads too slowly");
  Leave("cancelled");
  end_(id_, /*completed=*/false);
}

void SimClient::OnPromptLogprobs(const v1::PromptLogprobs& logprobs) {
  if (state_ != State::kWaiting) return Fail("prompt logprobs without a request that waits");
  if (!received_.empty()) return Fail("prompt logprobs after the first token");
  if (logprobs.first_position() != logprobs_.size() + 1) {
    return Fail(fmt::format("prompt logprobs from position {}, expected {}",
                            logprobs.first_position(), logprobs_.size() + 1));
  }
  if (routes_ > 1 && !logprobs_.empty()) coverage_->Count("takeover in mid-prompt");
  for (const v1::TokenLogprobs& each : logprobs.logprobs()) logprobs_.push_back(each.logprob());
}

void SimClient::OnEmbedding(const v1::TokenEvent& event) {
  if (state_ != State::kWaiting) return Fail("an embedding without a request that waits");
  embedding_.assign(event.embedding().begin(), event.embedding().end());
}

void SimClient::CheckOutputs() {
  if (embedding_ != expected_embedding_) return Fail("another embedding than the oracle's");
  if (logprobs_ != expected_logprobs_) {
    return Fail(fmt::format("{} prompt logprobs that are not the oracle's {}", logprobs_.size(),
                            expected_logprobs_.size()));
  }
  if (!embedding_.empty()) coverage_->Count("embedding");
  if (!logprobs_.empty()) coverage_->Count("prompt logprobs");
  const v1::SamplingParams& p = request_.sampling;
  const bool repeats = p.repetition_penalty() != 0 && p.repetition_penalty() != 1;
  if (p.frequency_penalty() != 0 || p.presence_penalty() != 0 || repeats)
    coverage_->Count("request with penalties ok");
}

void SimClient::OnFinish(v1::FinishReason reason, const Error& error, Duration) {
  if (++finishes_ > 1) return Fail("finished twice");
  if (state_ == State::kGone) return Fail("finished after the client left");
  state_ = State::kDone;
  const bool normal = reason == v1::FINISH_STOP || reason == v1::FINISH_LENGTH;
  outcome_ = normal ? "ok" : error.ToString();
  world_->Trace(name_, fmt::format("finished after {} tokens: {}", received_.size(), outcome_));
  if (!normal) {
    if (reason != v1::FINISH_ERROR)
      return Fail(fmt::format("finish reason {} that nobody asked for", static_cast<int>(reason)));
    return CheckError(error);
  }
  if (poisonous()) return Fail("a request ended well that fails each step that it is in");
  ok_ = true;
  coverage_->Count("request ok");
  if (routes_ > 0 && request_.choice > 0) coverage_->Count("further choice ok");
  CheckOutputs();
  const bool stopped = expected_.finish == FinishReason::kStop;
  if (stopped != (reason == v1::FINISH_STOP))
    return Fail("wrong finish reason: " + v1::FinishReason_Name(reason));
  if (received_.size() != expected_.tokens.size()) {
    return Fail(
        fmt::format("finished after {} of {} tokens", received_.size(), expected_.tokens.size()));
  }
}

void SimClient::CheckError(const Error& error) {
  if (error.code == Code::kOk) return Fail("an error without a code");
  coverage_->Count(error.code == Code::kDeadlineExceeded ? "deadline exceeded" : "request failed");
  const auto says = [&](const char* what) { return error.message.find(what) != std::string::npos; };
  // Two workers that ended during one request before its first token: it counts as poison. One that
  // began as a prefill worker may decode by now.
  uint64_t ended = 0;
  for (const char* end :
       {"decode worker killed", "prefill worker killed", "prefill worker stopped",
        "decode worker killed during transfer", "decode worker stopped", "device failed",
        "router link broken", "router link half open", "link stalled", "zombie",
        "registered worker ousted", "worker ended by a request"})
    ended += coverage_->Get(end);
  if (error.code == Code::kInternal && ended >= 2 && says("workers ended")) {
    return coverage_->Count(habits_.poison == SimHabits::Poison::kProcess
                                ? "request that ends workers refused"
                                : "request taken for poison");
  }
  if (error.code == Code::kInternal && says("this row cannot be drawn"))
    return coverage_->Count("request ended by its row");
  if (habits_.poison == SimHabits::Poison::kStep && says(kSimStepPoison)) {
    if (says(" placements, the limit")) Fail("tried elsewhere, though it failed its step itself");
    return coverage_->Count("request ended by its step");
  }
  if (error.code == Code::kOutOfRange && says("the message is too large"))
    return coverage_->Count("request too large for a link");
  if (error.code != Code::kDeadlineExceeded && error.code != Code::kUnavailable &&
      error.code != Code::kResourceExhausted)
    Fail("an error that faults do not explain: " + outcome_);
}

void SimClient::CheckOverdue(Instant now) {
  if (state_ != State::kWaiting) return;
  if (now > submitted_ + request_.timeout + grace_) {
    Fail(fmt::format("no end {:.0f} ms after its deadline",
                     ToMs(now - submitted_ - request_.timeout)));
  }
}

}  // namespace aisp
