// A request that crashes workers is distinguished from requests next to it, and from machine
// failures.
#include <gmock/gmock.h>

#include "tests/router/router_harness.h"

namespace aisp {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

const Error kLost{Code::kUnavailable, "lost"};

RouterOptions Patient() {
  RouterOptions options;
  options.max_attempts = 6;
  return options;
}

// Answers all prompts of eleven tokens.
void ServeShort(RouterHarness& h, LinkId at) {
  for (const v1::GenerateRequest& sent : h.Generates(at)) {
    if (sent.prompt_tokens() == 11)
      h.Tokens(at, sent.request_id(), 11, {1, 2, 3, 4}, v1::FINISH_LENGTH);
  }
}

TEST(Poison, ARequestThatEndedTwoWorkersIsRefusedAndTheThirdLives) {
  RouterHarness h(Patient());
  const LinkId first = h.AddDecode("a");
  RecordingObserver poison;
  RouterRequest request = h.Request(10);
  request.trace_id = "poisonous";
  ASSERT_TRUE(h.Submit(std::move(request), &poison));
  const LinkId second = h.AddDecode("b");
  h.router.OnLinkDown(first, kLost);
  ASSERT_EQ(h.Generates(second).size(), 1u) << "once may be chance";
  const LinkId third = h.AddDecode("c");
  h.router.OnLinkDown(second, kLost);
  ::testing::internal::CaptureStderr();
  h.Advance(milliseconds(1100));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("request refused: workers end when they compute it request=poisonous "));
  EXPECT_TRUE(h.Generates(third).empty());
  EXPECT_EQ(poison.finishes, 1);
  EXPECT_EQ(poison.error.code, Code::kInternal);
  EXPECT_THAT(poison.error.message, HasSubstr("2 workers ended"));
  EXPECT_TRUE(h.HasMetric("aisp_poison_requests_total", "1"));
}

// Client libraries do this several times after a 500.
TEST(Poison, TheSameRequestSentAgainEndsNoMoreWorkers) {
  RouterHarness h(Patient());
  const LinkId first = h.AddDecode("a");
  RecordingObserver poison;
  ASSERT_TRUE(h.Submit(h.Request(10), &poison));
  const LinkId second = h.AddDecode("b");
  h.router.OnLinkDown(first, kLost);
  const LinkId third = h.AddDecode("c");
  h.router.OnLinkDown(second, kLost);
  h.Advance(milliseconds(1100));
  ASSERT_EQ(poison.finishes, 1);
  RouterRequest same = h.Request(10);
  same.sampling.set_seed(99);
  RecordingObserver again, other, neighbour;
  const auto refused = h.Submit(same, &again);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInternal);
  EXPECT_THAT(refused.error().message, HasSubstr("the same request"));
  EXPECT_TRUE(h.HasMetric("aisp_poison_requests_total", "2"));
  // A different request is computed, and so is one of another tenant.
  EXPECT_TRUE(h.Submit(h.Request(11), &other));
  same.tenant.name = "another";
  EXPECT_TRUE(h.Submit(same, &neighbour));
  EXPECT_EQ(h.Generates(third).size(), 2u);
  // The cause may be fixed by then.
  h.Advance(std::chrono::minutes(10));
  h.AddDecode("d");
  const auto later = h.Submit(h.Request(10), &again);
  EXPECT_TRUE(later) << later.error().message;
}

// Workers end from an outside cause: the two ends were chance.
TEST(Poison, WhatWasRefusedIsTriedAgainWhereWorkersEndOfThemselves) {
  RouterHarness h(Patient());
  const LinkId first = h.AddDecode("a");
  RecordingObserver refused, again;
  ASSERT_TRUE(h.Submit(h.Request(10), &refused));
  const LinkId second = h.AddDecode("b");
  h.router.OnLinkDown(first, kLost);
  const LinkId third = h.AddDecode("c");
  h.router.OnLinkDown(second, kLost);
  h.Advance(milliseconds(1100));
  ASSERT_EQ(refused.finishes, 1);
  h.AddDecode("d");
  h.router.OnLinkDown(third, kLost);
  EXPECT_TRUE(h.Submit(h.Request(10), &again));
}

// Each end becomes known only after the culprit's client has left; it then asks again.
TEST(Poison, WhoIsLeftWhenTheCulpritsClientHasGoneIsNotTakenForIt) {
  RouterHarness h(Patient());
  LinkId at = h.AddDecode("w0");
  RecordingObserver poison[2], innocent;
  ASSERT_TRUE(h.Submit(h.Request(11), &innocent));
  for (int i = 0; i < 2; ++i) {
    const auto culprit = h.Submit(h.Request(10), &poison[i]);
    ASSERT_TRUE(culprit);
    h.router.Cancel(*culprit);
    h.Advance(milliseconds(500));
    const LinkId next = h.AddDecode("w" + std::to_string(i + 1));
    h.router.OnLinkDown(at, kLost);
    at = next;
  }
  for (int i = 0; i < 8; ++i) {
    h.Advance(milliseconds(200));
    h.Report(at, h.ReadyTelemetry());
  }
  EXPECT_EQ(innocent.finishes, 0) << innocent.error.message;
  EXPECT_EQ(h.Generates(at).size(), 1u);
}

// A request that yields is taken from its worker while that computes it.
TEST(Poison, WhoWasTakenFromAWorkerMayHaveEndedItStill) {
  RouterHarness h(Patient());
  const LinkId first = h.AddDecode("a");
  RecordingObserver poison, innocent;
  ASSERT_TRUE(h.Submit(h.Request(10), &poison));
  const LinkId second = h.AddDecode("b");
  v1::WorkerMessage moves;
  moves.mutable_draining()->set_move(true);
  h.router.OnMessage(first, moves);
  ASSERT_EQ(h.Generates(second).size(), 1u) << "it moved";
  moves.mutable_draining()->set_move(false);
  moves.mutable_draining()->set_over(true);
  h.router.OnMessage(first, moves);
  // The first worker still ends because of it, and then the second one.
  h.router.OnLinkDown(first, kLost);
  h.AddDecode("c");
  h.router.OnLinkDown(second, kLost);
  h.Advance(milliseconds(1100));
  EXPECT_EQ(poison.finishes, 1);
  EXPECT_THAT(poison.error.message, HasSubstr("2 workers ended"));
}

// Two workers are killed from outside; a long request was on both, and so were others.
TEST(Poison, WhoWasNeverAloneIsNotRefusedAfterTwoEnds) {
  RouterHarness h(Patient());
  LinkId at = h.AddDecode("w0");
  RecordingObserver lengthy, other[2];
  ASSERT_TRUE(h.Submit(h.Request(10), &lengthy));
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(h.Submit(h.Request(11), &other[i]));
    const LinkId next = h.AddDecode("w" + std::to_string(i + 1));
    h.router.OnLinkDown(at, kLost);
    at = next;
    ServeShort(h, at);
  }
  for (int i = 0; i < 20; ++i) {
    h.Advance(milliseconds(200));
    h.Report(at, h.ReadyTelemetry());
    for (const v1::GenerateRequest& sent : h.Generates(at)) {
      h.Tokens(at, sent.request_id(), sent.prompt_tokens(), {1, 2, 3, 4}, v1::FINISH_LENGTH);
    }
  }
  for (const RecordingObserver* each : {&lengthy, &other[0], &other[1]}) {
    EXPECT_EQ(each->finishes, 1);
    EXPECT_EQ(each->finish, v1::FINISH_LENGTH) << each->error.message;
  }
}

TEST(Poison, BesideOthersTheThirdEndIsAskedFor) {
  RouterHarness h(Patient());
  LinkId at = h.AddDecode("w0");
  RecordingObserver poison, other[2];
  ASSERT_TRUE(h.Submit(h.Request(10), &poison));
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(h.Submit(h.Request(11), &other[i]));
    const LinkId next = h.AddDecode("w" + std::to_string(i + 1));
    h.router.OnLinkDown(at, kLost);
    at = next;
    ServeShort(h, at);
  }
  int ends = 2;
  for (int i = 0; i < 60 && poison.finishes == 0; ++i) {
    h.Advance(milliseconds(200));
    h.Report(at, h.ReadyTelemetry());
    if (h.Generates(at).empty()) continue;
    const v1::GenerateRequest sent = h.Generates(at).back();
    if (sent.prompt_tokens() != 10) {
      h.Tokens(at, sent.request_id(), 11, {1, 2, 3, 4}, v1::FINISH_LENGTH);
      continue;
    }
    const LinkId next = h.AddDecode("w" + std::to_string(++ends));
    h.router.OnLinkDown(at, kLost);
    at = next;
  }
  EXPECT_EQ(ends, 3);
  EXPECT_EQ(poison.finishes, 1);
  EXPECT_THAT(poison.error.message, HasSubstr("3 workers ended"));
  for (const RecordingObserver& each : other) EXPECT_EQ(each.finish, v1::FINISH_LENGTH);
}

// A worker is killed every few seconds; all requests there but one have got tokens since.
TEST(Poison, AnEndThatNobodyIsLeftToHaveCausedIsSomebodyElses) {
  RouterHarness h(Patient());
  const LinkId killed = h.AddDecode("k");
  RecordingObserver short_one, lengthy;
  ASSERT_TRUE(h.Submit(h.Request(11), &short_one));
  LinkId at = h.AddDecode("w0");
  h.router.OnLinkDown(killed, kLost);
  h.Tokens(at, h.Generates(at).back().request_id(), 11, {1});
  ASSERT_TRUE(h.Submit(h.Request(10), &lengthy));
  for (int i = 0; i < 2; ++i) {
    const LinkId next = h.AddDecode("w" + std::to_string(i + 1));
    h.router.OnLinkDown(at, kLost);
    h.Advance(milliseconds(200));
    h.Report(next, h.ReadyTelemetry());
    ASSERT_EQ(h.Generates(next).size(), 2u) << i;
    for (const v1::GenerateRequest& sent : h.Generates(next)) {
      if (sent.prompt_tokens() == 11)
        h.Tokens(next, sent.request_id(), static_cast<uint32_t>(12 + i), {1});
    }
    at = next;
  }
  h.Advance(milliseconds(1500));
  EXPECT_EQ(lengthy.finishes, 0) << lengthy.error.message;
}

TEST(Poison, AWorkerThatComesBackAsTheSameProcessWasNotEnded) {
  RouterHarness h(Patient());
  const LinkId first = h.AddDecode("a");
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(h.Request(10), &seen));
  const LinkId second = h.AddDecode("b");
  h.router.OnLinkDown(first, kLost);
  h.router.OnLinkDown(second, kLost);
  const LinkId back = h.AddDecode("b");  // the same incarnation
  EXPECT_TRUE(h.Generates(back).empty()) << "not before the verdict";
  h.Advance(milliseconds(1100));
  EXPECT_EQ(h.Generates(back).size(), 1u);
  EXPECT_EQ(seen.finishes, 0);
}

TEST(Poison, AWorkerThatEndedInGoodOrderWasNotEndedByARequest) {
  RouterHarness h(Patient());
  const LinkId first = h.AddDecode("a");
  RecordingObserver seen;
  ASSERT_TRUE(h.Submit(h.Request(10), &seen));
  const LinkId second = h.AddDecode("b");
  h.router.OnLinkDown(first, kLost);
  h.router.OnLinkDown(second, kLost);
  v1::Register successor = h.Registration("b", v1::ROLE_DECODE, 2);
  successor.mutable_last_exit()->set_pid(7);
  const LinkId back = h.Attach(successor);
  h.Report(back, h.ReadyTelemetry(2));
  h.Advance(milliseconds(1100));
  EXPECT_EQ(h.Generates(back).size(), 1u);
  EXPECT_EQ(seen.finishes, 0);
}

TEST(Poison, WhoGotTokensFromAWorkerIsNotBlamedForItsEnd) {
  RouterHarness h(Patient());
  LinkId at = h.AddDecode("w0");
  RecordingObserver honest;
  ASSERT_TRUE(h.Submit(h.Request(10, 40), &honest));
  for (int i = 0; i < 4; ++i) {
    const auto sent = h.Generates(at).back();
    h.Tokens(at, sent.request_id(), 10 + static_cast<uint32_t>(i), {i});
    const LinkId next = h.AddDecode("w" + std::to_string(i + 1));
    h.router.OnLinkDown(at, kLost);
    ASSERT_EQ(h.Generates(next).size(), 1u);
    at = next;
  }
  EXPECT_EQ(honest.finishes, 0);
}

TEST(Poison, WhereWorkersEndWithNobodyToBlameTwoEndsProveNothing) {
  RouterHarness h(Patient());
  LinkId at = h.AddDecode("w0");
  RecordingObserver unlucky;
  ASSERT_TRUE(h.Submit(h.Request(10), &unlucky));
  const LinkId idle = h.AddDecode("idle");
  h.router.OnLinkDown(idle, kLost);  // workers are killed from outside
  for (int i = 0; i < 3; ++i) {
    const LinkId next = h.AddDecode("w" + std::to_string(i + 1));
    h.router.OnLinkDown(at, kLost);
    ASSERT_EQ(h.Generates(next).size(), 1u) << i;
    at = next;
  }
  EXPECT_EQ(unlucky.finishes, 0);
}

TEST(Poison, AnIdlePrefillWorkerThatEndsHasNobodyToBlameEither) {
  RouterHarness h(Patient());
  const LinkId idle = h.AddPrefill("p");
  const LinkId first = h.AddDecode("a");
  RecordingObserver honest;
  ASSERT_TRUE(h.Submit(h.Request(10), &honest)) << "too short for a prefill worker";
  h.router.OnLinkDown(idle, kLost);
  const LinkId second = h.AddDecode("b");
  h.router.OnLinkDown(first, kLost);
  const LinkId third = h.AddDecode("c");
  h.router.OnLinkDown(second, kLost);
  EXPECT_EQ(h.Generates(third).size(), 1u);
  EXPECT_EQ(honest.finishes, 0);
}

TEST(Poison, WhoseWorkerEndedTakesNoPrefillWorkerAlong) {
  for (const bool storm : {false, true}) {
    RouterHarness h(Patient());
    const LinkId first = h.AddDecode("a");
    h.AddPrefill("p");
    RouterRequest request = h.Request(2000);
    request.prefill = PrefillPreference::kRemote;
    RecordingObserver seen;
    ASSERT_TRUE(h.Submit(request, &seen));
    ASSERT_TRUE(h.Generates(first)[0].has_prefill());
    const LinkId second = h.AddDecode("b");
    if (storm) h.router.OnLinkDown(h.AddDecode("idle"), kLost);  // workers are killed from outside
    h.router.OnLinkDown(first, kLost);
    ASSERT_EQ(h.Generates(second).size(), 1u);
    EXPECT_EQ(h.Generates(second)[0].has_prefill(), storm);
  }
}

TEST(Poison, APrefillWorkersEndThatIsToldLateIsNoSignOfAStorm) {
  RouterHarness h(Patient());
  const LinkId first = h.AddDecode("a");
  const LinkId prefill = h.AddPrefill("p");
  RouterRequest request = h.Request(2000);
  request.prefill = PrefillPreference::kRemote;
  RecordingObserver poison;
  ASSERT_TRUE(h.Submit(request, &poison));
  ASSERT_TRUE(h.Generates(first)[0].has_prefill());
  const LinkId second = h.AddDecode("b");
  h.router.OnLinkDown(first, kLost);
  ASSERT_EQ(h.Generates(second).size(), 1u);
  h.router.OnLinkDown(prefill, kLost);
  const LinkId third = h.AddDecode("c");
  h.router.OnLinkDown(second, kLost);
  h.Advance(milliseconds(1100));
  EXPECT_TRUE(h.Generates(third).empty());
  EXPECT_EQ(poison.finishes, 1);
}

TEST(Poison, WhoWasThereOnceGoesOnAfterThoseWhoWereThereTwice) {
  RouterHarness h(Patient());
  const LinkId first = h.AddDecode("a");
  RecordingObserver poison, innocent, late;
  ASSERT_TRUE(h.Submit(h.Request(10), &poison));
  ASSERT_TRUE(h.Submit(h.Request(11), &innocent));
  const LinkId second = h.AddDecode("b");
  h.router.OnLinkDown(first, kLost);
  ASSERT_TRUE(h.Submit(h.Request(12), &late));
  ASSERT_EQ(h.Generates(second).size(), 3u);
  const LinkId third = h.AddDecode("c");
  h.router.OnLinkDown(second, kLost);
  h.Advance(milliseconds(300));
  EXPECT_EQ(h.Generates(third).size(), 1u) << "one suspect at a time";
}

TEST(Poison, OfSeveralThatWereThereTwiceOnlyTheCulpritIsRefused) {
  RouterHarness h(Patient());
  const LinkId first = h.AddDecode("a");
  RecordingObserver poison, innocent;
  ASSERT_TRUE(h.Submit(h.Request(10), &poison));
  ASSERT_TRUE(h.Submit(h.Request(11), &innocent));
  const LinkId second = h.AddDecode("b");
  h.router.OnLinkDown(first, kLost);
  ASSERT_EQ(h.Generates(second).size(), 2u);
  LinkId at = h.AddDecode("c");
  h.router.OnLinkDown(second, kLost);
  // One of the two at a time: a token clears the request, a worker's end does not.
  for (int round = 0; round < 6 && poison.finishes + innocent.finishes < 2; ++round) {
    ASSERT_LE(h.Generates(at).size(), 2u);
    for (const v1::GenerateRequest& sent : h.Generates(at)) {
      if (sent.prompt_tokens() == 11) {
        if (innocent.finishes == 0)
          h.Tokens(at, sent.request_id(), 11, {1, 2, 3, 4}, v1::FINISH_LENGTH);
        continue;
      }
      if (poison.finishes > 0) continue;
      const LinkId next = h.AddDecode("n" + std::to_string(round));
      h.router.OnLinkDown(at, kLost);
      at = next;
      break;
    }
    for (int i = 0; i < 4; ++i) {
      h.Advance(milliseconds(300));
      h.Report(at, h.ReadyTelemetry());
    }
  }
  EXPECT_EQ(poison.finishes, 1);
  EXPECT_EQ(poison.error.code, Code::kInternal);
  EXPECT_EQ(innocent.finishes, 1);
  EXPECT_EQ(innocent.finish, v1::FINISH_LENGTH) << innocent.error.message;
}

// The choices of one request have the same prompt and are on the worker together.
TEST(Poison, TheChoicesOfOneRequestAreOneSuspect) {
  RouterHarness h(Patient());
  const LinkId first = h.AddDecode("a");
  RecordingObserver choices[3];
  RouterRequest request = h.Request(10);
  request.shares_tokens = true;
  for (; request.choice < 3; ++request.choice)
    ASSERT_TRUE(h.Submit(request, &choices[request.choice]));
  const LinkId second = h.AddDecode("b");
  h.router.OnLinkDown(first, kLost);
  ASSERT_EQ(h.Generates(second).size(), 3u);
  const LinkId third = h.AddDecode("c");
  h.router.OnLinkDown(second, kLost);
  h.Advance(milliseconds(1100));
  EXPECT_TRUE(h.Generates(third).empty());
  for (const RecordingObserver& each : choices)
    EXPECT_THAT(each.error.message, HasSubstr("2 workers ended"));
}

}  // namespace
}  // namespace aisp
