// Requests repeated under their key, through any router.
#include <gtest/gtest.h>

#include "proto/answer_key.h"
#include "proto/hash_wire.h"
#include "tests/router/router_harness.h"

namespace aisp {
namespace {

using Kind = v1::RouterMessage;

RouterRequest Keyed(const RouterHarness& h, const std::string& key) {
  RouterRequest request = h.Request(600);
  request.answer_key = key;
  request.content = HashBytes("body");
  return request;
}

void ReportKept(RouterHarness& h, LinkId link, const std::string& key, bool kept,
                bool whole = false) {
  v1::WorkerMessage message;
  v1::KeptAnswers* told = message.mutable_kept_answers();
  told->set_whole(whole);
  (kept ? told->add_kept() : told->add_dropped())->assign(HashToWire(AnswerDigest("", key, 0)));
  h.router.OnMessage(link, std::move(message));
}

TEST(Repeats, ARequestGoesToTheWorkerThatKeepsItsAnswer) {
  RouterHarness h;
  const LinkId d0 = h.AddDecode("d0");
  const LinkId d1 = h.AddDecode("d1");
  h.Store(d0, h.Request(600).tokens, 0, /*snapshot=*/true);  // where it would go otherwise
  ReportKept(h, d1, "k", true);
  RecordingObserver again, other;
  ASSERT_TRUE(h.Submit(Keyed(h, "k"), &again));
  EXPECT_EQ(again.routes[0].decode_worker, "d1");
  EXPECT_EQ(again.routes[0].reason, "repeat");
  ASSERT_EQ(h.Generates(d1).size(), 1u);
  EXPECT_EQ(h.Generates(d1)[0].answer_key().key(), "k");
  EXPECT_EQ(h.Generates(d1)[0].answer_key().body(), HashToWire(HashBytes("body")));
  EXPECT_FALSE(h.Generates(d1)[0].has_prefill());
  ASSERT_TRUE(h.Submit(Keyed(h, "other"), &other));
  EXPECT_EQ(other.routes[0].decode_worker, "d0");
  EXPECT_TRUE(h.HasMetric("aisp_route_decisions_total{model=\"story\",reason=\"repeat\"", "1"));
}

TEST(Repeats, TheSameRouterFindsItBeforeTheWorkerHasSaidAnything) {
  RouterHarness h;
  const LinkId d0 = h.AddDecode("d0");
  const LinkId d1 = h.AddDecode("d1");
  RecordingObserver first, second, third;
  const auto id = h.Submit(Keyed(h, "k"), &first);
  ASSERT_TRUE(id);
  ASSERT_TRUE(h.Submit(Keyed(h, "k"), &second));
  EXPECT_EQ(second.routes[0].decode_worker, first.routes[0].decode_worker);
  EXPECT_EQ(second.routes[0].reason, "repeat");
  h.router.Cancel(*id);
  EXPECT_EQ(h.Generates(d0).size() + h.Generates(d1).size(), 2u);
}

TEST(Repeats, WhatIsDroppedOrWasOnALostWorkerIsPlacedAnew) {
  RouterHarness h;
  const LinkId d0 = h.AddDecode("d0");
  const LinkId d1 = h.AddDecode("d1");
  h.Store(d0, h.Request(600).tokens, 0, /*snapshot=*/true);
  ReportKept(h, d1, "k", true);
  ReportKept(h, d1, "k", false);
  RecordingObserver dropped, lost, whole;
  ASSERT_TRUE(h.Submit(Keyed(h, "k"), &dropped));
  EXPECT_EQ(dropped.routes[0].decode_worker, "d0");
  ReportKept(h, d1, "gone", true);
  ReportKept(h, d1, "later", true, /*whole=*/true);
  ASSERT_TRUE(h.Submit(Keyed(h, "gone"), &whole));
  EXPECT_EQ(whole.routes[0].decode_worker, "d0");
  h.router.OnLinkDown(d1, Error{Code::kUnavailable, "gone"});
  ASSERT_TRUE(h.Submit(Keyed(h, "later"), &lost));
  EXPECT_EQ(lost.routes[0].decode_worker, "d0");
}

// The holder dies after it was asked: another worker continues from the received tokens.
TEST(Repeats, AHolderThatIsLostIsReplacedLikeAnyWorker) {
  RouterHarness h;
  const LinkId d0 = h.AddDecode("d0");
  const LinkId d1 = h.AddDecode("d1");
  ReportKept(h, d1, "k", true);
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(Keyed(h, "k"), &seen));
  const uint64_t wire = h.Generates(d1)[0].request_id();
  h.Tokens(d1, wire, 600, {5, 6});
  h.router.OnLinkDown(d1, Error{Code::kUnavailable, "gone"});
  ASSERT_EQ(h.Generates(d0).size(), 1u);
  EXPECT_EQ(h.Generates(d0)[0].tokens_size(), 602);
  EXPECT_EQ(h.Generates(d0)[0].answer_key().key(), "k");
}

TEST(Repeats, AnotherBodyEndsTheRequestWithAConflict) {
  RouterHarness h;
  const LinkId d0 = h.AddDecode("d0");
  ReportKept(h, d0, "k", true);
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(Keyed(h, "k"), &seen));
  h.Fail(d0, h.Generates(d0)[0].request_id(), Code::kAlreadyExists, /*retryable=*/false);
  EXPECT_EQ(seen.finishes, 1);
  EXPECT_EQ(seen.error.code, Code::kAlreadyExists);
}

// Digests of the wrong length, duplicates, and more than a worker may keep.
TEST(Repeats, NonsenseFromAWorkerIsNotKept) {
  RouterHarness h;
  const LinkId d0 = h.AddDecode("d0");
  v1::WorkerMessage message;
  message.mutable_kept_answers()->add_kept("short");
  message.mutable_kept_answers()->add_dropped(std::string(17, 'x'));
  message.mutable_kept_answers()->add_dropped(HashToWire(AnswerDigest("", "never", 0)));
  h.router.OnMessage(d0, message);
  ReportKept(h, d0, "k", true);
  ReportKept(h, d0, "k", true);
  ReportKept(h, d0, "k", false);
  ReportKept(h, d0, "k", false);
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(Keyed(h, "k"), &seen));
  EXPECT_NE(seen.routes[0].reason, "repeat");
}

}  // namespace
}  // namespace aisp
