// Two processes that claim one worker name.
#include <gtest/gtest.h>

#include "tests/router/router_harness.h"

namespace aisp {
namespace {

using Kind = v1::RouterMessage;

const v1::RegisterRefused* Refusal(const RouterHarness& h, LinkId link) {
  const auto sent = h.sender.sent.find(link);
  if (sent == h.sender.sent.end()) return nullptr;
  for (const v1::RouterMessage& message : sent->second) {
    if (message.has_refused()) return &message.refused();
  }
  return nullptr;
}

v1::WorkerMessage ProbeAnswer() {
  v1::WorkerMessage message;
  message.mutable_probe_answer()->set_nonce(1);
  return message;
}

// Larger and smaller ones: incarnations are random.
class Names : public ::testing::TestWithParam<std::pair<uint64_t, uint64_t>> {
 protected:
  const uint64_t first_ = GetParam().first;
  const uint64_t second_ = GetParam().second;
  RouterHarness h_;
};

TEST_P(Names, ASecondProcessIsRefusedByNameWhileTheFirstAnswers) {
  const LinkId first = h_.AddDecode("d", first_);
  RecordingObserver seen;
  ASSERT_TRUE(h_.Submit(h_.Request(10), &seen));
  v1::Register twin = h_.Registration("d", v1::ROLE_DECODE, second_);
  twin.set_pid(4711);
  twin.set_host_id("elsewhere");
  const LinkId second = h_.Attach(twin);
  EXPECT_EQ(h_.Count(first, Kind::kProbe), 1);
  EXPECT_EQ(h_.Count(second, Kind::kRegistered), 0) << "not before the first had time to answer";
  h_.router.OnMessage(first, ProbeAnswer());
  const v1::RegisterRefused* refused = Refusal(h_, second);
  ASSERT_NE(refused, nullptr);
  EXPECT_FALSE(refused->ousted());
  for (const char* part : {"worker d", "pid 4711", "host elsewhere", "host host", "worker.id"})
    EXPECT_NE(refused->reason().find(part), std::string::npos) << part << ": " << refused->reason();
  EXPECT_EQ(h_.sender.closed.count(first), 0u);
  h_.Tokens(first, h_.Generates(first)[0].request_id(), 10, {1}, v1::FINISH_STOP);
  EXPECT_EQ(seen.finish, v1::FINISH_STOP) << "its stream goes on";
}

TEST_P(Names, WithoutAnAnswerTheNewProcessIsAcceptedAndTheOldOneToldThatItIsOusted) {
  const LinkId first = h_.AddDecode("d", first_);
  RecordingObserver seen;
  ASSERT_TRUE(h_.Submit(h_.Request(10), &seen));
  const LinkId second = h_.Attach(h_.Registration("d", v1::ROLE_DECODE, second_));
  h_.Advance(RouterOptions().probe_limit);
  EXPECT_EQ(h_.Count(second, Kind::kRegistered), 1);
  ASSERT_NE(Refusal(h_, first), nullptr);
  EXPECT_TRUE(Refusal(h_, first)->ousted());
  EXPECT_EQ(h_.sender.closed.count(first), 1u);
  h_.Report(second, h_.ReadyTelemetry(second_));
  EXPECT_EQ(h_.Generates(second).size(), 1u) << "its request was taken over by the new process";
  h_.Tokens(first, h_.Generates(first)[0].request_id(), 10, {66});
  EXPECT_TRUE(seen.tokens.empty()) << "a closed link is not heard";

  // The old process wakes up and dials again: its successor is not even probed.
  const LinkId zombie = h_.Attach(h_.Registration("d", v1::ROLE_DECODE, first_));
  ASSERT_NE(Refusal(h_, zombie), nullptr);
  EXPECT_TRUE(Refusal(h_, zombie)->ousted());
  EXPECT_EQ(h_.Count(second, Kind::kProbe), 0);
}

TEST_P(Names, WhenTheFirstsLinkEndsTheSecondIsAcceptedAtOnce) {
  const LinkId first = h_.AddDecode("d", first_);
  const LinkId second = h_.Attach(h_.Registration("d", v1::ROLE_DECODE, second_));
  h_.router.OnLinkDown(first, Error{Code::kUnavailable, "gone"});
  h_.router.OnTimer(h_.clock.Now());
  EXPECT_EQ(h_.Count(second, Kind::kRegistered), 1);
}

TEST_P(Names, WhoHasDrainedIsNotAsked) {
  const LinkId first = h_.AddDecode("d", first_);
  v1::Telemetry done = h_.ReadyTelemetry(first_);
  done.set_draining(true);
  done.set_drained(true);
  h_.Report(first, done);
  const LinkId second = h_.Attach(h_.Registration("d", v1::ROLE_DECODE, second_));
  EXPECT_EQ(h_.Count(second, Kind::kRegistered), 1);
  EXPECT_EQ(h_.Count(first, Kind::kProbe), 0);
}

TEST_P(Names, WhoWasForgottenForSilenceIsOustedByItsSuccessor) {
  const LinkId first = h_.AddDecode("d", first_);
  for (int i = 0; i < 10; ++i) h_.Advance(RouterOptions().silence_limit / 4);
  EXPECT_EQ(h_.sender.closed.count(first), 1u);
  const LinkId second = h_.Attach(h_.Registration("d", v1::ROLE_DECODE, second_));
  EXPECT_EQ(h_.Count(second, Kind::kRegistered), 1) << "nobody is there to be asked";
  const LinkId zombie = h_.Attach(h_.Registration("d", v1::ROLE_DECODE, first_));
  ASSERT_NE(Refusal(h_, zombie), nullptr);
  EXPECT_TRUE(Refusal(h_, zombie)->ousted());
}

TEST_P(Names, TheSameProcessMayComeBackOnANewLinkAtOnce) {
  const LinkId first = h_.AddDecode("d", first_);
  const LinkId again = h_.Attach(h_.Registration("d", v1::ROLE_DECODE, first_));
  EXPECT_EQ(h_.Count(again, Kind::kRegistered), 1);
  EXPECT_EQ(Refusal(h_, first), nullptr);
}

TEST_P(Names, OfTwoContendersTheSecondHasToAskTheFirst) {
  const LinkId dead = h_.AddDecode("d", 99);
  const LinkId first = h_.Attach(h_.Registration("d", v1::ROLE_DECODE, first_));
  const LinkId second = h_.Attach(h_.Registration("d", v1::ROLE_DECODE, second_));
  h_.Advance(RouterOptions().probe_limit);
  EXPECT_EQ(h_.sender.closed.count(dead), 1u);
  EXPECT_EQ(h_.Count(first, Kind::kRegistered) + h_.Count(second, Kind::kRegistered), 1);
  const LinkId holder = h_.Count(first, Kind::kRegistered) == 1 ? first : second;
  const LinkId other = holder == first ? second : first;
  EXPECT_EQ(h_.Count(holder, Kind::kProbe), 1);
  h_.router.OnMessage(holder, ProbeAnswer());
  ASSERT_NE(Refusal(h_, other), nullptr);
  EXPECT_FALSE(Refusal(h_, other)->ousted());
  EXPECT_EQ(h_.sender.closed.count(holder), 0u);
}

TEST_P(Names, ARouterThatDrainsAcceptsNoContender) {
  h_.AddDecode("d", first_);
  const LinkId second = h_.Attach(h_.Registration("d", v1::ROLE_DECODE, second_));
  h_.router.BeginDrain();
  h_.Advance(RouterOptions().probe_limit);
  EXPECT_EQ(h_.Count(second, Kind::kRegistered), 0);
  ASSERT_NE(Refusal(h_, second), nullptr);
  EXPECT_TRUE(Refusal(h_, second)->draining()) << "it looks for the successor";
}

TEST_P(Names, AContenderThatLeavesIsForgotten) {
  const LinkId first = h_.AddDecode("d", first_);
  const LinkId second = h_.Attach(h_.Registration("d", v1::ROLE_DECODE, second_));
  h_.router.OnLinkDown(second, Error{Code::kUnavailable, "gone"});
  h_.Advance(RouterOptions().probe_limit);
  EXPECT_EQ(h_.sender.closed.count(first), 0u);
  EXPECT_EQ(h_.Count(second, Kind::kRegistered), 0);
}

INSTANTIATE_TEST_SUITE_P(Random, Names,
                         ::testing::Values(std::pair<uint64_t, uint64_t>(5, 6),
                                           std::pair<uint64_t, uint64_t>(6, 5)));

}  // namespace
}  // namespace aisp
