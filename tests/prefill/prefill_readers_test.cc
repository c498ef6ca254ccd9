// Decode workers connect to a prefill role, leave, return, and cannot be reached.
#include "tests/prefill/prefill_role_rig.h"

namespace aisp {
namespace {

TEST_F(PrefillRoleTest, AReaderThatDoesNotGreetIsDropped) {
  Ask(1, MakePrompt(50, 1));
  Run();
  EXPECT_TRUE(reader_.heard.empty());
  rig_.tick = std::chrono::milliseconds(20);
  Run(6000);
  EXPECT_TRUE(reader_.down);
}

TEST_F(PrefillRoleTest, AReaderThatComesBackReplacesItsOldLink) {
  Hello(1);
  p().transport->hold = true;
  Ask(1, MakePrompt(71, 1));
  Run();
  Grant(1, 8, 5);
  Run();
  const LinkId old = link_;
  link_ = dialer_->Dial("p0");
  Hello(1);
  Run();
  EXPECT_TRUE(reader_.down) << "the old link is closed";
  EXPECT_NE(link_, old);
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kHello), 2);
  Revoke(8);
  Run();
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kFence), 0) << "a write of it is under way";
  p().transport->hold = false;
  Run();
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kFence), 1);
  EXPECT_EQ(p().prefill->num_transfers(), 0u);
  EXPECT_EQ(p().engine->blocks().Stats().pinned, 0);
}

TEST_F(PrefillRoleTest, AnotherProcessUnderAReadersNameDoesNotEndItsLink) {
  Hello(1);
  p().transport->hold = true;
  Ask(1, MakePrompt(71, 1));
  Run();
  Grant(1, 8, 5);
  Run();
  const LinkId first = link_;
  link_ = dialer_->Dial("p0");
  Hello(2);
  Run();
  EXPECT_FALSE(reader_.down);
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kHello), 2);
  // Epoch 8 of one decode worker is not the other's: nothing of it is in flight.
  Revoke(8);
  Run();
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kFence), 1);
  p().transport->hold = false;
  Run();
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kDone), 1) << "the first one's transfer goes on";
  dialer_->Close(first);
  Run();
  EXPECT_EQ(p().prefill->num_transfers(), 0u);
}

// Jobs that connect to pools, held back until the test runs them.
struct HeldConnects {
  std::deque<std::pair<std::function<void()>, std::function<void()>>> held;
  bool hold = false;

  RankedConnector::Runner Runner() {
    return [this](std::function<void()> work, std::function<void()> then) {
      if (!hold) return RankedConnector::RunHere(work, then);
      held.emplace_back(std::move(work), std::move(then));
      return true;
    };
  }
  void RunNext() {
    const auto [work, then] = std::move(held.front());
    held.pop_front();
    work();
    then();
  }
};

class SlowPools : public PrefillRoleTest {
 protected:
  SlowPools() : SlowPools(std::make_shared<HeldConnects>()) {}
  explicit SlowPools(std::shared_ptr<HeldConnects> connects)
      : PrefillRoleTest([&] {
          RigOptions options;
          options.run_connects = connects->Runner();
          return options;
        }()),
        connects_(std::move(connects)) {}
  std::shared_ptr<HeldConnects> connects_;
};

TEST_F(SlowPools, AReaderWhosePoolIsNotReachedHoldsUpNobodyElse) {
  connects_->hold = true;
  Hello(1);
  Run();
  ASSERT_EQ(connects_->held.size(), 1u);
  EXPECT_TRUE(reader_.heard.empty());
  Hello(1);  // sent twice
  Run();
  EXPECT_EQ(connects_->held.size(), 1u);

  connects_->hold = false;
  rig_.router->Generate("d", rig_.MakeRequest(1, MakePrompt(100, 1), 4));
  rig_.ExpectAnswer(1, MakePrompt(100, 1), 4);
  EXPECT_EQ(rig_.router->answers[1].timings.at(0).prefill_worker(), "p0");

  connects_->RunNext();
  Run();
  ASSERT_EQ(reader_.Count(v1::PrefillToDecode::kHello), 1);
  Ask(1, MakePrompt(71, 1));
  Run();
  EXPECT_EQ(reader_.Needs().size(), 1u);
}

TEST_F(SlowPools, AReaderThatLeftIsNotGreetedWhenItsPoolIsReachedAtLast) {
  connects_->hold = true;
  Hello(1);
  Run();
  dialer_->Close(link_);
  Run();
  ASSERT_EQ(connects_->held.size(), 1u);
  connects_->RunNext();
  Run();
  EXPECT_TRUE(reader_.heard.empty());
}

TEST_F(SlowPools, AnUnreachablePoolIsRefusedWhenThatIsKnown) {
  connects_->hold = true;
  Hello(1);
  Run();
  fabric().erase("reader");
  connects_->RunNext();
  Run();
  EXPECT_TRUE(Last().has_refused());
}

TEST_F(PrefillRoleTest, ItsQueueIsBounded) {
  Hello();
  for (uint64_t id = 1; id <= 513; ++id) Ask(id, MakePrompt(20, id));
  Run();
  ASSERT_EQ(reader_.Count(v1::PrefillToDecode::kFailed), 1);
  for (const auto& message : reader_.heard) {
    if (!message.has_failed()) continue;
    EXPECT_EQ(message.failed().transfer_id(), 513u);
    EXPECT_TRUE(message.failed().error().retryable());
    EXPECT_EQ(message.failed().error().code(), static_cast<int>(Code::kResourceExhausted));
  }
}

}  // namespace
}  // namespace aisp
