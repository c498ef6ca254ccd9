#include "router/router.h"

#include <functional>

#include <gtest/gtest.h>

#include "tests/router/router_harness.h"

namespace aisp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Kind = v1::RouterMessage;

TEST(Router, WithoutAWorkerARequestIsRefusedAtOnceWithARetryHint) {
  RouterHarness h;
  RecordingObserver seen;
  auto id = h.Submit(h.Request(10), &seen);
  ASSERT_FALSE(id);
  EXPECT_EQ(id.error().code, Code::kUnavailable);
  EXPECT_GT(h.retry_after, Duration{});
  EXPECT_EQ(seen.finishes, 0);
  EXPECT_FALSE(h.router.Ready());
}

TEST(Router, AWorkerThatIsNotReadyGetsNoRequest) {
  RouterHarness h;
  const LinkId link = h.Attach(h.Registration("d", v1::ROLE_DECODE));
  RecordingObserver seen;
  EXPECT_FALSE(h.Submit(h.Request(10), &seen)) << "registered, not yet heard";
  h.Report(link, h.ReadyTelemetry());
  EXPECT_TRUE(h.Submit(h.Request(10), &seen));
}

TEST(Router, TokensReachTheObserverInOrderAndTheEndComesOnce) {
  RouterHarness h;
  const LinkId d = h.AddDecode("d");
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(h.Request(10), &seen));
  const auto sent = h.Generates(d);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].tokens_size(), 10);
  EXPECT_EQ(sent[0].prompt_tokens(), 10u);
  EXPECT_NE(sent[0].sampling().seed(), 0u) << "the router draws a seed when the client gave none";
  h.Tokens(d, sent[0].request_id(), 10, {1});
  h.Tokens(d, sent[0].request_id(), 11, {2, 3}, v1::FINISH_STOP);
  EXPECT_EQ(seen.tokens, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(seen.finish, v1::FINISH_STOP);
  h.Tokens(d, sent[0].request_id(), 13, {4}, v1::FINISH_STOP);
  EXPECT_EQ(seen.finishes, 1);
  EXPECT_EQ(seen.tokens.size(), 3u);
  EXPECT_TRUE(h.router.Idle());
  EXPECT_TRUE(h.HasMetric("aisp_request_success_total{finished_reason=\"stop\"", "1"));
}

TEST(Router, RepeatedTokensAreDropped) {
  RouterHarness h;
  const LinkId d = h.AddDecode("d");
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(h.Request(10), &seen));
  const uint64_t wire = h.Generates(d)[0].request_id();
  h.Tokens(d, wire, 10, {1, 2});
  h.Tokens(d, wire, 10, {1, 2, 3});
  h.Tokens(d, wire, 11, {2});
  EXPECT_EQ(seen.tokens, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_TRUE(seen.positions_ok);
}

TEST(Router, AGapInTheTokensIsAWorkerFaultAndTheRequestMoves) {
  RouterHarness h;
  const LinkId d0 = h.AddDecode("d0");
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(h.Request(10), &seen));
  const LinkId d1 = h.AddDecode("d1");
  h.Tokens(d0, h.Generates(d0)[0].request_id(), 10, {1});
  h.Tokens(d0, h.Generates(d0)[0].request_id(), 12, {3});
  EXPECT_EQ(h.sender.closed.count(d0), 1u);
  const auto moved = h.Generates(d1);
  ASSERT_EQ(moved.size(), 1u);
  EXPECT_EQ(moved[0].tokens_size(), 11);
  EXPECT_EQ(moved[0].prompt_tokens(), 10u);
  EXPECT_TRUE(h.HasMetric("aisp_workers_forgotten_total{cause=\"fault\"", "1"));
}

TEST(Router, MoreTokensThanAskedForAreAWorkerFault) {
  RouterHarness h;
  const LinkId d = h.AddDecode("d");
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(h.Request(10, /*max_new_tokens=*/2), &seen));
  h.Tokens(d, h.Generates(d)[0].request_id(), 10, {1, 2, 3});
  EXPECT_TRUE(seen.tokens.empty());
  EXPECT_EQ(h.sender.closed.count(d), 1u);
}

TEST(Router, ALostDecodeWorkerIsReplacedAndNoTokenIsLostOrDoubled) {
  RouterHarness h;
  const LinkId d0 = h.AddDecode("d0");
  RecordingObserver seen;
  RouterRequest request = h.Request(10, 8);
  request.sampling.set_seed(99);
  ASSERT_TRUE(h.Submit(request, &seen));
  const LinkId d1 = h.AddDecode("d1");
  h.Tokens(d0, h.Generates(d0)[0].request_id(), 10, {1, 2});
  h.router.OnLinkDown(d0, {Code::kUnavailable, "killed"});
  const auto moved = h.Generates(d1);
  ASSERT_EQ(moved.size(), 1u);
  EXPECT_EQ(moved[0].tokens_size(), 12);
  EXPECT_EQ(moved[0].tokens(11), 2);
  EXPECT_EQ(moved[0].prompt_tokens(), 10u);
  EXPECT_EQ(moved[0].max_new_tokens(), 8u) << "counted from the prompt";
  EXPECT_EQ(moved[0].sampling().seed(), 99u);
  ASSERT_EQ(seen.routes.size(), 2u);
  EXPECT_EQ(seen.routes[1].reason, "takeover");
  h.Tokens(d1, moved[0].request_id(), 12, {3}, v1::FINISH_STOP);
  EXPECT_EQ(seen.tokens, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_TRUE(seen.positions_ok);
  EXPECT_EQ(seen.finishes, 1);
  EXPECT_TRUE(h.HasMetric("aisp_takeovers_total", "1"));
}

TEST(Router, ATakeoverWaitsForAWorkerAndGoesOnWhenOneComes) {
  RouterHarness h;
  const LinkId d0 = h.AddDecode("d0", 1);
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(h.Request(10), &seen));
  h.router.OnLinkDown(d0, {Code::kUnavailable, "killed"});
  EXPECT_EQ(seen.finishes, 0);
  h.Advance(seconds(1));
  EXPECT_EQ(seen.finishes, 0);
  const LinkId again = h.AddDecode("d0", 2);
  EXPECT_EQ(h.Generates(again).size(), 1u);
}

TEST(Router, ATakeoverThatFindsNoWorkerEndsInUnavailable) {
  RouterOptions options;
  options.takeover_wait = seconds(3);
  RouterHarness h(options);
  const LinkId d0 = h.AddDecode("d0");
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(h.Request(10), &seen));
  h.router.OnLinkDown(d0, {Code::kUnavailable, "killed"});
  h.Advance(seconds(4));
  EXPECT_EQ(seen.finishes, 1);
  EXPECT_EQ(seen.error.code, Code::kUnavailable);
  EXPECT_GT(seen.retry_after, Duration{});
  EXPECT_EQ(h.router.NextTimer(), kNever) << "nothing is left to wait for";
}

TEST(Router, AReconnectedWorkerOfTheSameIncarnationMayTakeItsRequestBack) {
  RouterHarness h;
  const LinkId first = h.AddDecode("d0");
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(h.Request(10), &seen));
  h.router.OnLinkDown(first, {Code::kUnavailable, "reset"});
  const LinkId second = h.AddDecode("d0");
  for (int i = 0; i < 20; ++i) {
    h.Advance(milliseconds(50));
    h.Report(second, h.ReadyTelemetry());
  }
  EXPECT_EQ(h.Generates(second).size(), 1u);
}

TEST(Router, PlacementsAreBounded) {
  RouterOptions options;
  options.max_attempts = 3;
  RouterHarness h(options);
  RecordingObserver seen;
  std::vector<LinkId> links;
  for (int i = 0; i < 5; ++i) links.push_back(h.AddDecode("d" + std::to_string(i)));
  ASSERT_TRUE(h.Submit(h.Request(10), &seen));
  for (int round = 0; round < 10 && seen.finishes == 0; ++round) {
    for (LinkId link : links) {
      const auto sent = h.Generates(link);
      if (!sent.empty())
        h.Fail(link, sent.back().request_id(), Code::kResourceExhausted, /*retryable=*/true);
    }
  }
  EXPECT_EQ(seen.finishes, 1);
  EXPECT_EQ(seen.routes.size(), 3u);
  EXPECT_EQ(seen.error.code, Code::kUnavailable);
}

TEST(Router, ARetryableErrorMovesTheRequestAndAFinalOneEndsIt) {
  RouterHarness h;
  const LinkId d0 = h.AddDecode("d0");
  RecordingObserver moved, ended;
  ASSERT_TRUE(h.Submit(h.Request(10), &moved));
  ASSERT_TRUE(h.Submit(h.Request(10), &ended));
  const LinkId d1 = h.AddDecode("d1");
  h.Fail(d0, h.Generates(d0)[0].request_id(), Code::kUnavailable, /*retryable=*/true);
  EXPECT_EQ(h.Generates(d1).size(), 1u);
  h.Fail(d0, h.Generates(d0)[1].request_id(), Code::kInvalidArgument, /*retryable=*/false);
  EXPECT_EQ(ended.finishes, 1);
  EXPECT_EQ(ended.error.code, Code::kInvalidArgument);
  EXPECT_EQ(moved.finishes, 0);
}

TEST(Router, ASilentWorkerIsForgottenAndItsRequestsMove) {
  RouterHarness h;
  const LinkId d0 = h.AddDecode("d0");
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(h.Request(10), &seen));
  const LinkId d1 = h.AddDecode("d1");
  for (int i = 0; i < 30; ++i) {
    h.Advance(milliseconds(100));
    h.Report(d1, h.ReadyTelemetry());
  }
  EXPECT_EQ(h.sender.closed.count(d0), 1u);
  EXPECT_EQ(h.sender.closed.count(d1), 0u);
  EXPECT_EQ(h.Generates(d1).size(), 1u);
  EXPECT_TRUE(h.HasMetric("aisp_workers_forgotten_total{cause=\"silent\"", "1"));
}

void Beat(RouterHarness& h, LinkId link, milliseconds age, milliseconds expected) {
  v1::WorkerMessage message;
  message.mutable_heartbeat()->set_incarnation(1);
  message.mutable_heartbeat()->set_step_age_ns(static_cast<uint64_t>(Duration(age).count()));
  message.mutable_heartbeat()->set_step_expected_ns(
      static_cast<uint64_t>(Duration(expected).count()));
  h.router.OnMessage(link, std::move(message));
}

TEST(Router, AWorkerInALongStepIsKeptItsStreamsStayAndOthersGoAroundIt) {
  RouterHarness h;
  const LinkId busy = h.AddDecode("busy");
  RecordingObserver stays, goes;
  ASSERT_TRUE(h.Submit(h.Request(10), &stays));
  const LinkId idle = h.AddDecode("idle");
  for (int i = 1; i <= 100; ++i) {
    h.Advance(milliseconds(100));
    h.Report(idle, h.ReadyTelemetry());
    Beat(h, busy, milliseconds(100 * i), milliseconds(12000));
  }
  EXPECT_EQ(h.sender.closed.count(busy), 0u) << "ten seconds in one step";
  EXPECT_TRUE(h.Generates(idle).empty()) << "its stream was not moved";
  EXPECT_EQ(WorkerStateName(h.router.Workers()[0].state), "busy in a long step");
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(h.Submit(h.Request(10 + i), &goes));
  EXPECT_EQ(h.Generates(busy).size(), 1u);
  EXPECT_EQ(h.Generates(idle).size(), 8u);
  h.Report(busy, h.ReadyTelemetry());
  EXPECT_EQ(WorkerStateName(h.router.Workers()[0].state), "ready");
}

TEST(Router, TheOnlyWorkerGetsRequestsInALongStepToo) {
  RouterHarness h;
  const LinkId busy = h.AddDecode("busy");
  Beat(h, busy, milliseconds(5000), milliseconds(0));
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(h.Request(10), &seen));
  EXPECT_EQ(h.Generates(busy).size(), 1u);
  EXPECT_GT(seen.routes.back().predicted_ttft_ms, 5000) << "and the wait is foreseen";
}

TEST(Router, AWorkerWhoseHeartbeatsStopIsForgotten) {
  RouterHarness h;
  const LinkId hung = h.AddDecode("hung");
  for (int i = 1; i <= 30; ++i) {
    h.Advance(milliseconds(100));
    Beat(h, hung, milliseconds(100 * i), milliseconds(0));
  }
  EXPECT_EQ(h.sender.closed.count(hung), 0u);
  h.Advance(milliseconds(2100));
  EXPECT_EQ(h.sender.closed.count(hung), 1u);
}

TEST(Router, AStalledRouterDoesNotBlameItsWorkers) {
  RouterHarness h;
  const LinkId d = h.AddDecode("d");
  h.clock.Advance(seconds(30));  // stopped, then continued: timers first, messages after
  h.router.OnTimer(h.clock.Now());
  EXPECT_EQ(h.sender.closed.count(d), 0u);
  h.Advance(seconds(3));
  EXPECT_EQ(h.sender.closed.count(d), 1u) << "still silent after it";
}

TEST(Router, ALinkThatNeverRegistersIsClosed) {
  RouterHarness h;
  h.router.OnLinkUp(LinkId(77), "peer");
  h.Advance(seconds(3));
  EXPECT_EQ(h.sender.closed.count(LinkId(77)), 1u);
}

TEST(Router, ARequestEndsByItsDeadlineEvenIfItsWorkerSaysNothing) {
  RouterHarness h;
  const LinkId d = h.AddDecode("d");
  RecordingObserver seen;
  RouterRequest request = h.Request(10);
  request.timeout = milliseconds(500);
  ASSERT_TRUE(h.Submit(request, &seen));
  EXPECT_EQ(h.Generates(d)[0].timeout_ms(), 500);
  h.Advance(milliseconds(600));
  EXPECT_EQ(seen.finishes, 0) << "the worker's own report gets a moment";
  h.Advance(milliseconds(200));
  EXPECT_EQ(seen.finishes, 1);
  EXPECT_EQ(seen.error.code, Code::kDeadlineExceeded);
  EXPECT_EQ(h.Count(d, Kind::kCancel), 1);
}

TEST(Router, ATakeoverGetsTheTimeThatIsLeft) {
  RouterHarness h;
  const LinkId d0 = h.AddDecode("d0");
  RecordingObserver seen;
  RouterRequest request = h.Request(10);
  request.timeout = seconds(1);
  ASSERT_TRUE(h.Submit(request, &seen));
  h.Advance(milliseconds(400));
  const LinkId d1 = h.AddDecode("d1");
  h.router.OnLinkDown(d0, {Code::kUnavailable, "killed"});
  ASSERT_EQ(h.Generates(d1).size(), 1u);
  EXPECT_EQ(h.Generates(d1)[0].timeout_ms(), 600);
}

TEST(Router, CancelTellsTheWorkerAndSilencesTheObserver) {
  RouterHarness h;
  const LinkId d = h.AddDecode("d");
  RecordingObserver seen;
  auto id = h.Submit(h.Request(10), &seen);
  ASSERT_TRUE(id);
  h.router.Cancel(*id);
  EXPECT_EQ(h.Count(d, Kind::kCancel), 1);
  h.Tokens(d, h.Generates(d)[0].request_id(), 10, {1}, v1::FINISH_CANCELLED);
  EXPECT_EQ(seen.finishes, 0);
  EXPECT_TRUE(seen.tokens.empty());
  EXPECT_TRUE(h.router.Idle());
  EXPECT_TRUE(h.HasMetric("aisp_cancelled_requests_total", "1"));
}

TEST(Router, ACompletedRequestCountsAsASuccessAndFreesTheWorker) {
  RouterHarness h;
  const LinkId d = h.AddDecode("d");
  RecordingObserver seen;
  auto id = h.Submit(h.Request(10), &seen);
  ASSERT_TRUE(id);
  h.Tokens(d, h.Generates(d)[0].request_id(), 10, {1});
  h.router.Complete(*id);
  EXPECT_EQ(h.Count(d, Kind::kCancel), 1);
  EXPECT_EQ(seen.finishes, 0);
  EXPECT_TRUE(h.router.Idle());
  EXPECT_TRUE(h.HasMetric("aisp_request_success_total", "1"));
  EXPECT_TRUE(h.HasMetric("aisp_cancelled_requests_total", "0"));
}

TEST(Router, AnObserverMayCancelFromItsCallback) {
  RouterHarness h;
  const LinkId d = h.AddDecode("d");
  RecordingObserver seen;
  auto id = h.Submit(h.Request(10), &seen);
  ASSERT_TRUE(id);
  seen.on_tokens = [&] { h.router.Cancel(*id); };
  h.Tokens(d, h.Generates(d)[0].request_id(), 10, {1}, v1::FINISH_STOP);
  EXPECT_EQ(seen.tokens.size(), 1u);
  EXPECT_EQ(seen.finishes, 0);
}

TEST(Router, TheQueueIsBounded) {
  RouterOptions options;
  options.max_inflight = 2;
  RouterHarness h(options);
  h.AddDecode("d");
  RecordingObserver a, b, c;
  ASSERT_TRUE(h.Submit(h.Request(10), &a));
  ASSERT_TRUE(h.Submit(h.Request(10), &b));
  auto refused = h.Submit(h.Request(10), &c);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kResourceExhausted);
  EXPECT_GT(h.retry_after, Duration{});
}

TEST(Router, ImpossibleRequestsAreRefusedWithBothNumbers) {
  RouterHarness h;
  h.AddDecode("d");
  RecordingObserver seen;
  EXPECT_EQ(h.Submit(h.Request(0), &seen).error().code, Code::kInvalidArgument);
  EXPECT_EQ(h.Submit(h.Request(10, 0), &seen).error().code, Code::kInvalidArgument);
  const Error too_long = h.Submit(h.Request(5000), &seen).error();
  EXPECT_NE(too_long.message.find("5000"), std::string::npos);
  EXPECT_NE(too_long.message.find("4096"), std::string::npos);
}

TEST(Router, AWrongFingerprintIsRefusedWithTheFieldAndBothValues) {
  const std::vector<std::pair<std::string, std::function<void(v1::Fingerprint&)>>> cases = {
      {"protocol_version", [](auto& f) { f.set_protocol_version(42); }},
      {"model_name", [](auto& f) { f.set_model_name("42"); }},
      {"weights_digest", [](auto& f) { f.set_weights_digest("42"); }},
      {"tokenizer_digest", [](auto& f) { f.set_tokenizer_digest("42"); }},
      {"template_digest", [](auto& f) { f.set_template_digest("42"); }},
      {"kv_layout.num_layers", [](auto& f) { f.mutable_kv_layout()->set_num_layers(42); }},
      {"kv_layout.num_kv_heads", [](auto& f) { f.mutable_kv_layout()->set_num_kv_heads(42); }},
      {"kv_layout.head_dim", [](auto& f) { f.mutable_kv_layout()->set_head_dim(42); }},
      {"kv_layout.block_tokens", [](auto& f) { f.mutable_kv_layout()->set_block_tokens(42); }},
      {"kv_layout.dtype", [](auto& f) { f.mutable_kv_layout()->set_dtype("42"); }}};
  for (const auto& [field, change] : cases) {
    RouterHarness h;
    v1::Register r = h.Registration("d", v1::ROLE_DECODE);
    change(*r.mutable_fingerprint());
    const LinkId link = h.Attach(r);
    ASSERT_EQ(h.Count(link, Kind::kRefused), 1) << field;
    const std::string reason = h.sender.sent[link][0].refused().reason();
    EXPECT_NE(reason.find(field), std::string::npos) << reason;
    EXPECT_NE(reason.find("\"42\""), std::string::npos) << reason;
    h.Report(link, h.ReadyTelemetry());
    EXPECT_FALSE(h.router.Ready()) << field;
  }
}

TEST(Router, AWorkerOfAnotherArithmeticThanTheRegisteredOnesIsRefusedWithBothValues) {
  RouterHarness h;
  v1::Register decode = h.Registration("d", v1::ROLE_DECODE);
  decode.mutable_fingerprint()->set_arithmetic("cuda bf16; weights bf16");
  h.Attach(decode);
  v1::Register prefill = h.Registration("p", v1::ROLE_PREFILL);
  prefill.mutable_fingerprint()->set_arithmetic("cuda bf16; weights nvfp4");
  const LinkId link = h.Attach(prefill);
  ASSERT_EQ(h.Count(link, Kind::kRefused), 1);
  const std::string reason = h.sender.sent[link][0].refused().reason();
  for (const char* part : {"worker d", "weights bf16", "weights nvfp4", "--allow-mixed-precision"})
    EXPECT_NE(reason.find(part), std::string::npos) << reason;
}

TEST(Router, ThePoolsSizeIsNotPartOfTheFingerprint) {
  RouterHarness h;
  v1::Register r = h.Registration("d", v1::ROLE_DECODE);
  r.mutable_fingerprint()->mutable_kv_layout()->set_num_blocks(7);
  EXPECT_EQ(h.Count(h.Attach(r), Kind::kRegistered), 1);
}

TEST(Router, ANewerIncarnationReplacesTheOldAndAnOlderOneIsRefused) {
  RouterHarness h;
  const LinkId old = h.AddDecode("d", 5);
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(h.Request(10), &seen));
  const LinkId fresh = h.AddDecode("d", 6);
  EXPECT_EQ(h.sender.closed.count(old), 1u);
  EXPECT_EQ(h.Generates(fresh).size(), 1u) << "its request was taken over by the new process";
  const LinkId stale = h.AddDecode("d", 5);
  EXPECT_EQ(h.Count(stale, Kind::kRefused), 1);
  h.Tokens(old, h.Generates(old)[0].request_id(), 10, {66});
  EXPECT_TRUE(seen.tokens.empty()) << "a closed link is not heard";
}

TEST(Router, ADrainingWorkerGetsNoNewRequestAndFinishesItsOwn) {
  RouterHarness h;
  const LinkId d0 = h.AddDecode("d0");
  RecordingObserver first, second;
  ASSERT_TRUE(h.Submit(h.Request(10), &first));
  const LinkId d1 = h.AddDecode("d1");
  ASSERT_TRUE(h.router.DrainWorker("d0", /*move=*/false, /*stop=*/false));
  EXPECT_EQ(h.Count(d0, Kind::kDrain), 1);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(h.Submit(h.Request(10), &second));
  }
  EXPECT_EQ(h.Generates(d0).size(), 1u);
  EXPECT_EQ(h.Generates(d1).size(), 5u);
  h.Tokens(d0, h.Generates(d0)[0].request_id(), 10, {1}, v1::FINISH_STOP);
  EXPECT_EQ(first.finish, v1::FINISH_STOP);
  const Status unknown = h.router.DrainWorker("nobody", false, false);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().message, "no worker 'nobody' is registered; known: d0, d1");
}

v1::WorkerMessage DrainingMessage(const std::vector<uint64_t>& not_started, bool move) {
  v1::WorkerMessage message;
  message.mutable_draining()->set_move(move);
  message.mutable_draining()->mutable_not_started()->Add(not_started.begin(), not_started.end());
  return message;
}

TEST(Router, WhatADrainingWorkerHasNotStartedIsPlacedElsewhereAtOnce) {
  RouterHarness h;
  const LinkId d0 = h.AddDecode("d0");
  RecordingObserver running, waiting;
  ASSERT_TRUE(h.Submit(h.Request(10), &running));
  ASSERT_TRUE(h.Submit(h.Request(12), &waiting));
  const LinkId d1 = h.AddDecode("d1");
  const auto sent = h.Generates(d0);
  h.router.OnMessage(d0, DrainingMessage({sent[1].request_id()}, false));
  const auto moved = h.Generates(d1);
  ASSERT_EQ(moved.size(), 1u);
  EXPECT_EQ(moved[0].tokens_size(), 12);
  EXPECT_EQ(h.Count(d0, Kind::kCancel), 1);
  h.Tokens(d0, sent[1].request_id(), 12, {66});
  EXPECT_TRUE(waiting.tokens.empty()) << "the worker that gave it up is not heard any more";
  h.Tokens(d0, sent[0].request_id(), 10, {1}, v1::FINISH_STOP);
  EXPECT_EQ(running.finish, v1::FINISH_STOP);
  h.Tokens(d1, moved[0].request_id(), 12, {2}, v1::FINISH_STOP);
  EXPECT_EQ(waiting.finish, v1::FINISH_STOP);
  EXPECT_TRUE(h.HasMetric("aisp_request_moves_total", "1"));
  EXPECT_TRUE(h.HasMetric("aisp_takeovers_total", "0"));
}

TEST(Router, AWorkerThatDrainedAndWentIsNotCountedAmongTheLost) {
  RouterHarness h;
  const LinkId planned = h.AddDecode("planned");
  const LinkId busy = h.AddDecode("busy");
  const LinkId killed = h.AddDecode("killed");
  h.router.OnMessage(planned, DrainingMessage({}, false));
  h.router.OnLinkDown(planned, {Code::kUnavailable, "closed"});
  h.router.OnLinkDown(killed, {Code::kUnavailable, "reset"});
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(h.Request(10), &seen));
  h.router.OnMessage(busy, DrainingMessage({}, false));
  h.router.OnLinkDown(busy, {Code::kUnavailable, "killed while it drained"});
  EXPECT_TRUE(h.HasMetric("aisp_workers_forgotten_total{cause=\"drained\"", "1"));
  EXPECT_TRUE(h.HasMetric("aisp_workers_forgotten_total{cause=\"link\"", "2"));
}

TEST(Router, RunningStreamsMoveWithoutALostOrDoubledToken) {
  RouterHarness h;
  const LinkId d0 = h.AddDecode("d0");
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(h.Request(10, 8), &seen));
  const uint64_t old = h.Generates(d0)[0].request_id();
  h.Tokens(d0, old, 10, {1, 2});
  const LinkId d1 = h.AddDecode("d1");
  h.router.OnMessage(d0, DrainingMessage({}, /*move=*/true));
  const auto moved = h.Generates(d1);
  ASSERT_EQ(moved.size(), 1u);
  EXPECT_EQ(moved[0].tokens_size(), 12);
  EXPECT_EQ(moved[0].prompt_tokens(), 10u);
  h.Tokens(d0, old, 12, {3}, v1::FINISH_STOP);
  EXPECT_EQ(seen.finishes, 0);
  h.Tokens(d1, moved[0].request_id(), 12, {3, 4}, v1::FINISH_STOP);
  EXPECT_EQ(seen.tokens, (std::vector<TokenId>{1, 2, 3, 4}));
  EXPECT_TRUE(seen.positions_ok);
}

TEST(Router, WithoutAnotherWorkerADrainingOneFinishesAndALateComerTakesOver) {
  RouterHarness h;
  const LinkId d0 = h.AddDecode("d0");
  RecordingObserver seen, left;
  ASSERT_TRUE(h.Submit(h.Request(10, 8), &seen));
  ASSERT_TRUE(h.Submit(h.Request(10, 8), &left));
  h.Tokens(d0, h.Generates(d0)[0].request_id(), 10, {1});
  h.router.OnMessage(d0, DrainingMessage({}, /*move=*/true));
  EXPECT_EQ(h.Count(d0, Kind::kCancel), 0);
  h.Tokens(d0, h.Generates(d0)[0].request_id(), 11, {2}, v1::FINISH_STOP);
  EXPECT_EQ(seen.tokens, (std::vector<TokenId>{1, 2}));
  const LinkId d1 = h.AddDecode("d1");
  ASSERT_EQ(h.Generates(d1).size(), 1u) << "moves as soon as there is somebody";
  h.Tokens(d1, h.Generates(d1)[0].request_id(), 10, {5}, v1::FINISH_STOP);
  EXPECT_EQ(left.finish, v1::FINISH_STOP);
}

TEST(Router, ARequestThatCrossedTheWordOfADrainIsPlacedElsewhereAndCountsAsNoFailure) {
  RouterOptions options;
  options.max_attempts = 1;
  RouterHarness h(options);
  const LinkId d0 = h.AddDecode("d0");
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(h.Request(10), &seen));
  v1::WorkerMessage back;
  v1::TokenEvent& event = *back.mutable_tokens()->add_events();
  event.set_request_id(h.Generates(d0)[0].request_id());
  event.set_finish(v1::FINISH_ERROR);
  event.set_handed_back(true);
  event.mutable_error()->set_code(static_cast<int>(Code::kUnavailable));
  event.mutable_error()->set_retryable(true);
  h.router.OnMessage(d0, back);
  EXPECT_EQ(seen.finishes, 0) << "waits for a worker";
  RecordingObserver refused;
  EXPECT_FALSE(h.Submit(h.Request(10), &refused)) << "d0 drains, there is nobody else";
  const LinkId d1 = h.AddDecode("d1");
  ASSERT_EQ(h.Generates(d1).size(), 1u);
  h.Tokens(d1, h.Generates(d1)[0].request_id(), 10, {1}, v1::FINISH_STOP);
  EXPECT_EQ(seen.finish, v1::FINISH_STOP);
}

TEST(Router, ItsWorkersCanBeListedWithTheirStateAndLoad) {
  RouterHarness h;
  h.AddPrefill("p");
  const LinkId d = h.AddDecode("d");
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(h.Request(10), &seen));
  ASSERT_TRUE(h.router.DrainWorker("d", false, false));
  auto workers = h.router.Workers();
  ASSERT_EQ(workers.size(), 2u);
  EXPECT_EQ(workers[0].id, "d");
  EXPECT_EQ(workers[0].streams, 1u);
  EXPECT_EQ(WorkerStateName(workers[0].state), "draining");
  EXPECT_EQ(WorkerStateName(workers[1].state), "ready");
  EXPECT_TRUE(workers[1].prefill);
  h.Tokens(d, h.Generates(d)[0].request_id(), 10, {1}, v1::FINISH_STOP);
  v1::Telemetry drained = h.ReadyTelemetry();
  drained.set_draining(true);
  drained.set_drained(true);
  h.Report(d, drained);
  EXPECT_EQ(WorkerStateName(h.router.Workers()[0].state), "drained");
}

TEST(Router, ADrainingRouterTellsItsWorkersServesWhatStillComesAndIsIdleAfterTheLastRequest) {
  RouterHarness h;
  const LinkId d = h.AddDecode("d");
  RecordingObserver seen, late;
  ASSERT_TRUE(h.Submit(h.Request(10), &seen));
  h.router.BeginDrain();
  EXPECT_EQ(h.Count(d, Kind::kRouterDraining), 1);
  EXPECT_FALSE(h.router.Ready());
  ASSERT_TRUE(h.Submit(h.Request(10), &late)) << "on a connection that was open already";
  h.Tokens(d, h.Generates(d)[0].request_id(), 10, {1}, v1::FINISH_STOP);
  EXPECT_FALSE(h.router.Idle());
  h.Tokens(d, h.Generates(d)[1].request_id(), 10, {1}, v1::FINISH_STOP);
  EXPECT_TRUE(h.router.Idle());
}

TEST(Router, ADrainingRouterRefusesRegistrationsAndKeepsTheLinkThatItHas) {
  RouterHarness h;
  const LinkId d = h.AddDecode("d");
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(h.Request(10), &seen));
  h.router.BeginDrain();
  const LinkId again = h.Attach(h.Registration("d", v1::ROLE_DECODE));
  ASSERT_EQ(h.Count(again, Kind::kRefused), 1);
  EXPECT_TRUE(h.sender.sent.at(again).back().refused().draining());
  h.Tokens(d, h.Generates(d)[0].request_id(), 10, {1}, v1::FINISH_STOP);
  EXPECT_EQ(seen.finish, v1::FINISH_STOP);
}

TEST(Router, ItsOwnUnreportedRequestsCountAsLoad) {
  RouterHarness h;
  const LinkId d0 = h.AddDecode("d0");
  const LinkId d1 = h.AddDecode("d1");
  std::vector<RecordingObserver> seen(8);
  for (auto& o : seen) {
    ASSERT_TRUE(h.Submit(h.Request(1000), &o));
  }
  EXPECT_EQ(h.Generates(d0).size(), 4u);
  EXPECT_EQ(h.Generates(d1).size(), 4u);
}

TEST(Router, PrefixEventsDrawARequestToTheWorkerThatHoldsIt) {
  RouterHarness h;
  const LinkId d0 = h.AddDecode("d0");
  const LinkId d1 = h.AddDecode("d1");
  h.Store(d0, {}, 0, /*snapshot=*/true);
  h.Store(d1, h.Request(512).tokens, 0, /*snapshot=*/true);
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(h.Request(600), &seen));
  EXPECT_EQ(seen.routes[0].decode_worker, "d1");
  EXPECT_EQ(seen.routes[0].cached_tokens_decode, 512u);
  EXPECT_TRUE(h.HasMetric("aisp_router_cached_tokens_total", "512"));

  RouterRequest other_tenant = h.Request(600);
  other_tenant.cache_scope = "tenant";
  RecordingObserver other;
  ASSERT_TRUE(h.Submit(other_tenant, &other));
  EXPECT_EQ(other.routes[0].cached_tokens_decode, 0u) << "a scope shares with nobody else";
}

TEST(Router, BlindnessToAPrefixCacheIsVisibleAndASnapshotIsAskedFor) {
  RouterHarness h;
  const LinkId d = h.AddDecode("d");
  EXPECT_TRUE(h.HasMetric("aisp_router_prefix_view_blind{", "1"));
  EXPECT_EQ(h.Count(d, Kind::kKvSnapshot), 1) << "none came by the first telemetry";
  h.Store(d, h.Request(64).tokens, 10, /*snapshot=*/true);
  EXPECT_TRUE(h.HasMetric("aisp_router_prefix_view_blind{", "0"));
  h.Advance(seconds(1));
  h.Store(d, h.Request(128).tokens, 12, /*snapshot=*/false);
  EXPECT_TRUE(h.HasMetric("aisp_router_prefix_view_blind{", "1"));
  EXPECT_TRUE(h.HasMetric("aisp_router_prefix_gaps_total", "1"));
  EXPECT_EQ(h.Count(d, Kind::kKvSnapshot), 2);
}

TEST(Router, ALongPromptIsPrefilledRemotelyAndNamesFallbacks) {
  RouterHarness h;
  const LinkId d = h.AddDecode("d");
  h.AddPrefill("p0");
  h.AddPrefill("p1", 3);
  v1::Telemetry busy = h.ReadyTelemetry();
  busy.set_running(6);
  busy.set_queued_prefill_tokens(8000);
  h.Report(d, busy);
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(h.Request(2000), &seen));
  const v1::GenerateRequest sent = h.Generates(d)[0];
  ASSERT_TRUE(sent.has_prefill());
  EXPECT_EQ(sent.prefill().kv_address(), sent.prefill().worker_id() + ":kv");
  EXPECT_EQ(sent.prefill().incarnation(), sent.prefill().worker_id() == "p1" ? 3u : 1u);
  ASSERT_EQ(sent.prefill_fallbacks_size(), 1);
  EXPECT_NE(sent.prefill_fallbacks(0).worker_id(), sent.prefill().worker_id());
  EXPECT_EQ(seen.routes[0].reason, "remote-prefill");
  EXPECT_TRUE(
      h.HasMetric("aisp_route_decisions_total{model=\"story\",reason=\"remote-prefill\"", "1"));
}

TEST(Router, APlaceThatTheClientForcesIsCountedAsThatAndAsNothingElse) {
  RouterHarness h;
  h.AddDecode("d");
  h.AddPrefill("p");
  const std::pair<PrefillPreference, const char*> forced[] = {
      {PrefillPreference::kRemote, "forced-remote"}, {PrefillPreference::kLocal, "forced-local"}};
  for (const auto& [preference, reason] : forced) {
    RouterRequest request = h.Request(600);
    request.prefill = preference;
    RecordingObserver seen;
    ASSERT_TRUE(h.Submit(request, &seen));
    EXPECT_EQ(seen.routes[0].reason, reason);
    EXPECT_TRUE(h.HasMetric(
        std::string("aisp_route_decisions_total{model=\"story\",reason=\"") + reason + "\"", "1"));
  }
  EXPECT_TRUE(h.HasMetric("aisp_router_lookup_tokens_total", "1200"));
  EXPECT_TRUE(h.HasMetric("aisp_router_cached_tokens_total", "0"));
}

TEST(Router, TheRoutersOwnShareIsPartOfTheQueueTime) {
  RouterHarness h;
  const LinkId d0 = h.AddDecode("d0");
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(h.Request(10), &seen));
  h.Advance(milliseconds(300));
  const LinkId d1 = h.AddDecode("d1");
  h.router.OnLinkDown(d0, {Code::kUnavailable, "killed"});
  v1::WorkerMessage message;
  v1::TokenEvent& event = *message.mutable_tokens()->add_events();
  event.set_request_id(h.Generates(d1)[0].request_id());
  event.set_first_position(10);
  event.add_tokens(1);
  event.mutable_timing()->set_queue_ns(1000);
  h.router.OnMessage(d1, message);
  EXPECT_EQ(seen.first_timing.queue_ns(), 300'000'000 + 1000);
}

}  // namespace
}  // namespace aisp
