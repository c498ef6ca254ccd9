// Workers and routers that drain.
#include <gtest/gtest.h>

#include "tests/router/router_harness.h"

namespace aisp {
namespace {

using Kind = v1::RouterMessage;

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
  EXPECT_TRUE(workers[1].prefill());
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

}  // namespace
}  // namespace aisp
