// Grants that travel in the request for a prompt's KV, and notes that a hand-off is done: fewer
// messages, the same tokens, and every block is freed.
#include <gtest/gtest.h>

#include "tests/prefill/prefill_role_rig.h"

namespace aisp {
namespace {

using std::chrono::milliseconds;

// What was sent between the decode and the prefill worker.
struct Sent {
  int prefills = 0, granted = 0, grants = 0, needs = 0, dones = 0, fences = 0;
  explicit Sent(RoleRig& rig) {
    rig.kv_links.on_up = [this](v1::DecodeToPrefill& m) {
      prefills += m.has_prefill();
      granted += m.has_prefill() && m.prefill().has_grant();
      grants += m.has_grant();
      return true;
    };
    rig.kv_links.on_down = [this](v1::PrefillToDecode& m) {
      needs += m.has_need();
      dones += m.has_done();
      fences += m.has_fence();
      return true;
    };
  }
};

TEST(EarlyGrant, AnIdlePrefillWorkerNeedNotAskForBlocks) {
  RoleRig rig({});
  Sent sent(rig);
  rig.Attach();
  const auto prompt = MakePrompt(100, 1);
  rig.router->Generate("d", rig.MakeRequest(1, prompt, 8));
  rig.ExpectAnswer(1, prompt, 8);
  EXPECT_EQ(sent.granted, 1);
  EXPECT_EQ(sent.grants + sent.needs, 0);
  rig.RunFor(milliseconds(5));
  rig.ExpectAllBlocksBack();
}

TEST(EarlyGrant, NotForASecondRequestAtTheSameWorker) {
  RoleRig rig({});
  Sent sent(rig);
  rig.Attach();
  for (uint64_t id = 1; id <= 3; ++id)
    rig.router->Generate("d", rig.MakeRequest(id, MakePrompt(100, id), 8));
  for (uint64_t id = 1; id <= 3; ++id) rig.ExpectAnswer(id, MakePrompt(100, id), 8);
  EXPECT_EQ(sent.granted, 1);
  EXPECT_EQ(sent.grants, 2);
  rig.RunFor(milliseconds(5));
  rig.ExpectAllBlocksBack();
}

TEST(EarlyGrant, NotToAnOlderWorker) {
  RigOptions options;
  options.prefill.takes_grants = false;
  RoleRig rig(options);
  Sent sent(rig);
  rig.Attach();
  const auto prompt = MakePrompt(100, 1);
  rig.router->Generate("d", rig.MakeRequest(1, prompt, 8));
  rig.ExpectAnswer(1, prompt, 8);
  rig.decode->engine->blocks().ClearCache();
  const auto longer = MakeLonger(prompt, 20, 7);
  rig.router->Generate("d", rig.MakePull(2, longer, 8));
  rig.ExpectAnswer(2, longer, 8);
  EXPECT_EQ(rig.router->answers.at(2).timings.at(0).pull().result(), v1::PrefixPull::FILLED);
  EXPECT_EQ(sent.granted, 0);
  EXPECT_EQ(sent.grants, 2);
  rig.RunFor(milliseconds(5));
  rig.ExpectAllBlocksBack();
}

TEST(EarlyGrant, APullIsOneMessage) {
  RoleRig rig({});
  rig.Attach();
  const auto prompt = MakePrompt(100, 1);
  rig.router->Generate("d", rig.MakeRequest(1, prompt, 1));
  rig.ExpectAnswer(1, prompt, 1);
  rig.decode->engine->blocks().ClearCache();
  Sent sent(rig);
  const auto longer = MakeLonger(prompt, 20, 7);
  rig.router->Generate("d", rig.MakePull(2, longer, 8));
  rig.ExpectAnswer(2, longer, 8);
  EXPECT_EQ(rig.router->answers.at(2).timings.at(0).pull().result(), v1::PrefixPull::FILLED);
  EXPECT_EQ(sent.prefills, 1);
  EXPECT_EQ(sent.granted, 1);
  EXPECT_EQ(sent.grants, 0);
  rig.RunFor(milliseconds(5));
  rig.ExpectAllBlocksBack();
}

TEST(EarlyGrant, TheStepThatWaitsForAPullGoesBeforeTheNewsOfIt) {
  RoleRig rig({});
  rig.Attach();
  const auto prompt = MakePrompt(100, 1);
  rig.router->Generate("d", rig.MakeRequest(1, prompt, 1));
  rig.ExpectAnswer(1, prompt, 1);
  rig.decode->engine->blocks().ClearCache();
  rig.RunFor(milliseconds(100));  // news of the cleared cache
  const uint64_t before = rig.decode->executor->rows_computed();
  std::vector<uint64_t> computed;  // when routers were told of blocks
  rig.router_links.on_up = [&](v1::WorkerMessage& message) {
    if (message.has_kv_events()) computed.push_back(rig.decode->executor->rows_computed() - before);
    return true;
  };
  const auto longer = MakeLonger(prompt, 20, 7);
  rig.router->Generate("d", rig.MakePull(2, longer, 8));
  rig.ExpectAnswer(2, longer, 8);
  ASSERT_FALSE(computed.empty());
  EXPECT_EQ(computed.front(), 120u - 96u);
  rig.RunFor(milliseconds(5));
  rig.ExpectAllBlocksBack();
}

// The stand-in keeps the prefill worker busy for the decode worker.
class BusyPrefill : public PrefillRoleTest {
 protected:
  BusyPrefill() : PrefillRoleTest(Options()) {}
  static RigOptions Options() {
    RigOptions options;
    options.limits.max_batch_tokens = options.limits.max_prefill_chunk = 32;
    options.prefill.horizon_tokens = 64;
    return options;
  }
  void Cancel(uint64_t transfer) {
    v1::DecodeToPrefill message;
    message.mutable_cancel()->set_transfer_id(transfer);
    Send(std::move(message));
  }
};

TEST_F(BusyPrefill, GivesAGrantBackAndAsksWhenItsTurnComes) {
  Sent sent(rig_);
  Hello();
  Run();
  for (uint64_t id = 1; id <= 4; ++id) Ask(id, MakePrompt(100, id));
  Run();
  const int needs = sent.needs;
  const auto prompt = MakePrompt(90, 50);
  rig_.router->Generate("d", rig_.MakeRequest(9, prompt, 8));
  Run();
  EXPECT_EQ(sent.granted, 1);
  EXPECT_EQ(sent.fences, 1);
  EXPECT_EQ(rig_.decode->decode->num_leases(), 0u) << "no blocks are kept for a waiting request";
  EXPECT_EQ(rig_.decode->engine->blocks().Stats().pinned, 0);
  EXPECT_EQ(sent.needs, needs);
  for (uint64_t id = 1; id <= 4; ++id) Cancel(id);
  rig_.ExpectAnswer(9, prompt, 8);
  EXPECT_EQ(rig_.decode->executor->rows_computed(), 7u) << "computed by the prefill worker";
  EXPECT_GT(sent.needs, needs);
  EXPECT_EQ(sent.grants, 1);
  Run();
  rig_.ExpectAllBlocksBack();
}

TEST_F(BusyPrefill, GivesBackWhatCameWithARefusedRequest) {
  Hello();
  Run();
  p().prefill->BeginDrain();
  Run();
  v1::DecodeToPrefill message;
  message.mutable_prefill()->set_transfer_id(1);
  for (const TokenId token : MakePrompt(40, 1)) message.mutable_prefill()->add_tokens(token);
  v1::Grant* grant = message.mutable_prefill()->mutable_grant();
  grant->set_transfer_id(1);
  grant->set_epoch(1);
  for (int i = 0; i < 3; ++i) grant->add_blocks(10 + i);
  grant->set_lease_ms(1000);
  Send(std::move(message));
  Run();
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kFailed), 1);
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kFence), 1);
  EXPECT_EQ(p().prefill->num_transfers(), 0u);
}

TEST_F(BusyPrefill, AsksAgainAfterAGrantThatIsARepetition) {
  Hello();
  Run();
  const auto ask = [&](uint64_t transfer, uint64_t epoch) {
    v1::DecodeToPrefill message;
    message.mutable_prefill()->set_transfer_id(transfer);
    for (const TokenId token : MakePrompt(20, 1)) message.mutable_prefill()->add_tokens(token);
    v1::Grant* grant = message.mutable_prefill()->mutable_grant();
    grant->set_transfer_id(transfer);
    grant->set_epoch(epoch);
    for (int i = 0; i < 2; ++i) grant->add_blocks(10 + i);
    grant->set_lease_ms(1000);
    Send(std::move(message));
    Run();
  };
  ask(1, 5);
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kDone), 1);
  EXPECT_TRUE(reader_.Needs().empty());
  ask(2, 5);
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kFence), 1);
  EXPECT_EQ(reader_.Needs(), std::vector<uint64_t>{2});
  Grant(2, 6, 2);
  Run();
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kDone), 2);
}

// --- notes ---

class Notes : public ::testing::Test {
 protected:
  Notes() {
    rig_.decode->transport->set_notes(true);
    rig_.prefills[0]->transport->set_notes(true);
    rig_.Attach();
  }
  ManualTransport& owner() { return *rig_.decode->transport; }
  void Run(uint64_t id, const v1::GenerateRequest& request, const std::vector<TokenId>& prompt) {
    rig_.router->Generate("d", request);
    rig_.ExpectAnswer(id, prompt, 8);
  }
  void ExpectAllBack() {
    rig_.kv_links.on_down = nullptr;
    rig_.RunFor(milliseconds(20));
    rig_.ExpectAllBlocksBack();
  }
  // Messages that a hand-off is done do not arrive.
  void LoseDones() {
    rig_.kv_links.on_down = [](v1::PrefillToDecode& m) { return !m.has_done(); };
  }
  RoleRig rig_{RigOptions{}};
  const std::vector<TokenId> prompt_ = MakePrompt(100, 1);
};

TEST_F(Notes, EndAHandOffBeforeItsMessage) {
  LoseDones();
  Run(1, rig_.MakeRequest(1, prompt_, 8), prompt_);
  EXPECT_EQ(owner().notes_left, 1u);
  EXPECT_EQ(rig_.decode->executor->rows_computed(), 7u);
  ExpectAllBack();
}

TEST_F(Notes, AndTheirMessagesAreRepetitions) {
  Run(1, rig_.MakeRequest(1, prompt_, 8), prompt_);
  EXPECT_EQ(owner().notes_left, 1u);
  EXPECT_EQ(rig_.decode->executor->rows_computed(), 7u);
  ExpectAllBack();
}

TEST_F(Notes, MayBeReadLate) {
  owner().hide_notes = true;
  Run(1, rig_.MakeRequest(1, prompt_, 8), prompt_);
  rig_.prefills[0]->transport->hold = true;
  const auto next = MakePrompt(80, 2);
  rig_.router->Generate("d", rig_.MakeRequest(2, next, 8));
  rig_.RunFor(milliseconds(5));
  owner().hide_notes = false;  // of a hand-off that has ended, while another one is in progress
  rig_.RunFor(milliseconds(5));
  EXPECT_TRUE(owner().notes.empty());
  EXPECT_FALSE(rig_.Finished(2));
  rig_.prefills[0]->transport->hold = false;
  rig_.ExpectAnswer(2, next, 8);
  ExpectAllBack();
}

TEST_F(Notes, OfOthersAndGarbageAreIgnored) {
  v1::PrefillToDecode lie;
  lie.mutable_done()->set_transfer_id(1);
  lie.mutable_done()->set_epoch(1);
  lie.mutable_done()->set_token_layers(100 * 2);
  v1::PrefillToDecode failed;
  failed.mutable_failed()->set_transfer_id(1);
  rig_.prefills[0]->transport->hold = true;
  rig_.router->Generate("d", rig_.MakeRequest(1, prompt_, 8));
  rig_.RunFor(milliseconds(3));
  owner().notes.emplace_back("p0 to d", "garbage");
  owner().notes.emplace_back("p0 to d", failed.SerializeAsString());
  owner().notes.emplace_back("p1 to d", lie.SerializeAsString());
  owner().notes.emplace_back("", lie.SerializeAsString());
  rig_.RunFor(milliseconds(3));
  EXPECT_TRUE(owner().notes.empty());
  EXPECT_EQ(rig_.decode->decode->num_leases(), 1u);
  rig_.prefills[0]->transport->hold = false;
  rig_.ExpectAnswer(1, prompt_, 8);
  EXPECT_EQ(rig_.decode->executor->rows_computed(), 7u);
  ExpectAllBack();
}

TEST_F(Notes, OfAProcessThatIsGoneAreIgnored) {
  owner().hide_notes = true;
  rig_.kv_links.on_down = [](v1::PrefillToDecode& m) { return !m.has_done(); };
  rig_.router->Generate("d", rig_.MakeRequest(1, prompt_, 8));
  ASSERT_TRUE(rig_.RunUntil([&] { return owner().notes_left == 1; }));
  rig_.KillPrefill(0, /*proof=*/true);
  owner().hide_notes = false;
  rig_.ExpectAnswer(1, prompt_, 8);
  EXPECT_EQ(rig_.decode->executor->rows_computed(), 107u) << "the decode worker computed it";
  ExpectAllBack();
}

TEST_F(Notes, EndAPull) {
  Run(1, rig_.MakeRequest(1, prompt_, 8), prompt_);
  rig_.decode->engine->blocks().ClearCache();
  LoseDones();
  const auto longer = MakeLonger(prompt_, 20, 7);
  v1::GenerateRequest request = rig_.MakePull(2, longer, 8);
  request.mutable_pull()->set_tokens(96);
  Run(2, request, longer);
  EXPECT_EQ(rig_.router->answers.at(2).timings.at(0).pull().result(), v1::PrefixPull::FILLED);
  EXPECT_EQ(owner().notes_left, 2u);
  ExpectAllBack();
}

TEST_F(Notes, AreNotLeftOfAPartOfWhatWasGranted) {
  const std::vector<TokenId> begin(prompt_.begin(), prompt_.begin() + 49);
  Run(1, rig_.MakeRequest(1, begin, 8), begin);
  rig_.decode->engine->blocks().ClearCache();
  v1::GenerateRequest request = rig_.MakePull(2, prompt_, 8);
  request.mutable_pull()->set_tokens(96);
  Run(2, request, prompt_);
  const v1::PrefixPull pull = rig_.router->answers.at(2).timings.at(0).pull();
  EXPECT_EQ(pull.result(), v1::PrefixPull::FILLED);
  EXPECT_EQ(pull.tokens(), 48u);
  EXPECT_EQ(owner().notes_left, 1u) << "only the hand-off's";
  ExpectAllBack();
}

}  // namespace
}  // namespace aisp
