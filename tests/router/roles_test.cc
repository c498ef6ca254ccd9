// Role changes of workers, as seen by the router.
#include <gmock/gmock.h>

#include <optional>

#include "tests/router/router_harness.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;

class RouterRoles : public testing::Test {
 protected:
  // The outcome, once known.
  std::optional<Result<Router::RoleState>> Ask(const std::string& worker, const RoleWish& wish) {
    auto said = std::make_shared<std::optional<Result<Router::RoleState>>>();
    last_ = said;
    h_.router.SetWorkerRole(worker, wish,
                            [said](Result<Router::RoleState> result) { *said = result; });
    return *said;
  }
  static RoleWish To(v1::Role role, v1::Role expected = v1::ROLE_UNSPECIFIED) {
    RoleWish wish;
    wish.to = role;
    wish.expected = expected;
    return wish;
  }
  const v1::SetRole& Sent(LinkId link) { return h_.sender.sent[link].back().set_role(); }
  void Answer(LinkId link, std::optional<Code> error = std::nullopt) {
    v1::WorkerMessage message;
    v1::RoleAnswer* answer = message.mutable_role_answer();
    answer->set_nonce(Sent(link).nonce());
    answer->set_role(v1::ROLE_DECODE);
    answer->set_role_epoch(1);
    if (error) answer->mutable_error()->set_code(static_cast<int>(*error));
    h_.router.OnMessage(link, message);
  }
  RouterHarness h_;
  std::shared_ptr<std::optional<Result<Router::RoleState>>> last_;
};

TEST_F(RouterRoles, TheWorkerIsAskedAndItsAnswerIsTold) {
  const LinkId d = h_.AddDecode("d0");
  h_.AddDecode("d1");
  EXPECT_FALSE(Ask("d0", To(v1::ROLE_PREFILL, v1::ROLE_DECODE)));
  EXPECT_EQ(Sent(d).role(), v1::ROLE_PREFILL);
  EXPECT_EQ(Sent(d).expected_role(), v1::ROLE_DECODE);
  Answer(d);
  ASSERT_TRUE(*last_);
  EXPECT_TRUE((*last_)->has_value());
  EXPECT_FALSE(Ask("d0", To(v1::ROLE_PREFILL)));
  Answer(d, Code::kAborted);
  ASSERT_TRUE(*last_);
  EXPECT_EQ((*last_)->error().code, Code::kAborted);
}

TEST_F(RouterRoles, TheLastDecodeWorkerIsNotGivenAway) {
  h_.AddDecode("d0");
  h_.AddPrefill("p0");
  const auto refused = Ask("d0", To(v1::ROLE_PARKED));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->error().code, Code::kFailedPrecondition);
  EXPECT_THAT(refused->error().message, HasSubstr("d0 is the last decode worker"));
  // A draining worker does not count.
  const LinkId d1 = h_.AddDecode("d1");
  v1::WorkerMessage draining;
  draining.mutable_draining();
  h_.router.OnMessage(d1, draining);
  EXPECT_TRUE(Ask("d0", To(v1::ROLE_PARKED)));
  // It accepts work again.
  draining.mutable_draining()->set_over(true);
  h_.router.OnMessage(d1, draining);
  EXPECT_FALSE(Ask("d0", To(v1::ROLE_PARKED))) << "the worker is asked";
}

TEST_F(RouterRoles, AWorkerThatIsUnknownOrNotAsExpectedIsNotAsked) {
  const LinkId p = h_.AddPrefill("p0");
  const auto unknown = Ask("p7", To(v1::ROLE_DECODE));
  ASSERT_TRUE(unknown);
  EXPECT_EQ(unknown->error().code, Code::kNotFound);
  const auto other = Ask("p0", To(v1::ROLE_DECODE, v1::ROLE_PARKED));
  ASSERT_TRUE(other);
  EXPECT_THAT(other->error().message, HasSubstr("is prefill (epoch 0), expected was parked"));
  EXPECT_EQ(h_.Count(p, v1::RouterMessage::kSetRole), 0);
}

TEST_F(RouterRoles, SilenceAndTheEndOfTheWorkerAreAnswersToo) {
  const LinkId p = h_.AddPrefill("p0");
  EXPECT_FALSE(Ask("p0", To(v1::ROLE_DECODE)));
  h_.router.OnLinkDown(p, Error{Code::kUnavailable, "reset"});
  ASSERT_TRUE(*last_);
  EXPECT_EQ((*last_)->error().code, Code::kUnavailable);
  const LinkId again = h_.AddPrefill("p0", 2);
  EXPECT_FALSE(Ask("p0", To(v1::ROLE_DECODE)));
  for (int i = 0; i < 6; ++i) {
    h_.Advance(std::chrono::seconds(1));
    h_.Report(again, h_.ReadyTelemetry(2));
  }
  ASSERT_TRUE(*last_);
  EXPECT_THAT((*last_)->error().message, HasSubstr("did not answer within 5 s"));
}

// The new registration may come before the answer, which is on another link.
TEST_F(RouterRoles, AWorkerThatIsBackInItsNewRoleHasAnswered) {
  const LinkId p = h_.AddPrefill("p0");
  EXPECT_FALSE(Ask("p0", To(v1::ROLE_DECODE)));
  v1::Register back = h_.Registration("p0", v1::ROLE_DECODE);
  back.set_role_epoch(2);
  const LinkId link = h_.Attach(back);
  ASSERT_TRUE(*last_);
  EXPECT_TRUE((*last_)->has_value());
  EXPECT_TRUE(h_.sender.closed.contains(p)) << "its old link serves nobody";
  h_.Report(link, h_.ReadyTelemetry());
  EXPECT_TRUE(h_.router.Ready());
  EXPECT_EQ(h_.router.Workers()[0].role, v1::ROLE_DECODE);
  EXPECT_EQ(h_.router.Workers()[0].role_epoch, 2u);
}

TEST_F(RouterRoles, AParkedWorkerGetsNothing) {
  const LinkId parked = h_.Attach(h_.Registration("x", v1::ROLE_PARKED));
  h_.Report(parked, h_.ReadyTelemetry());
  EXPECT_FALSE(h_.router.Ready());
  EXPECT_EQ(h_.router.Workers()[0].state, WorkerStatus::State::kParked);
  RecordingObserver observer;
  EXPECT_FALSE(h_.Submit(h_.Request(40), &observer));
  h_.AddDecode("d");
  ASSERT_TRUE(h_.Submit(h_.Request(40), &observer));
  EXPECT_TRUE(h_.Generates(parked).empty());
}

TEST_F(RouterRoles, TheTotalsCountWhatWasAskedAndWhatWasNotCached) {
  const LinkId d = h_.AddDecode("d");
  RecordingObserver observer;
  ASSERT_TRUE(h_.Submit(h_.Request(40, 2), &observer));
  h_.Tokens(d, h_.Generates(d)[0].request_id(), 40, {1, 2}, v1::FINISH_LENGTH);
  const RouterTotals& totals = h_.router.Totals();
  EXPECT_EQ(totals.requests, 1u);
  EXPECT_EQ(totals.prompt_tokens, 40u);
  EXPECT_EQ(totals.uncached_tokens, 40u);
  EXPECT_EQ(totals.finished, 1u);
  EXPECT_EQ(totals.new_tokens, 2u);
}

}  // namespace
}  // namespace aisp
