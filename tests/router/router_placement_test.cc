// Where requests go, and what is sent with them.
#include <algorithm>

#include <gtest/gtest.h>

#include "tests/router/router_harness.h"

namespace aisp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Kind = v1::RouterMessage;

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

TEST(Router, ARequestFollowsAPromptThatIsStillComputed) {
  RouterHarness h;
  h.AddDecode("d0");
  h.AddDecode("d1");
  RecordingObserver first, second;
  ASSERT_TRUE(h.Submit(h.Request(2000), &first));
  ASSERT_TRUE(h.Submit(h.Request(2048), &second));
  EXPECT_EQ(second.routes[0].decode_worker, first.routes[0].decode_worker);
  EXPECT_EQ(second.routes[0].cached_tokens_decode, 0u) << "promised, not cached";
}

TEST(Router, APromptThatIsGivenUpPromisesNothing) {
  RouterHarness h;
  const LinkId d = h.AddDecode("d");
  RecordingObserver seen[3];
  const auto first = h.Submit(h.Request(2000), &seen[0]);
  const auto second = h.Submit(h.Request(2000), &seen[1]);
  ASSERT_TRUE(first && second);
  const double alone_ms = seen[0].routes[0].predicted_ttft_ms;
  EXPECT_LT(seen[1].routes[0].predicted_ttft_ms, 1.5 * alone_ms) << "not twice the prompt";
  h.router.Cancel(*first);
  h.router.Cancel(*second);
  h.Advance(seconds(1));
  h.Report(d, h.ReadyTelemetry());
  ASSERT_TRUE(h.Submit(h.Request(2000), &seen[2]));
  EXPECT_NEAR(seen[2].routes[0].predicted_ttft_ms, alone_ms, 0.01 * alone_ms);
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
  h.Advance(milliseconds(1));
  h.router.OnMessage(d1, message);
  EXPECT_EQ(seen.first_timing.queue_ns(), 300'000'000 + 1000);
}

TEST(Router, ChoicesOfOneRequestShareTheirPromptOnTheWire) {
  RouterHarness h;
  const LinkId d = h.AddDecode("d");
  RouterRequest request = h.Request(4000);
  request.shares_tokens = true;
  constexpr uint32_t kChoices = 64;
  std::vector<RecordingObserver> seen(kChoices);
  for (uint32_t i = 0; i < kChoices; ++i) {
    request.choice = i;
    ASSERT_TRUE(h.Submit(request, &seen[i]));
  }
  EXPECT_EQ(h.Count(d, Kind::kSharedPrompt), 1);
  const auto sent = h.Generates(d);
  ASSERT_EQ(sent.size(), kChoices);
  size_t bytes = 0;
  for (const v1::RouterMessage& message : h.sender.sent[d]) bytes += message.ByteSizeLong();
  EXPECT_LT(bytes, 3u * 4000 + 200 * kChoices);
  for (const v1::GenerateRequest& generate : sent) {
    EXPECT_EQ(generate.tokens_size(), 0);
    EXPECT_EQ(generate.prompt_tokens(), 4000u);
    EXPECT_EQ(generate.prompt_id(), sent[0].prompt_id());
    EXPECT_NE(generate.prompt_id(), 0u);
  }
  for (uint32_t i = 0; i + 1 < kChoices; ++i)
    h.Tokens(d, sent[i].request_id(), 4000, {1}, v1::FINISH_STOP);
  EXPECT_EQ(h.Count(d, Kind::kDropPrompt), 0) << "one still runs";
  h.Tokens(d, sent.back().request_id(), 4000, {1}, v1::FINISH_STOP);
  EXPECT_EQ(h.Count(d, Kind::kDropPrompt), 1);
  EXPECT_TRUE(h.router.Idle());
}

TEST(Router, ATakenOverChoiceSharesItsPromptWithTheNewWorkerAndBringsItsOwnTokens) {
  RouterHarness h;
  const LinkId d0 = h.AddDecode("d0");
  RouterRequest request = h.Request(40);
  request.shares_tokens = true;
  std::vector<RecordingObserver> seen(2);
  for (RecordingObserver& observer : seen) ASSERT_TRUE(h.Submit(request, &observer));
  const LinkId d1 = h.AddDecode("d1");
  h.Tokens(d0, h.Generates(d0)[0].request_id(), 40, {7, 8});
  h.router.OnLinkDown(d0, Error{Code::kUnavailable, "gone"});
  EXPECT_EQ(h.Count(d1, Kind::kSharedPrompt), 1);
  const auto moved = h.Generates(d1);
  ASSERT_EQ(moved.size(), 2u);
  EXPECT_EQ(moved[0].tokens_size(), 2);
  EXPECT_EQ(moved[0].tokens(1), 8);
  EXPECT_EQ(moved[1].tokens_size(), 0);
}

TEST(Router, AFullLinkIsPassedOverAndOneThatTakesNoSuchMessageRefusesTheRequest) {
  RouterHarness h;
  const LinkId d0 = h.AddDecode("d0");
  const LinkId d1 = h.AddDecode("d1");
  h.sender.refuses[d0] = {Code::kResourceExhausted, "the peer does not read"};
  std::vector<RecordingObserver> seen(4);
  for (size_t i = 0; i < 3; ++i) ASSERT_TRUE(h.Submit(h.Request(10), &seen[i]));
  EXPECT_EQ(h.Generates(d1).size(), 3u);
  EXPECT_TRUE(h.Generates(d0).empty());

  h.sender.refuses[d1] = h.sender.refuses[d0];
  auto full = h.Submit(h.Request(10), &seen[3]);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, Code::kResourceExhausted);
  EXPECT_GT(h.retry_after, Duration{});
  h.sender.refuses[d0] = h.sender.refuses[d1] = {Code::kOutOfRange, "larger than a link takes"};
  RouterRequest shares = h.Request(10);
  shares.shares_tokens = true;
  auto large = h.Submit(shares, &seen[3]);
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().code, Code::kOutOfRange);
  EXPECT_TRUE(h.sender.closed.empty()) << "the links stay";
  h.sender.refuses.clear();
  EXPECT_TRUE(h.Submit(shares, &seen[3]));
}

TEST(Router, ATenantLeavesPlacesToOthers) {
  RouterOptions options;
  options.max_inflight = 100;
  RouterHarness h(options);
  h.AddDecode("d");
  std::vector<RecordingObserver> seen(300);
  size_t next = 0;
  const auto fill = [&](const std::string& tenant, uint32_t weight) {
    size_t taken = 0;
    RouterRequest request = h.Request(10);
    request.tenant = {tenant, weight, 0};
    while (h.Submit(request, &seen.at(next))) {
      ++next;
      ++taken;
    }
    return taken;
  };
  const size_t first = fill("greedy", 1);
  EXPECT_EQ(first, 80u) << "four of five places";
  EXPECT_TRUE(
      h.HasMetric("aisp_requests_rejected_total{model=\"story\",reason=\"tenant_share\"", "1"));
  EXPECT_GE(fill("late", 1), 15u);
  EXPECT_GE(fill("later", 1), 3u);
  EXPECT_EQ(fill("", 1), 100 - next) << "everybody without a key is no tenant";
}

TEST(Router, WhoWaitsForAWorkerIsPlacedByTenantsTurns) {
  RouterOptions options;
  RouterHarness h(options);
  const LinkId d0 = h.AddDecode("d0");
  std::vector<RecordingObserver> seen(12);
  const auto submit = [&](size_t i, const std::string& tenant, int32_t priority, int32_t rank) {
    RouterRequest request = h.Request(100);
    request.trace_id = tenant + std::to_string(i);
    request.tenant = {tenant, 1, rank};
    request.priority = priority;
    ASSERT_TRUE(h.Submit(request, &seen[i]));
  };
  for (size_t i = 0; i < 8; ++i) submit(i, "a", i == 6 ? 5 : 0, 0);
  submit(8, "b", 0, 0);
  submit(9, "b", 0, 0);
  submit(10, "c", 0, 1);
  h.router.OnLinkDown(d0, Error{Code::kUnavailable, "gone"});
  const LinkId d1 = h.AddDecode("d1");
  std::vector<std::string> order;
  for (const v1::GenerateRequest& generate : h.Generates(d1)) order.push_back(generate.trace_id());
  ASSERT_EQ(order.size(), 11u);
  EXPECT_EQ(order[0], "c10") << "a rank goes first";
  EXPECT_EQ(order[1], "a6") << "priority within a tenant";
  // Both tenants start equal: what was placed of a before b came does not count against a.
  const auto turn = [&](const char* name) {
    return std::find(order.begin(), order.end(), name) - order.begin();
  };
  EXPECT_LE(turn("b8"), 4);
  EXPECT_LE(turn("b9"), 6);
}

}  // namespace
}  // namespace aisp
