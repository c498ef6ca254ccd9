// Service classes at the router: which requests wait for room, when they are sent, yield and age.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <deque>

#include "tests/router/router_harness.h"

namespace aisp {
namespace {

using namespace std::chrono_literals;

constexpr auto kBatch = ServiceClass::kBatch;
constexpr auto kBestEffort = ServiceClass::kBestEffort;

RouterOptions Options() {
  RouterOptions options;
  options.slo_ttft = 500ms;
  options.slo_tpot = 50ms;
  // Long limits, so that workers may stay silent during a test.
  options.silence_limit = 1h;
  options.default_timeout = 1h;
  return options;
}

// A worker whose decode rows take 5 ms of a step each, and whose prefill takes 1 ms per token.
v1::Telemetry KnownSteps(RouterHarness& h) {
  v1::Telemetry t = h.ReadyTelemetry();
  for (uint32_t i = 0; i < 40; ++i) {
    v1::StepSample* prompt = t.add_steps();
    const uint32_t tokens = 10 + 5 * i;
    prompt->set_prefill_tokens(tokens);
    prompt->set_prefill_context(uint64_t{tokens} * (tokens + 1) / 2);
    prompt->set_duration_ns(tokens * 1'000'000ull);
    v1::StepSample* decode = t.add_steps();
    decode->set_decode_rows(1 + i % 16);
    decode->set_decode_context((1 + i % 16) * 100);
    decode->set_duration_ns((1 + i % 16) * 5'000'000ull);
  }
  return t;
}

class Classes : public testing::Test {
 protected:
  explicit Classes(const RouterOptions& options = Options()) : h(options) {}
  RouterRequest Of(ServiceClass service_class, const std::string& name, uint32_t new_tokens = 100,
                   const std::string& tenant = "") const {
    RouterRequest request = h.Request(20, new_tokens);
    request.trace_id = name;
    request.tenant.name = tenant;
    request.tenant.service_class = service_class;
    return request;
  }
  Result<RequestId> Submit(const RouterRequest& request) {
    return h.Submit(request, &seen.emplace_back());
  }
  std::vector<std::string> Sent(LinkId link) const {
    std::vector<std::string> names;
    for (const v1::GenerateRequest& g : h.Generates(link)) names.push_back(g.trace_id());
    return names;
  }
  // A worker with room for 32 sequences.
  LinkId Add(const std::string& id) {
    v1::Register registration = h.Registration(id, v1::ROLE_DECODE);
    registration.set_max_running(32);
    const LinkId link = h.Attach(registration);
    h.Report(link, KnownSteps(h));
    return link;
  }
  // Reports `rows` running rows, all interactive requests of others.
  void ReportRows(LinkId link, uint32_t rows) {
    v1::Telemetry busy = h.ReadyTelemetry();
    busy.set_running(rows);
    h.Report(link, busy);
  }

  RouterHarness h;
  std::deque<RecordingObserver> seen;
};

TEST_F(Classes, BatchIsSentWhereInteractiveRequestsKeepTheirTpotWithRoomToSpare) {
  const LinkId d = Add("d");
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Submit(Of(kBatch, "batch" + std::to_string(i))));
  h.Advance(1s);
  // 50 ms per step allow ten rows; four fifths of that are eight.
  const size_t sent = Sent(d).size();
  EXPECT_GE(sent, 6u);
  EXPECT_LE(sent, 8u);
  EXPECT_TRUE(h.HasMetric("aisp_class_queued_requests{class=\"batch\"", std::to_string(20 - sent)));
  for (const v1::GenerateRequest& generate : h.Generates(d)) {
    EXPECT_EQ(generate.tenant().service_class(), v1::CLASS_BATCH);
    EXPECT_GT(generate.tenant().patience_ms(), 0u);
  }
  // One ends and the next one is sent; none is lost.
  h.Tokens(d, h.Generates(d).front().request_id(), 20, {1}, v1::FINISH_STOP);
  ReportRows(d, static_cast<uint32_t>(sent - 1));
  h.Advance(1s);
  EXPECT_EQ(Sent(d).size(), sent + 1);
}

TEST_F(Classes, BatchWaitsWhileInteractiveRequestsHaveTheRoomAndIsSentOnceTheyHaveIt) {
  const LinkId d = Add("d");
  ReportRows(d, 9);
  ASSERT_TRUE(Submit(Of(kBestEffort, "best-effort")));
  ASSERT_TRUE(Submit(Of(kBatch, "batch")));
  h.Advance(5s);
  EXPECT_TRUE(Sent(d).empty());
  ASSERT_TRUE(Submit(Of(ServiceClass::kInteractive, "interactive")));
  EXPECT_EQ(Sent(d), std::vector<std::string>{"interactive"});
  ReportRows(d, 1);
  h.Advance(1s);
  EXPECT_EQ(Sent(d), (std::vector<std::string>{"interactive", "batch", "best-effort"}))
      << "batch goes before best-effort, whoever came first";
}

// A token takes four times the limit in any case, so waiting does not help.
TEST_F(Classes, AWorkerSlowerThanAnyLimitComputesBatchWhenNothingElseRunsThere) {
  const LinkId d = h.Attach(h.Registration("d", v1::ROLE_DECODE));
  v1::Telemetry slow = KnownSteps(h);
  for (v1::StepSample& step : *slow.mutable_steps())
    if (step.decode_rows() > 0) step.set_duration_ns(200'000'000);
  h.Report(d, slow);
  for (const char* name : {"first", "second"}) ASSERT_TRUE(Submit(Of(kBatch, name)));
  h.Advance(1s);
  ASSERT_EQ(Sent(d), std::vector<std::string>{"first"});
  h.Tokens(d, h.Generates(d).front().request_id(), 20, {1}, v1::FINISH_STOP);
  ReportRows(d, 0);
  h.Advance(1s);
  EXPECT_EQ(Sent(d), (std::vector<std::string>{"first", "second"}));
}

TEST_F(Classes, AnInteractiveRequestTakesTheRowsOfBatchThatItsTpotWants) {
  const LinkId d = Add("d");
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(Submit(Of(kBatch, "batch" + std::to_string(i))));
  h.Advance(40ms);
  const size_t sent = Sent(d).size();
  ASSERT_GE(sent, 6u);
  // The newest has one token and continues after it.
  const uint64_t newest = h.Generates(d).back().request_id();
  h.Tokens(d, newest, 20, {7});
  v1::Telemetry busy = h.ReadyTelemetry();
  busy.set_running(static_cast<uint32_t>(sent));
  busy.set_yielding_rows(static_cast<uint32_t>(sent));
  busy.set_yielding_blocks(20);
  h.Report(d, busy);
  int cancelled = 0;
  for (int i = 0; i < 9; ++i) {
    // Their prompts together would be more than a worker computes in time.
    h.Advance(100ms);
    RouterRequest request = Of(ServiceClass::kInteractive, "interactive");
    request.objective.tpot_ms = 50;
    const auto taken = Submit(request);
    EXPECT_TRUE(taken) << i << ": " << taken.error().message;
    cancelled = h.Count(d, v1::RouterMessage::kCancel);
  }
  EXPECT_GE(cancelled, 5);
  const v1::RouterMessage* first_cancel = nullptr;
  for (const v1::RouterMessage& m : h.sender.sent[d]) {
    if (m.has_cancel() && first_cancel == nullptr) first_cancel = &m;
  }
  ASSERT_NE(first_cancel, nullptr);
  EXPECT_EQ(first_cancel->cancel().request_id(), newest);
  for (const RecordingObserver& each : seen) EXPECT_EQ(each.finishes, 0);
  // Room is free again: it is placed again, with its token.
  h.Advance(10ms);
  ReportRows(d, 0);
  h.Advance(1s);
  bool again = false;
  for (const v1::GenerateRequest& g : h.Generates(d))
    again = again || (g.tokens_size() == 21 && g.tokens(20) == 7 && g.prompt_tokens() == 20);
  EXPECT_TRUE(again);
}

TEST_F(Classes, WhatHasWaitedTooLongGoesAsAnInteractiveOneOneForEachWorkerAtATime) {
  const LinkId d = Add("d");
  ReportRows(d, 30);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Submit(Of(kBatch, "batch" + std::to_string(i))));
  h.Advance(59s);
  EXPECT_TRUE(Sent(d).empty());
  h.Advance(2s);
  ASSERT_EQ(Sent(d), std::vector<std::string>{"batch0"});
  EXPECT_EQ(h.Generates(d).front().tenant().service_class(), v1::CLASS_INTERACTIVE);
  h.Advance(10s);
  EXPECT_EQ(Sent(d).size(), 1u);
  h.Tokens(d, h.Generates(d).front().request_id(), 20, {1}, v1::FINISH_STOP);
  h.Advance(1s);
  EXPECT_EQ(Sent(d), (std::vector<std::string>{"batch0", "batch1"}));
}

TEST_F(Classes, AQueuedRequestIsCancelledOrEndsAtItsDeadlineLikeAnyOther) {
  const LinkId d = Add("d");
  ReportRows(d, 30);
  RouterRequest request = Of(kBatch, "late");
  request.timeout = 2s;
  ASSERT_TRUE(Submit(request));
  const auto cancelled = Submit(Of(kBatch, "cancelled"));
  ASSERT_TRUE(cancelled);
  h.router.Cancel(*cancelled);
  h.Advance(3s);
  EXPECT_EQ(seen[0].finishes, 1);
  EXPECT_EQ(seen[0].error.code, Code::kDeadlineExceeded);
  EXPECT_EQ(seen[1].finishes, 0);
  EXPECT_TRUE(h.router.Idle());
  EXPECT_TRUE(h.HasMetric("aisp_class_queued_requests{class=\"batch\"", "0"));
  EXPECT_TRUE(
      h.HasMetric("aisp_class_requests_total{class=\"batch\",model=\"story\",role=\"router\","
                  "status=\"deadline\"",
                  "1"))
      << h.metrics.Render();
}

TEST_F(Classes, ALostWorkersBatchWaitsForRoomAndNotForTheTakeoverLimit) {
  const LinkId d0 = Add("d0");
  ASSERT_TRUE(Submit(Of(kBatch, "batch")));
  h.Advance(1s);
  ASSERT_EQ(Sent(d0).size(), 1u);
  const LinkId d1 = Add("d1");
  ReportRows(d1, 30);
  h.router.OnLinkDown(d0, Error{Code::kUnavailable, "gone"});
  h.Advance(30s);
  EXPECT_TRUE(Sent(d1).empty());
  EXPECT_EQ(seen[0].finishes, 0);
  ReportRows(d1, 0);
  h.Advance(1s);
  EXPECT_EQ(Sent(d1).size(), 1u);
}

// It may have crashed the worker that it was taken from, and is refused while it waits for room.
TEST_F(Classes, WhoEndedTwoWorkersIsRefusedFromTheQueueToo) {
  const Error gone{Code::kUnavailable, "gone"};
  const LinkId d0 = Add("d0");
  ASSERT_TRUE(Submit(Of(kBatch, "batch")));
  h.Advance(1s);
  ASSERT_EQ(Sent(d0).size(), 1u);
  const LinkId d1 = Add("d1");
  h.router.OnLinkDown(d0, gone);
  ASSERT_EQ(Sent(d1).size(), 1u);
  v1::Telemetry busy = h.ReadyTelemetry();
  busy.set_running(8);
  busy.set_yielding_rows(1);
  busy.set_yielding_blocks(2);
  h.Report(d1, busy);
  RouterRequest interactive = Of(ServiceClass::kInteractive, "interactive");
  interactive.objective.tpot_ms = 46;
  ASSERT_TRUE(Submit(interactive));
  ASSERT_EQ(h.Count(d1, v1::RouterMessage::kCancel), 1) << "it gives way";
  h.Tokens(d1, h.Generates(d1).back().request_id(), 20, {1});
  h.router.OnLinkDown(d1, gone);
  const LinkId d2 = Add("d2");
  h.Advance(1100ms);
  EXPECT_EQ(Sent(d2), std::vector<std::string>{"interactive"});
  EXPECT_EQ(seen[0].finishes, 1);
  EXPECT_EQ(seen[0].error.code, Code::kInternal) << seen[0].error.message;
  EXPECT_TRUE(h.HasMetric("aisp_class_queued_requests{class=\"batch\"", "0"));
}

class SmallQueue : public Classes {
 protected:
  static RouterOptions Small() {
    RouterOptions options = Options();
    options.max_queued = 10;
    return options;
  }
  SmallQueue() : Classes(Small()) {}
};

TEST_F(SmallQueue, AFullQueueRefusesWithItsLimitAndInteractiveRequestsAreTaken) {
  const LinkId d = Add("d");
  ReportRows(d, 30);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Submit(Of(kBatch, "batch")));
  const auto refused = Submit(Of(kBestEffort, "one too many"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kResourceExhausted);
  EXPECT_NE(refused.error().message.find("limit is 10 (router.max_queued)"), std::string::npos);
  EXPECT_GT(h.retry_after, Duration{});
  EXPECT_TRUE(Submit(Of(ServiceClass::kInteractive, "interactive")));
}

TEST_F(SmallQueue, TenantsShareTheQueueAndItsTurns) {
  const LinkId d = Add("d");
  ReportRows(d, 30);
  int taken = 0;
  while (Submit(Of(kBatch, "a", 100, "a"))) ++taken;
  EXPECT_LT(taken, 10);
  EXPECT_TRUE(Submit(Of(kBatch, "b", 100, "b"))) << "places are kept for others";
  ReportRows(d, 0);
  h.Advance(20ms);
  const auto sent = Sent(d);
  ASSERT_GE(sent.size(), 2u);
  EXPECT_NE(std::find(sent.begin(), sent.begin() + 2, "b"), sent.begin() + 2)
      << "not behind all that came before it";
}

}  // namespace
}  // namespace aisp
