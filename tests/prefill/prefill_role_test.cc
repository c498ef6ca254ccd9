// The prefill role against a decode worker played by the test: prompts, grants, leases, draws.
#include <cmath>
#include <functional>

#include "tests/prefill/prefill_role_rig.h"

namespace aisp {
namespace {

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

TEST_F(PrefillRoleTest, TimesThatNoClockCanHoldAreLongOnes) {
  Hello();
  const auto prompt = MakePrompt(71, 1);
  v1::DecodeToPrefill message;
  message.mutable_prefill()->set_transfer_id(5);
  message.mutable_prefill()->set_timeout_ms(INT64_MAX);
  *message.mutable_prefill()->mutable_tokens() = {prompt.begin(), prompt.end()};
  Send(std::move(message));
  Run();
  Refuse(5, INT64_MIN);  // asked again soon, not in the past or never
  Run();
  ASSERT_EQ(reader_.Needs().size(), 2u);
  Grant(5, 77, 5, 0, /*lease_ms=*/INT64_MAX);
  Run();
  ASSERT_TRUE(Last().has_done());
  EXPECT_TRUE(executor_->Holds(prompt, GrantedBlocks(5), 0, 70));
}

TEST_F(PrefillRoleTest, ADrawThatCannotBeIsItsRequestsErrorAlone) {
  Hello();
  const std::function<void(v1::FirstDraw&)> lies[] = {
      [](v1::FirstDraw& draw) { draw.mutable_sampling()->set_temperature(NAN); },
      [](v1::FirstDraw& draw) { draw.mutable_sampling()->set_top_p(NAN); },
      [](v1::FirstDraw& draw) { draw.mutable_sampling()->set_min_p(2); },
      [](v1::FirstDraw& draw) { draw.mutable_sampling()->set_repetition_penalty(-INFINITY); },
      [](v1::FirstDraw& draw) { (*draw.mutable_sampling()->mutable_logit_bias())[7] = INFINITY; },
      [](v1::FirstDraw& draw) { draw.mutable_sampling()->set_num_logprobs(INT32_MAX); },
      [](v1::FirstDraw& draw) { draw.set_prompt_tokens(0); },
      [](v1::FirstDraw& draw) { draw.set_prompt_tokens(72); },
      [](v1::FirstDraw& draw) { draw.set_prompt_tokens(UINT32_MAX); },
      [](v1::FirstDraw& draw) { draw.mutable_stop_token_ids()->Resize(1001, -1); },
  };
  const auto prompt = MakePrompt(71, 1);
  uint64_t transfer = 0;
  for (const auto& lie : lies) {
    v1::DecodeToPrefill message;
    message.mutable_prefill()->set_transfer_id(++transfer);
    *message.mutable_prefill()->mutable_tokens() = {prompt.begin(), prompt.end()};
    message.mutable_prefill()->mutable_draw()->set_prompt_tokens(71);
    lie(*message.mutable_prefill()->mutable_draw());
    Send(std::move(message));
    Run();
    ASSERT_TRUE(Last().has_failed()) << transfer;
    EXPECT_EQ(Last().failed().transfer_id(), transfer);
    EXPECT_EQ(Last().failed().error().code(), static_cast<int>(Code::kInvalidArgument));
    EXPECT_FALSE(Last().failed().error().retryable());
  }
  // Invalid ids and stops that no count reaches do not change a draw.
  v1::DecodeToPrefill message;
  message.mutable_prefill()->set_transfer_id(++transfer);
  *message.mutable_prefill()->mutable_tokens() = {prompt.begin(), prompt.end()};
  v1::FirstDraw* draw = message.mutable_prefill()->mutable_draw();
  draw->set_prompt_tokens(71);
  draw->set_min_new_tokens(UINT32_MAX);
  for (const int32_t id : {INT32_MIN, -1, 1000, INT32_MAX}) draw->add_stop_token_ids(id);
  Send(std::move(message));
  Run();
  Grant(transfer, 78, 5);
  Run();
  ASSERT_TRUE(Last().has_done());
  EXPECT_TRUE(Last().done().has_drawn());
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
  EXPECT_EQ(p().executor->rows_computed(), 64u + 1) << "of a cached prompt its last token alone";
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
  // A prompt that is wholly cached, with nothing to compute.
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
  Grant(99, 124, 2);  // of a transfer that has ended
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

// The acknowledgement of a grant says that nothing of it is in flight.
TEST_F(PrefillRoleTest, AGrantThatIsSaidAgainIsNotAcknowledgedWhileItIsWritten) {
  Hello();
  p().transport->hold = true;
  Ask(1, MakePrompt(71, 1));
  Run();
  Grant(1, 8, 5);
  Run();
  ASSERT_GT(p().transport->queued(), 0u);
  Grant(1, 8, 5);
  Run();
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kFence), 0);
  Revoke(8);
  Run();
  Grant(1, 8, 5);
  Run();
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kFence), 0);
  p().transport->Land();
  Run();
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kFence), 1);
}

TEST_F(PrefillRoleTest, AGrantThatComesBehindItsRevokeIsNotWritten) {
  Hello();
  Ask(1, MakePrompt(71, 1));
  Run();
  Revoke(8);
  Run();
  ASSERT_EQ(reader_.Count(v1::PrefillToDecode::kFence), 1);
  Grant(1, 8, 5);
  Run();
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kFence), 2);
  EXPECT_EQ(p().transport->writes_started(), 0u);
  Grant(1, 9, 5);
  Run();
  EXPECT_EQ(reader_.Count(v1::PrefillToDecode::kDone), 1);
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
  // The option's eight prompts have passed; then the first decode worker's turn is awaited.
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

}  // namespace
}  // namespace aisp
