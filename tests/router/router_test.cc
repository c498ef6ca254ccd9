#include "router/router.h"

#include <algorithm>
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
  h.clock.Advance(seconds(30));  // paused, then continued: timers first, messages after
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
  const Error too_long = h.Submit(h.Request(5000), &seen).error();
  EXPECT_NE(too_long.message.find("5000"), std::string::npos);
  EXPECT_NE(too_long.message.find("4096"), std::string::npos);
}

// A completion may echo its prompt without new tokens.
TEST(Router, ARequestForNoTokenIsPlacedLikeAnyOther) {
  RouterHarness h;
  h.AddDecode("d");
  RecordingObserver seen;
  EXPECT_TRUE(h.Submit(h.Request(10, 0), &seen));
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

}  // namespace
}  // namespace aisp
