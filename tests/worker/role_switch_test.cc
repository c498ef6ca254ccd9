#include "worker/role_switch.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "common/clock.h"

namespace aisp {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Controlled by the test, including when it is drained.
class FakeRole final : public WorkerRole {
 public:
  explicit FakeRole(LinkDialer<v1::WorkerMessage>* dialer) : dialer_(dialer) {}
  std::vector<std::string> told;
  bool drained = false;
  bool expects = false;
  int heard = 0;
  Instant timer = kNever;
  LinkId link;

  void Start() override { Activate(1); }
  void SetRouters(const std::vector<std::string>&) override { told.push_back("routers"); }
  bool CanLaunch() const override { return false; }
  void Launch() override {}
  bool InFlight() const override { return false; }
  bool StepDone() override { return true; }
  void Collect() override {}
  void OnTransport() override { told.push_back("transport"); }
  bool ExpectsSoon() const override { return expects; }
  bool HasNotes() const override { return expects; }
  Instant NextTimer() const override { return timer; }
  void OnTimer(Instant) override { timer = kNever; }
  void BeginDrain() override { told.push_back("drain"); }
  void MoveStreams() override { told.push_back("move"); }
  bool Drained() const override { return drained; }
  void CallOffDrain() override { told.push_back("call off"); }
  void StandBy() override { told.push_back("stand by"); }
  void Activate(uint64_t epoch) override {
    drained = false;
    told.push_back("take up " + std::to_string(epoch));
    link = dialer_->Dial("router");
  }
  void CloseLinks() override { told.push_back("leave"); }
  bool StopWanted() const override { return false; }
  Status Ready() const override { return {}; }
  const Engine& engine() const override { std::abort(); }
  void OnLinkUp(LinkId, const std::string&) override { ++heard; }
  void OnMessage(LinkId, v1::RouterMessage) override { ++heard; }
  void OnLinkDown(LinkId, const Error&) override { ++heard; }

 private:
  LinkDialer<v1::WorkerMessage>* const dialer_;
};

class FakeDialer final : public LinkDialer<v1::WorkerMessage> {
 public:
  std::vector<v1::WorkerMessage> sent;
  LinkId Dial(const std::string&) override { return LinkId(++last_); }
  void Send(LinkId, v1::WorkerMessage message) override { sent.push_back(std::move(message)); }
  void Close(LinkId) override {}

 private:
  uint64_t last_ = 0;
};

class RoleSwitchTest : public testing::Test {
 protected:
  RoleSwitchTest() : roles_({"w", [this](v1::Role role) { became_.push_back(role); }}, &clock_) {
    roles_.SetDialer(&dialer_);
    prefill_ = std::make_unique<FakeRole>(roles_.DialerOf(v1::ROLE_PREFILL));
    decode_ = std::make_unique<FakeRole>(roles_.DialerOf(v1::ROLE_DECODE));
    roles_.Add(v1::ROLE_PREFILL, prefill_.get());
    roles_.Add(v1::ROLE_DECODE, decode_.get());
    roles_.Start();
    prefill_->told.clear();
  }
  static RoleChange To(v1::Role role) {
    RoleChange change;
    change.to = role;
    change.move_after = milliseconds(100);
    change.deadline = milliseconds(500);
    return change;
  }
  void Tick() { roles_.OnTimer(clock_.Now()); }

  ManualClock clock_;
  FakeDialer dialer_;
  std::vector<v1::Role> became_;
  RoleSwitch roles_;
  std::unique_ptr<FakeRole> prefill_, decode_;
};

TEST_F(RoleSwitchTest, TheOtherRoleIsTakenUpWhenTheFirstOneIsDrained) {
  ASSERT_TRUE(roles_.Change(To(v1::ROLE_DECODE)));
  EXPECT_THAT(prefill_->told, ElementsAre("drain"));
  Tick();
  EXPECT_EQ(roles_.current(), v1::ROLE_PREFILL);
  EXPECT_TRUE(roles_.changing());
  prefill_->drained = true;
  Tick();
  EXPECT_EQ(roles_.current(), v1::ROLE_DECODE);
  EXPECT_EQ(roles_.epoch(), 2u);
  EXPECT_THAT(prefill_->told, ElementsAre("drain", "stand by"));
  EXPECT_THAT(decode_->told, ElementsAre("take up 2"));
  EXPECT_THAT(became_, ElementsAre(v1::ROLE_DECODE));
  EXPECT_FALSE(roles_.Drained()) << "it has not been told to end";
}

TEST_F(RoleSwitchTest, AWorkerThatIsNotAsExpectedIsLeftAloneAndBothValuesAreNamed) {
  RoleChange change = To(v1::ROLE_DECODE);
  change.expected = v1::ROLE_DECODE;
  const Status role = roles_.Change(change);
  ASSERT_FALSE(role);
  EXPECT_EQ(role.error().code, Code::kFailedPrecondition);
  EXPECT_THAT(role.error().message, HasSubstr("is prefill (epoch 1), expected was decode"));
  change.expected = v1::ROLE_PREFILL;
  change.expected_epoch = 7;
  const Status epoch = roles_.Change(change);
  ASSERT_FALSE(epoch);
  EXPECT_THAT(epoch.error().message, HasSubstr("in epoch 1, expected was epoch 7"));
  EXPECT_TRUE(prefill_->told.empty());
  change.expected_epoch = 1;
  EXPECT_TRUE(roles_.Change(change));
  const Status second = roles_.Change(change);
  ASSERT_FALSE(second) << "of two planners one does it";
  EXPECT_EQ(second.error().code, Code::kAborted);
}

TEST_F(RoleSwitchTest, ARoleThatTheProcessHasNotIsRefusedAndItsOwnIsNoChange) {
  const Status parked = roles_.Change(To(v1::ROLE_PARKED));
  ASSERT_FALSE(parked);
  EXPECT_EQ(parked.error().code, Code::kUnimplemented);
  EXPECT_TRUE(roles_.Change(To(v1::ROLE_PREFILL)));
  EXPECT_FALSE(roles_.changing());
  EXPECT_TRUE(prefill_->told.empty());
}

TEST_F(RoleSwitchTest, StreamsAreMovedAndAChangeThatTakesTooLongIsCalledOff) {
  ASSERT_TRUE(roles_.Change(To(v1::ROLE_DECODE)));
  EXPECT_EQ(roles_.NextTimer(), clock_.Now() + milliseconds(100));
  clock_.Advance(milliseconds(100));
  Tick();
  EXPECT_THAT(prefill_->told, ElementsAre("drain", "move"));
  EXPECT_EQ(roles_.NextTimer(), clock_.Now() + milliseconds(400));
  clock_.Advance(milliseconds(400));
  Tick();
  EXPECT_THAT(prefill_->told, ElementsAre("drain", "move", "call off"));
  EXPECT_EQ(roles_.current(), v1::ROLE_PREFILL);
  EXPECT_EQ(roles_.called_off(), 1u);
  EXPECT_EQ(roles_.NextTimer(), kNever);
  EXPECT_TRUE(roles_.Change(To(v1::ROLE_DECODE))) << "it may be asked again";
}

TEST_F(RoleSwitchTest, AWorkerThatDrainsForGoodTakesNoOtherRole) {
  ASSERT_TRUE(roles_.Change(To(v1::ROLE_DECODE)));
  roles_.BeginDrain();
  prefill_->drained = true;
  clock_.Advance(milliseconds(600));
  Tick();
  EXPECT_EQ(roles_.current(), v1::ROLE_PREFILL);
  EXPECT_TRUE(roles_.Drained());
  const Status refused = roles_.Change(To(v1::ROLE_DECODE));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kUnavailable);
}

TEST_F(RoleSwitchTest, ARouterIsAnsweredAndWhatComesOnALinkGoesToWhoDialledIt) {
  v1::RouterMessage ask;
  ask.mutable_set_role()->set_nonce(9);
  ask.mutable_set_role()->set_role(v1::ROLE_DECODE);
  ask.mutable_set_role()->set_deadline_ms(1000);
  prefill_->drained = true;
  const LinkId old_link = prefill_->link;
  roles_.OnMessage(old_link, ask);
  ASSERT_EQ(dialer_.sent.size(), 1u);
  EXPECT_EQ(dialer_.sent[0].role_answer().nonce(), 9u);
  EXPECT_EQ(dialer_.sent[0].role_answer().role(), v1::ROLE_PREFILL);
  EXPECT_FALSE(dialer_.sent[0].role_answer().has_error());
  EXPECT_EQ(roles_.current(), v1::ROLE_DECODE);
  roles_.OnLinkUp(decode_->link, "");
  EXPECT_EQ(decode_->heard, 1);
  roles_.OnMessage(old_link, {});
  EXPECT_EQ(prefill_->heard, 1);
  roles_.OnLinkDown(old_link, Error{});
  roles_.OnMessage(old_link, {});
  EXPECT_EQ(prefill_->heard, 2) << "nobody has that link any more";
  roles_.OnTransport();
  EXPECT_THAT(prefill_->told, ::testing::Contains("transport")) << "peers are owed answers";
  EXPECT_FALSE(roles_.ExpectsSoon() || roles_.HasNotes());
  prefill_->expects = true;
  EXPECT_TRUE(roles_.ExpectsSoon() && roles_.HasNotes()) << "also for a role that stands by";
}

}  // namespace
}  // namespace aisp
