// The prefill role against a decode worker played by the test, message by message.
#include "prefill/prefill_role.h"

#include <gtest/gtest.h>

#include <deque>

#include "tests/worker/role_rig.h"
#include "worker/fingerprint.h"

namespace aisp {
namespace {

// A decode worker that says what the test wants it to say.
class ReaderStandIn final : public LinkHandler<v1::PrefillToDecode> {
 public:
  std::vector<v1::PrefillToDecode> heard;
  bool up = false;
  bool down = false;
  void OnLinkUp(LinkId, const std::string&) override { up = true; }
  void OnMessage(LinkId, v1::PrefillToDecode message) override {
    heard.push_back(std::move(message));
  }
  void OnLinkDown(LinkId, const Error&) override { down = true; }

  int Count(v1::PrefillToDecode::BodyCase what) const {
    int n = 0;
    for (const auto& message : heard) n += message.body_case() == what;
    return n;
  }
  std::vector<uint64_t> Needs() const {
    std::vector<uint64_t> ids;
    for (const auto& message : heard) {
      if (message.has_need()) ids.push_back(message.need().transfer_id());
    }
    return ids;
  }
};

class PrefillRoleTest : public ::testing::Test {
 protected:
  explicit PrefillRoleTest(RigOptions options = {}) : rig_(options) {
    ProvenanceOptions model;
    executor_ = std::make_unique<ProvenanceExecutor>(model);
    pool_ = std::make_unique<ManualTransport>(&fabric(), "reader", false);
    EXPECT_TRUE(pool_->Register(
        {.base = executor_->pool_base(), .bytes = executor_->pool_bytes(), .handle = -1}));
    dialer_ = std::make_unique<KvLinksInMemory::Dialer>(&rig_.kv_links, &reader_, &inbox_);
    rig_.Attach();
    link_ = dialer_->Dial("p0");
  }

  ManualFabric& fabric() { return rig_.fabric(); }
  RigPrefill& p() { return *rig_.prefills[0]; }
  void Run(int ms = 3) {
    const Instant end = rig_.clock.Now() + std::chrono::milliseconds(ms);
    while (rig_.clock.Now() < end) {
      rig_.Turn();
      while (inbox_.DeliverOne()) {
      }
      rig_.clock.Advance(rig_.tick);
    }
  }
  // `arithmetic` empty: the prefill worker's own.
  void Hello(uint64_t incarnation = 1, const std::string& arithmetic = "") {
    v1::DecodeToPrefill message;
    v1::KvHello* hello = message.mutable_hello();
    hello->set_worker_id("reader");
    hello->set_incarnation(incarnation);
    *hello->mutable_fingerprint() = rig_.router->registers.at("p0").fingerprint();
    hello->mutable_fingerprint()->mutable_kv_layout()->set_num_blocks(64);
    if (!arithmetic.empty()) hello->mutable_fingerprint()->set_arithmetic(arithmetic);
    hello->set_host_id("host");
    v1::TransportOffer* offer = hello->add_offers();
    offer->set_name("manual");
    offer->set_endpoint("reader");
    Send(std::move(message));
  }
  void Send(v1::DecodeToPrefill message) { dialer_->Send(link_, std::move(message)); }
  void Ask(uint64_t transfer, const std::vector<TokenId>& prompt) {
    v1::DecodeToPrefill message;
    message.mutable_prefill()->set_transfer_id(transfer);
    *message.mutable_prefill()->mutable_tokens() = {prompt.begin(), prompt.end()};
    Send(std::move(message));
  }
  // Blocks 10, 11, ... from token 0 on.
  void Grant(uint64_t transfer, uint64_t epoch, int blocks, int first_token = 0,
             int64_t lease_ms = 1000) {
    v1::DecodeToPrefill message;
    v1::Grant* grant = message.mutable_grant();
    grant->set_transfer_id(transfer);
    grant->set_epoch(epoch);
    grant->set_first_token(static_cast<uint32_t>(first_token));
    for (int i = 0; i < blocks; ++i) grant->add_blocks(10 + i);
    grant->set_lease_ms(lease_ms);
    Send(std::move(message));
  }
  void Refuse(uint64_t transfer, int64_t retry_ms) {
    v1::DecodeToPrefill message;
    message.mutable_refused()->set_transfer_id(transfer);
    message.mutable_refused()->set_retry_after_ms(retry_ms);
    Send(std::move(message));
  }
  void Revoke(uint64_t epoch) {
    v1::DecodeToPrefill message;
    message.mutable_revoke()->set_epoch(epoch);
    Send(std::move(message));
  }
  const v1::PrefillToDecode& Last() const { return reader_.heard.back(); }

  RoleRig rig_;
  Inbox inbox_;
  ReaderStandIn reader_;
  std::unique_ptr<ProvenanceExecutor> executor_;
  std::unique_ptr<ManualTransport> pool_;
  std::unique_ptr<KvLinksInMemory::Dialer> dialer_;
  LinkId link_;
};

std::vector<BlockId> GrantedBlocks(int n) {
  std::vector<BlockId> blocks;
  for (int i = 0; i < n; ++i) blocks.push_back(BlockId(10 + i));
  return blocks;
}

TEST_F(PrefillRoleTest, ADecodeWorkerThatComputesInAnotherFormatIsRefusedWithBothValues) {
  Hello(1, "cuda bf16; weights bf16");
  Run();
  ASSERT_TRUE(Last().has_refused());
  const std::string& reason = Last().refused().reason();
  EXPECT_NE(reason.find("weights nvfp4"), std::string::npos) << reason;
  EXPECT_NE(reason.find("weights bf16"), std::string::npos) << reason;
}

TEST_F(PrefillRoleTest, DeliversThePromptsKvAndSaysHowMuchItWas) {
  Hello();
  const auto prompt = MakePrompt(71, 1);
  Ask(5, prompt);
  Run();
  ASSERT_EQ(reader_.Needs(), std::vector<uint64_t>{5});
  Grant(5, 77, 5);
  Run();
  ASSERT_TRUE(Last().has_done());
  const v1::PrefillDone& done = Last().done();
  EXPECT_EQ(done.transfer_id(), 5u);
  EXPECT_EQ(done.epoch(), 77u);
  EXPECT_EQ(done.token_layers(), 70u * 2);
  EXPECT_EQ(done.blocks(), 5u);
  EXPECT_EQ(done.prefill_cached_tokens(), 0u);
  EXPECT_TRUE(executor_->Holds(prompt, GrantedBlocks(5), 0, 70));
  EXPECT_EQ(p().engine->blocks().Stats().pinned, 0);
}

TEST_F(PrefillRoleTest, ADrawIsHeededAndBringsTheLastTokensKvToo) {
  Hello();
  const auto prompt = MakePrompt(64, 1);
  for (uint64_t transfer = 1; transfer <= 2; ++transfer) {
    v1::DecodeToPrefill message;
    message.mutable_prefill()->set_transfer_id(transfer);
    *message.mutable_prefill()->mutable_tokens() = {prompt.begin(), prompt.end()};
    v1::FirstDraw* draw = message.mutable_prefill()->mutable_draw();
    draw->mutable_sampling()->set_temperature(1);
    draw->mutable_sampling()->set_seed(9);
    draw->mutable_sampling()->set_num_logprobs(-1);
    draw->set_prompt_tokens(64);
    Send(std::move(message));
    Run();
    Grant(transfer, transfer, 4);
    Run();
    ASSERT_TRUE(Last().has_done());
    EXPECT_EQ(Last().done().token_layers(), 64u * 2);
    EXPECT_EQ(Last().done().blocks(), 4u);
    EXPECT_EQ(Last().done().drawn().token(),
              ExpectedTokens(rig_.options.model, prompt, 1, 9).at(0));
    EXPECT_TRUE(executor_->Holds(prompt, GrantedBlocks(4), 0, 64));
  }
  EXPECT_EQ(p().executor->rows_computed(), 64u + 16) << "of a cached prompt its last block alone";
  EXPECT_EQ(p().engine->blocks().Stats().pinned, 0);
}

TEST_F(PrefillRoleTest, ADrawNeedsABlockForTheLastTokenToo) {
  Hello();
  v1::DecodeToPrefill message;
  message.mutable_prefill()->set_transfer_id(1);
  const auto prompt = MakePrompt(65, 1);
  *message.mutable_prefill()->mutable_tokens() = {prompt.begin(), prompt.end()};
  message.mutable_prefill()->mutable_draw()->set_prompt_tokens(65);
  Send(std::move(message));
  Run();
  Grant(1, 1, 4);
  Run();
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kFailed), 1);
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kFence), 1);
}

TEST_F(PrefillRoleTest, ACachedPrefixIsPushedWithoutComputingIt) {
  Hello();
  const auto prompt = MakePrompt(71, 1);
  Ask(1, prompt);
  Run();
  Grant(1, 1, 5);
  Run();
  const uint64_t rows = p().executor->rows_computed();
  Ask(2, prompt);
  Run();
  Grant(2, 2, 5);
  Run();
  ASSERT_TRUE(Last().has_done());
  EXPECT_EQ(Last().done().prefill_cached_tokens(), 64u);
  EXPECT_EQ(Last().done().token_layers(), 70u * 2);
  EXPECT_EQ(p().executor->rows_computed(), rows + 6);
  // And wholly cached, with nothing to compute at all.
  const std::vector<TokenId> head(prompt.begin(), prompt.begin() + 65);
  Ask(3, head);
  Run();
  Grant(3, 3, 4);
  Run();
  ASSERT_TRUE(Last().has_done());
  EXPECT_EQ(Last().done().token_layers(), 64u * 2);
  EXPECT_EQ(p().executor->rows_computed(), rows + 6);
}

TEST_F(PrefillRoleTest, OnlyWhatTheReaderLacksIsPushed) {
  Hello();
  const auto prompt = MakePrompt(71, 1);
  Ask(1, prompt);
  Run();
  Grant(1, 1, 3, /*first_token=*/32);
  Run();
  ASSERT_TRUE(Last().has_done());
  EXPECT_EQ(Last().done().token_layers(), 38u * 2);
  EXPECT_EQ(Last().done().blocks(), 3u);
  EXPECT_EQ(p().transport->landed().size(), p().transport->writes_started());
}

TEST_F(PrefillRoleTest, AReaderWithTheWholePromptIsAnsweredAtOnce) {
  Hello();
  Ask(1, MakePrompt(65, 1));
  Run();
  Grant(1, 1, 0, /*first_token=*/64);
  Run();
  ASSERT_TRUE(Last().has_done());
  EXPECT_EQ(Last().done().token_layers(), 0u);
  EXPECT_EQ(p().executor->rows_computed(), 0u);
  EXPECT_EQ(p().prefill->num_transfers(), 0u);
}

TEST_F(PrefillRoleTest, AnUnknownEpochIsAcknowledgedAtOnce) {
  Hello();
  Revoke(123);
  Grant(99, 124, 2);  // of a transfer that is over
  Run();
  ASSERT_EQ(reader_.Count(v1::PrefillToDecode::kFence), 2);
  EXPECT_EQ(reader_.heard[1].fence().epoch(), 123u);
  EXPECT_EQ(reader_.heard[2].fence().epoch(), 124u);
}

TEST_F(PrefillRoleTest, ARevokeIsAcknowledgedOnlyAfterTheLastWriteThatHadStarted) {
  Hello();
  p().transport->hold = true;
  Ask(1, MakePrompt(71, 1));
  Run();
  Grant(1, 8, 5);
  Run();
  ASSERT_GT(p().transport->queued(), 0u);
  const size_t started = p().transport->writes_started();
  Revoke(8);
  Revoke(8);
  Run();
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kFence), 0);
  p().transport->Land(1);
  Run();
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kFence), 0);
  EXPECT_GT(p().engine->blocks().Stats().pinned, 0)
      << "the sources of writes under way stay pinned";
  p().transport->Land();
  Run();
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kFence), 1);
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kDone), 0);
  EXPECT_EQ(p().transport->writes_started(), started);
  EXPECT_EQ(p().engine->blocks().Stats().pinned, 0);
}

TEST_F(PrefillRoleTest, AnEndedLeaseIsSaidAndAcknowledged) {
  Hello();
  p().transport->hold = true;
  Ask(1, MakePrompt(71, 1));
  Run();
  Grant(1, 8, 5, 0, /*lease_ms=*/20);
  Run(30);
  ASSERT_EQ(reader_.Count(v1::PrefillToDecode::kFailed), 1);
  EXPECT_TRUE(Last().failed().error().retryable());
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kFence), 0);
  p().transport->Land();
  Run();
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kFence), 1);
}

TEST_F(PrefillRoleTest, ARefusedTransferIsAskedAgainAfterTheHintAndOthersOvertakeIt) {
  Hello();
  Ask(1, MakePrompt(600, 1));
  Ask(2, MakePrompt(600, 2));
  Ask(3, MakePrompt(600, 3));
  Run();
  EXPECT_EQ(reader_.Needs(), (std::vector<uint64_t>{1, 2}));
  Refuse(1, 50);
  Run();
  EXPECT_EQ(reader_.Needs(), (std::vector<uint64_t>{1, 2, 3}));
  Run(40);
  EXPECT_EQ(reader_.Needs().size(), 3u);
  Run(20);
  EXPECT_EQ(reader_.Needs(), (std::vector<uint64_t>{1, 2, 3, 1}));
}

TEST_F(PrefillRoleTest, OvertakingIsBounded) {
  Hello();
  Ask(1, MakePrompt(100, 1));
  Run();
  Refuse(1, 1000);
  Run();
  for (uint64_t id = 2; id <= 20; ++id) {
    Ask(id, MakePrompt(20, id));
    Run();
    if (reader_.Needs().back() == id) Grant(id, id, 2);
    Run();
  }
  // The option's eight have passed; then the first one's turn is awaited.
  EXPECT_EQ(reader_.Needs().size(), 1u + 8u);
  Run(1000);
  EXPECT_EQ(reader_.Needs().back(), 1u);
  Grant(1, 50, 7);
  Run();
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kDone), 9);
  EXPECT_GT(reader_.Needs().size(), 10u) << "the others go on";
}

TEST_F(PrefillRoleTest, AGrantThatDoesNotFitIsRefusedAndItsEpochAcknowledged) {
  Hello();
  Ask(1, MakePrompt(71, 1));
  Run();
  Grant(1, 9, 4);  // five are needed
  Run();
  ASSERT_EQ(reader_.Count(v1::PrefillToDecode::kFailed), 1);
  EXPECT_EQ(Last().fence().epoch(), 9u);
  Ask(2, MakePrompt(71, 2));
  Run();
  Grant(2, 10, 5, /*first_token=*/7);
  Run();
  EXPECT_EQ(Last().fence().epoch(), 10u);
  v1::DecodeToPrefill outside;
  Ask(3, MakePrompt(20, 3));
  Run();
  outside.mutable_grant()->set_transfer_id(3);
  outside.mutable_grant()->set_epoch(11);
  outside.mutable_grant()->add_blocks(10);
  outside.mutable_grant()->add_blocks(64);
  outside.mutable_grant()->set_lease_ms(1000);
  Send(outside);
  Run();
  EXPECT_EQ(Last().fence().epoch(), 11u);
  EXPECT_EQ(p().transport->writes_started(), 0u);
  EXPECT_EQ(p().prefill->num_transfers(), 0u);
}

TEST_F(PrefillRoleTest, AReaderWhoseTimeIsOverIsTold) {
  Hello();
  v1::DecodeToPrefill message;
  message.mutable_prefill()->set_transfer_id(1);
  const auto prompt = MakePrompt(50, 1);
  *message.mutable_prefill()->mutable_tokens() = {prompt.begin(), prompt.end()};
  message.mutable_prefill()->set_timeout_ms(20);
  Send(message);
  Run(40);
  ASSERT_TRUE(Last().has_failed());
  EXPECT_EQ(Last().failed().error().code(), static_cast<int>(Code::kDeadlineExceeded));
  EXPECT_EQ(p().prefill->num_transfers(), 0u);
}

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
  // Epoch 8 of the one is not the other's: nothing of it is under way.
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

// What reaching pools would do, held back until the test lets it run.
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
  Hello(1);  // said twice
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
