// A request that crashes prefill workers, as reported by the decode workers that asked them.
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

RouterRequest Remote(const RouterHarness& h) {
  RouterRequest request = h.Request(2000);
  request.prefill = PrefillPreference::kRemote;
  return request;
}

// A decode worker reports lost prefill workers for its last request; `back`: it hands it back.
void SayLost(RouterHarness& h, LinkId decode, uint64_t wire_id,
             const std::vector<std::string>& lost, bool back = false) {
  v1::WorkerMessage message;
  v1::TokenEvent* event = message.mutable_tokens()->add_events();
  event->set_request_id(wire_id);
  for (const std::string& worker : lost) {
    v1::PrefillTarget* target = event->add_lost_prefill();
    target->set_worker_id(worker);
    target->set_incarnation(1);
  }
  if (back) {
    event->set_finish(v1::FINISH_ERROR);
    event->mutable_error()->set_code(static_cast<int>(Code::kUnavailable));
    event->mutable_error()->set_retryable(true);
  }
  h.router.OnMessage(decode, message);
}

TEST(PoisonPrefill, WhoWasAloneOnTwoPrefillWorkersThatEndedIsRefusedWhateverIsToldFirst) {
  for (const bool ends_first : {false, true}) {
    RouterHarness h(Patient());
    const LinkId decode = h.AddDecode("d");
    const LinkId p[] = {h.AddPrefill("p0"), h.AddPrefill("p1"), h.AddPrefill("p2")};
    RecordingObserver poison;
    ASSERT_TRUE(h.Submit(Remote(h), &poison));
    const uint64_t id = h.Generates(decode).at(0).request_id();
    if (ends_first) h.router.OnLinkDown(p[0], kLost);
    SayLost(h, decode, id, {"p0"});
    if (!ends_first) h.router.OnLinkDown(p[0], kLost);
    EXPECT_EQ(poison.finishes, 0) << "once may be chance";
    if (ends_first) h.router.OnLinkDown(p[1], kLost);
    SayLost(h, decode, id, {"p1"}, /*back=*/true);
    if (!ends_first) h.router.OnLinkDown(p[1], kLost);
    h.Advance(milliseconds(1100));
    EXPECT_EQ(h.Generates(decode).size(), 1u) << "nobody computes it again";
    EXPECT_EQ(poison.finishes, 1);
    EXPECT_THAT(poison.error.message, HasSubstr("2 workers ended"));
    EXPECT_TRUE(h.HasMetric("aisp_poison_requests_total", "1"));
  }
}

TEST(PoisonPrefill, APrefillWorkerAndADecodeWorkerAreTwoEndsToo) {
  RouterHarness h(Patient());
  const LinkId decode = h.AddDecode("d");
  const LinkId prefill = h.AddPrefill("p0");
  RecordingObserver poison;
  ASSERT_TRUE(h.Submit(Remote(h), &poison));
  SayLost(h, decode, h.Generates(decode).at(0).request_id(), {"p0"});
  h.router.OnLinkDown(prefill, kLost);
  const LinkId second = h.AddDecode("e");
  h.router.OnLinkDown(decode, kLost);
  h.Advance(milliseconds(1100));
  EXPECT_TRUE(h.Generates(second).empty());
  EXPECT_EQ(poison.finishes, 1);
  EXPECT_THAT(poison.error.message, HasSubstr("2 workers ended"));
}

// The decode worker reports the lost prefill worker, and ends before the router sees that loss.
TEST(PoisonPrefill, WhoseLostPrefillWorkerIsNotKnownToHaveEndedWaitsAfterADecodeWorkersEnd) {
  RouterHarness h(Patient());
  const LinkId decode = h.AddDecode("d");
  const LinkId prefill = h.AddPrefill("p0");
  RecordingObserver poison;
  ASSERT_TRUE(h.Submit(Remote(h), &poison));
  SayLost(h, decode, h.Generates(decode).at(0).request_id(), {"p0"});
  const LinkId second = h.AddDecode("e");
  h.router.OnLinkDown(decode, kLost);
  EXPECT_TRUE(h.Generates(second).empty()) << "not before it is known";
  h.Advance(milliseconds(10));
  h.router.OnLinkDown(prefill, kLost);
  h.Advance(milliseconds(1100));
  EXPECT_TRUE(h.Generates(second).empty());
  EXPECT_EQ(poison.finishes, 1);
  EXPECT_THAT(poison.error.message, HasSubstr("2 workers ended"));
}

// Only the session was lost: requests that waited for the verdict continue.
TEST(PoisonPrefill, WhoseLostPrefillWorkerIsThereGoesOnAfterADecodeWorkersEnd) {
  RouterHarness h(Patient());
  const LinkId decode = h.AddDecode("d");
  h.AddPrefill("p0");
  RecordingObserver honest;
  ASSERT_TRUE(h.Submit(Remote(h), &honest));
  SayLost(h, decode, h.Generates(decode).at(0).request_id(), {"p0"});
  const LinkId second = h.AddDecode("e");
  h.router.OnLinkDown(decode, kLost);
  h.Advance(milliseconds(1100));
  EXPECT_EQ(h.Generates(second).size(), 1u);
  EXPECT_EQ(honest.finishes, 0) << honest.error.message;
}

// With others on the decode workers, and on a prefill worker whose end becomes known last; `told`:
// the first decode worker could still report it lost.
TEST(PoisonPrefill, AnEndThatIsKnownLastConvictsWhoWaits) {
  for (const bool told : {false, true}) {
    RouterHarness h(Patient());
    LinkId decode = h.AddDecode("d");
    const LinkId prefill = h.AddPrefill("p0");
    RecordingObserver poison, other;
    RouterRequest beside = h.Request(11);
    beside.prefill = PrefillPreference::kLocal;
    ASSERT_TRUE(h.Submit(Remote(h), &poison));
    ASSERT_TRUE(h.Submit(beside, &other));
    if (told) SayLost(h, decode, h.Generates(decode).at(0).request_id(), {"p0"});
    const LinkId next = h.AddDecode("e");
    h.router.OnLinkDown(decode, kLost);
    h.Advance(milliseconds(1100));
    h.Report(next, h.ReadyTelemetry());
    ASSERT_EQ(h.Generates(next).size(), 2u) << "two ends are not known yet";
    h.router.OnLinkDown(next, kLost);
    h.router.OnLinkDown(prefill, kLost);
    const LinkId last = h.AddDecode("f");
    for (int i = 0; i < 10; ++i) {
      h.Advance(milliseconds(200));
      h.Report(last, h.ReadyTelemetry());
      for (const v1::GenerateRequest& sent : h.Generates(last)) {
        EXPECT_EQ(sent.prompt_tokens(), 11u) << "a fourth worker has it";
        h.Tokens(last, sent.request_id(), 11, {1, 2, 3, 4}, v1::FINISH_LENGTH);
      }
    }
    EXPECT_EQ(poison.finishes, 1);
    EXPECT_THAT(poison.error.message, HasSubstr("3 workers ended"));
    EXPECT_EQ(other.finish, v1::FINISH_LENGTH) << other.error.message;
  }
}

// Its decode worker was told to drop it, and reports nothing about the prefill worker that it
// asked.
TEST(PoisonPrefill, WhoMovedMayHaveEndedThePrefillWorkerItHadBeenSentTo) {
  RouterHarness h(Patient());
  const LinkId first = h.AddDecode("a");
  const LinkId prefill = h.AddPrefill("p0");
  RecordingObserver poison, other;
  RouterRequest beside = h.Request(11);
  beside.prefill = PrefillPreference::kLocal;
  ASSERT_TRUE(h.Submit(Remote(h), &poison));
  ASSERT_TRUE(h.Submit(beside, &other));
  LinkId at = h.AddDecode("b");
  v1::WorkerMessage moves;
  moves.mutable_draining()->set_move(true);
  h.router.OnMessage(first, moves);
  ASSERT_EQ(h.Generates(at).size(), 2u) << "they moved";
  h.router.OnLinkDown(prefill, kLost);
  int ends = 1;
  const auto end_one = [&] {
    const LinkId next = h.AddDecode("c" + std::to_string(++ends));
    h.router.OnLinkDown(at, kLost);
    at = next;
  };
  end_one();
  for (int i = 0; i < 30 && poison.finishes == 0; ++i) {
    h.Advance(milliseconds(200));
    h.Report(at, h.ReadyTelemetry());
    bool ended = false;
    for (const v1::GenerateRequest& sent : h.Generates(at)) {
      ended = ended || sent.prompt_tokens() != 11;
      if (sent.prompt_tokens() == 11 && other.finishes == 0)
        h.Tokens(at, sent.request_id(), 11, {1, 2, 3, 4}, v1::FINISH_LENGTH);
    }
    if (ended) end_one();
  }
  EXPECT_EQ(ends, 3);
  EXPECT_THAT(poison.error.message, HasSubstr("3 workers ended"));
  EXPECT_EQ(other.finish, v1::FINISH_LENGTH) << other.error.message;
}

// Sessions broke, but the prefill workers are alive.
TEST(PoisonPrefill, WhoLostOnlyTheConnectionToPrefillWorkersGoesOn) {
  RouterHarness h(Patient());
  const LinkId decode = h.AddDecode("d");
  for (const char* name : {"p0", "p1"}) h.AddPrefill(name);
  RecordingObserver honest;
  ASSERT_TRUE(h.Submit(Remote(h), &honest));
  const uint64_t id = h.Generates(decode).at(0).request_id();
  SayLost(h, decode, id, {"p0"});
  SayLost(h, decode, id, {"p0", "p1", "p7"}, /*back=*/true);
  h.Advance(milliseconds(1100));
  h.Report(decode, h.ReadyTelemetry());
  ASSERT_EQ(h.Generates(decode).size(), 2u) << "by the same decode worker, which did nothing wrong";
  EXPECT_EQ(honest.finishes, 0) << honest.error.message;
}

TEST(PoisonPrefill, APrefillWorkerThatComesBackAsTheSameProcessWasNotEnded) {
  RouterHarness h(Patient());
  const LinkId decode = h.AddDecode("d");
  LinkId p[] = {h.AddPrefill("p0"), h.AddPrefill("p1")};
  RecordingObserver honest;
  ASSERT_TRUE(h.Submit(Remote(h), &honest));
  const uint64_t id = h.Generates(decode).at(0).request_id();
  for (int i = 0; i < 2; ++i) {
    SayLost(h, decode, id, {"p" + std::to_string(i)}, /*back=*/i == 1);
    h.router.OnLinkDown(p[i], kLost);
  }
  h.AddPrefill("p0");
  h.Advance(milliseconds(1100));
  h.Report(decode, h.ReadyTelemetry());
  EXPECT_EQ(h.Generates(decode).size(), 2u);
  EXPECT_EQ(honest.finishes, 0) << honest.error.message;
}

// Both requests were on both workers; the innocent one gets its token when it runs alone.
TEST(PoisonPrefill, OfTwoOnTheSamePrefillWorkersOnlyTheCulpritIsRefused) {
  RouterHarness h(Patient());
  LinkId decode = h.AddDecode("d");
  const LinkId p[] = {h.AddPrefill("p0"), h.AddPrefill("p1")};
  RecordingObserver poison, innocent;
  RouterRequest other = Remote(h);
  other.tokens = h.Request(2100).tokens;
  ASSERT_TRUE(h.Submit(Remote(h), &poison));
  ASSERT_TRUE(h.Submit(other, &innocent));
  const auto sent = h.Generates(decode);
  for (int i = 0; i < 2; ++i) {
    h.router.OnLinkDown(p[i], kLost);
    for (const auto& each : sent)
      SayLost(h, decode, each.request_id(), {"p" + std::to_string(i)}, /*back=*/i == 1);
  }
  EXPECT_EQ(h.Generates(decode).size(), 2u) << "they are held back";
  int ends = 0;
  for (int i = 0; i < 40 && poison.finishes + innocent.finishes < 2; ++i) {
    h.Advance(milliseconds(200));
    h.Report(decode, h.ReadyTelemetry());
    const v1::GenerateRequest last =
        h.Generates(decode).empty() ? v1::GenerateRequest() : h.Generates(decode).back();
    if (last.request_id() <= sent.back().request_id()) continue;
    EXPECT_FALSE(last.has_prefill()) << "no third prefill worker";
    if (last.prompt_tokens() == 2100) {
      if (innocent.finishes == 0)
        h.Tokens(decode, last.request_id(), 2100, {1, 2, 3, 4}, v1::FINISH_LENGTH);
    } else {
      const LinkId next = h.AddDecode("n" + std::to_string(++ends));
      h.router.OnLinkDown(decode, kLost);
      decode = next;
    }
  }
  EXPECT_EQ(ends, 1);
  EXPECT_THAT(poison.error.message, HasSubstr("3 workers ended"));
  EXPECT_EQ(innocent.finish, v1::FINISH_LENGTH) << innocent.error.message;
}

// The loss of the innocent request is reported first, and that request gets its token.
TEST(PoisonPrefill, WhoWasThereTooAndHasItsTokenLeavesTheCulpritToBeTold) {
  RouterHarness h(Patient());
  const LinkId decode = h.AddDecode("d");
  const LinkId p[] = {h.AddPrefill("p0"), h.AddPrefill("p1")};
  RecordingObserver poison, innocent;
  RouterRequest other = Remote(h);
  other.tokens = h.Request(2100).tokens;
  ASSERT_TRUE(h.Submit(Remote(h), &poison));
  ASSERT_TRUE(h.Submit(other, &innocent));
  const auto sent = h.Generates(decode);
  h.router.OnLinkDown(p[0], kLost);
  SayLost(h, decode, sent[1].request_id(), {"p0"});
  h.Tokens(decode, sent[1].request_id(), 2100, {1, 2, 3, 4}, v1::FINISH_LENGTH);
  SayLost(h, decode, sent[0].request_id(), {"p0"});
  h.router.OnLinkDown(p[1], kLost);
  SayLost(h, decode, sent[0].request_id(), {"p1"}, /*back=*/true);
  h.Advance(milliseconds(1100));
  EXPECT_EQ(h.Generates(decode).size(), 2u) << "nobody computes it again";
  EXPECT_THAT(poison.error.message, HasSubstr("2 workers ended"));
  EXPECT_EQ(innocent.finish, v1::FINISH_LENGTH);
}

// All requests that may have been on it have their tokens: the end has an outside cause.
TEST(PoisonPrefill, AnEndThatNobodyIsLeftToHaveCausedIsSomebodyElses) {
  RouterHarness h(Patient());
  const LinkId decode = h.AddDecode("d");
  const LinkId p[] = {h.AddPrefill("p0"), h.AddPrefill("p1"), h.AddPrefill("p2")};
  RecordingObserver early, unlucky;
  ASSERT_TRUE(h.Submit(Remote(h), &early));
  h.router.OnLinkDown(p[2], kLost);
  h.Tokens(decode, h.Generates(decode).at(0).request_id(), 2000, {1, 2, 3, 4}, v1::FINISH_LENGTH);
  ASSERT_TRUE(h.Submit(Remote(h), &unlucky));
  const uint64_t id = h.Generates(decode).at(1).request_id();
  for (int i = 0; i < 2; ++i) {
    SayLost(h, decode, id, {"p" + std::to_string(i)}, /*back=*/i == 1);
    h.router.OnLinkDown(p[i], kLost);
  }
  EXPECT_EQ(h.Generates(decode).size(), 3u) << "at once";
  EXPECT_EQ(unlucky.finishes, 0);
}

// Prefill workers are killed from outside while a long prompt waits on one after the other, with
// other requests.
TEST(PoisonPrefill, WhoIsNeverAloneOnPrefillWorkersIsNotRefusedAfterTwoEnds) {
  RouterHarness h(Patient());
  const LinkId decode = h.AddDecode("d");
  const LinkId p[] = {h.AddPrefill("p0"), h.AddPrefill("p1")};
  RecordingObserver lengthy, left[2];
  ASSERT_TRUE(h.Submit(Remote(h), &lengthy));
  const uint64_t id = h.Generates(decode).at(0).request_id();
  for (int i = 0; i < 2; ++i) {
    // Its client leaves before its location is reported: once before the end, once after it.
    RouterRequest other = Remote(h);
    other.tokens = h.Request(2100 + i).tokens;
    const auto gone = h.Submit(other, &left[i]);
    ASSERT_TRUE(gone);
    if (i == 0) h.router.Cancel(*gone);
    h.router.OnLinkDown(p[i], kLost);
    if (i == 1) h.router.Cancel(*gone);
    SayLost(h, decode, id, {"p" + std::to_string(i)}, /*back=*/i == 1);
  }
  for (int i = 0; i < 10; ++i) {
    h.Advance(milliseconds(200));
    h.Report(decode, h.ReadyTelemetry());
  }
  EXPECT_EQ(lengthy.finishes, 0) << lengthy.error.message;
  EXPECT_GT(h.Generates(decode).back().request_id(), id) << "it goes on";
}

TEST(PoisonPrefill, WherePrefillWorkersEndWithNobodyToBlameTwoEndsProveNothing) {
  RouterHarness h(Patient());
  const LinkId decode = h.AddDecode("d");
  h.router.OnLinkDown(h.AddPrefill("idle"), kLost);  // killed from outside
  const LinkId p[] = {h.AddPrefill("p0"), h.AddPrefill("p1")};
  RecordingObserver unlucky;
  ASSERT_TRUE(h.Submit(Remote(h), &unlucky));
  const uint64_t id = h.Generates(decode).at(0).request_id();
  for (int i = 0; i < 2; ++i) {
    SayLost(h, decode, id, {"p" + std::to_string(i)}, /*back=*/i == 1);
    h.router.OnLinkDown(p[i], kLost);
  }
  EXPECT_EQ(h.Generates(decode).size(), 2u) << "at once";
  EXPECT_EQ(unlucky.finishes, 0);
}

}  // namespace
}  // namespace aisp
