// Ends of requests: cancels at every moment, deadlines, lost peers, drains. Each gives at most one
// finish and frees all blocks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/role_rig.h"

namespace aisp {
namespace {

using testing::HasSubstr;
using testing::Not;

// Cancels after every possible number of turns, so in every state of the protocol.
TEST(Lifecycle, ACancelAtAnyMomentGivesEveryBlockBack) {
  RigOptions options;
  options.limits.max_batch_tokens = 32;
  options.limits.max_prefill_chunk = 32;
  options.prefill.takes_grants = false;  // one message more in each direction
  bool finished = false;
  int moments = 0;
  for (int turns = 0; !finished; ++turns) {
    for (const bool hold : {false, true}) {
      RoleRig rig(options);
      rig.tick = std::chrono::microseconds(50);
      rig.Attach();
      rig.prefills[0]->transport->hold = hold;
      rig.router->Generate("d", rig.MakeRequest(1, MakePrompt(120, 1), 4));
      for (int i = 0; i < turns; ++i) {
        rig.Turn();
        rig.clock.Advance(rig.tick);
      }
      while (rig.router_inbox.DeliverOne()) {
      }
      if (!hold) finished = rig.Finished(1);
      const int finishes = rig.router->answers[1].finishes;
      rig.router->Cancel("d", 1);
      rig.RunFor(std::chrono::milliseconds(2));
      rig.prefills[0]->transport->hold = false;
      rig.RunFor(std::chrono::milliseconds(2));
      EXPECT_EQ(rig.router->answers[1].finishes, finishes)
          << "a cancelled request said something, after " << turns;
      rig.ExpectAllBlocksBack();
      ++moments;
    }
    ASSERT_LT(turns, 200);
  }
  EXPECT_GE(moments, 20);
}

TEST(Lifecycle, ADeadlineAtAnyMomentBringsExactlyOneFinish) {
  RigOptions options;
  options.limits.max_batch_tokens = 32;
  options.limits.max_prefill_chunk = 32;
  for (int timeout_ms = 1; timeout_ms < 16; ++timeout_ms) {
    for (const bool hold : {false, true}) {
      RoleRig rig(options);
      rig.Attach();
      rig.prefills[0]->transport->hold = hold;
      v1::GenerateRequest request = rig.MakeRequest(1, MakePrompt(120, 1), 20);
      request.set_timeout_ms(timeout_ms);
      rig.router->Generate("d", request);
      ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(1); }, 200)) << timeout_ms;
      const auto& answer = rig.router->answers[1];
      if (answer.finish == v1::FINISH_ERROR) {
        EXPECT_EQ(answer.error.code(), static_cast<int>(Code::kDeadlineExceeded));
        EXPECT_FALSE(answer.error.retryable());
      } else {
        EXPECT_EQ(answer.finish, v1::FINISH_LENGTH);
      }
      EXPECT_EQ(answer.finishes, 1);
      rig.prefills[0]->transport->hold = false;
      rig.RunFor(std::chrono::milliseconds(10));
      rig.ExpectAllBlocksBack();
    }
  }
}

// The next turn of a conversation may arrive as soon as the end of this one is known.
TEST(Lifecycle, RoutersKnowAnAnswersBlocksWhenItEnds) {
  for (const uint32_t tokens : {1u, 30u}) {
    RigOptions options;
    options.prefill_workers = 0;
    RoleRig rig(options);
    rig.Attach();
    bool ended = false;
    int stored_before = 0, stored_after = 0;
    rig.router_links.on_up = [&](v1::WorkerMessage& message) {
      for (const v1::TokenEvent& event : message.tokens().events())
        ended = ended || event.finish() != v1::FINISH_NONE;
      if (message.has_kv_events()) ++(ended ? stored_after : stored_before);
      return true;
    };
    rig.router->Generate("d", rig.MakeRequest(1, MakePrompt(120, 1), tokens));
    ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(1); }));
    rig.RunFor(std::chrono::milliseconds(2));
    EXPECT_GT(stored_before, 0);
    EXPECT_EQ(stored_after, 0);
  }
}

TEST(Lifecycle, ALostRouterEndsItsRequestsEverywhere) {
  RoleRig rig({});
  rig.Attach();
  rig.prefills[0]->transport->hold = true;
  for (uint64_t id = 1; id <= 3; ++id)
    rig.router->Generate("d", rig.MakeRequest(id, MakePrompt(100, id), 50));
  v1::GenerateRequest local = rig.MakeRequest(4, MakePrompt(30, 4), 500);
  local.clear_prefill();
  rig.router->Generate("d", local);
  rig.RunFor(std::chrono::milliseconds(5));
  EXPECT_EQ(rig.decode->decode->num_requests(), 4u);
  rig.router_links.BreakOf(&rig.decode->inbox);
  rig.prefills[0]->transport->hold = false;
  rig.RunFor(std::chrono::milliseconds(5));
  rig.ExpectAllBlocksBack();
  // It recovers by itself and accepts work again.
  ASSERT_TRUE(rig.RunUntil([&] { return rig.router->links.count("d") == 1; }));
  rig.RunFor(std::chrono::milliseconds(2));
  rig.router->Generate("d", rig.MakeRequest(5, MakePrompt(60, 5), 3));
  rig.ExpectAnswer(5, MakePrompt(60, 5), 3);
}

TEST(Lifecycle, APrefillWorkerThatDiesAtAnyMomentIsReplacedByTheFallback) {
  RigOptions options;
  options.prefill_workers = 2;
  options.limits.max_batch_tokens = 32;
  options.limits.max_prefill_chunk = 32;
  bool finished = false;
  for (int turns = 0; !finished; ++turns) {
    RoleRig rig(options);
    rig.tick = std::chrono::microseconds(50);
    rig.Attach();
    const auto prompt = MakePrompt(120, 1);
    rig.router->Generate("d", rig.MakeRequest(1, prompt, 4));
    for (int i = 0; i < turns; ++i) {
      rig.Turn();
      rig.clock.Advance(rig.tick);
    }
    finished = rig.Finished(1);
    rig.KillPrefill(0, true);
    rig.ExpectAnswer(1, prompt, 4);
    // The prompt is never computed here: either prefill worker could write all of it, and draw.
    EXPECT_EQ(rig.decode->executor->rows_computed(), 3u);
    rig.RunFor(std::chrono::milliseconds(50));
    rig.ExpectAllBlocksBack();
    ASSERT_LT(turns, 200);
  }
}

TEST(Lifecycle, AnUnreachablePrefillWorkerIsPassedOver) {
  RigOptions options;
  options.prefill_workers = 2;
  RoleRig rig(options);
  rig.Attach();
  rig.KillPrefill(0, true);
  rig.RunFor(std::chrono::milliseconds(5));
  rig.router->Generate("d", rig.MakeRequest(1, MakePrompt(100, 1), 4));
  rig.ExpectAnswer(1, MakePrompt(100, 1), 4);
  EXPECT_EQ(rig.prefills[1]->executor->rows_computed(), 100u);
  EXPECT_EQ(rig.router->answers[1].timings[0].kv_transport(), "manual");
}

TEST(Lifecycle, WithoutAnyPrefillWorkerThePromptRunsHere) {
  RoleRig rig({});
  rig.Attach();
  rig.KillPrefill(0, true);
  rig.RunFor(std::chrono::milliseconds(5));
  rig.router->Generate("d", rig.MakeRequest(1, MakePrompt(100, 1), 4));
  rig.ExpectAnswer(1, MakePrompt(100, 1), 4);
  EXPECT_EQ(rig.decode->executor->rows_computed(), 103u);
}

TEST(Lifecycle, APrefillWorkerThatSaysNothingIsGivenUp) {
  RigOptions options;
  options.decode.prefill_silence_limit = std::chrono::milliseconds(30);
  options.prefill.takes_grants = false;  // with one, its lease would be the limit
  RoleRig rig(options);
  rig.Attach();
  rig.router->Generate("d", rig.MakeRequest(1, MakePrompt(100, 1), 2));
  rig.ExpectAnswer(1, MakePrompt(100, 1), 2);  // the session is up
  rig.prefills[0]->paused = true;
  rig.router->Generate("d", rig.MakeRequest(2, MakePrompt(100, 2), 2));
  rig.ExpectAnswer(2, MakePrompt(100, 2), 2);
  EXPECT_EQ(rig.router->answers[2].timings[0].kv_transport(), "");
  EXPECT_THAT(rig.router->answers[2].timings[0].fallback(), HasSubstr("it says nothing"));
  rig.prefills[0]->paused = false;
  rig.RunFor(std::chrono::milliseconds(10));
  rig.ExpectAllBlocksBack();
}

TEST(Lifecycle, APrefillWorkerWithALongQueueIsBusyAndNotSilent) {
  RigOptions options;
  options.decode.prefill_silence_limit = std::chrono::milliseconds(5);
  options.limits.max_sequences = 1;
  RoleRig rig(options);
  rig.Attach();
  constexpr uint64_t kRequests = 40;
  for (uint64_t id = 1; id <= kRequests; ++id)
    rig.router->Generate("d", rig.MakeRequest(id, MakePrompt(100, id), 2));
  int busy = 0;
  for (uint64_t id = 1; id <= kRequests; ++id) {
    rig.ExpectAnswer(id, MakePrompt(100, id), 2);
    const std::string& why = rig.router->answers[id].timings[0].fallback();
    EXPECT_THAT(why, Not(HasSubstr("it says nothing"))) << id;
    if (why.find("it has others before this one") != std::string::npos) ++busy;
  }
  EXPECT_GT(busy, 0);
  rig.ExpectAllBlocksBack();
}

TEST(Lifecycle, AFailedPrefillDeviceTurnsTheWorkerUnreadyAndTheRequestGoesOn) {
  RoleRig rig({});
  rig.Attach();
  rig.prefills[0]->executor->fail_next_launch = Error{Code::kInternal, "device lost"};
  rig.router->Generate("d", rig.MakeRequest(1, MakePrompt(100, 1), 4));
  rig.ExpectAnswer(1, MakePrompt(100, 1), 4);
  EXPECT_FALSE(rig.prefills[0]->prefill->Ready());
  rig.RunFor(std::chrono::milliseconds(60));
  EXPECT_FALSE(rig.router->telemetry["p0"].ready());
  rig.ExpectAllBlocksBack();
}

TEST(Lifecycle, AFailedDecodeDeviceEndsEveryRequestAsRetryable) {
  RoleRig rig({});
  rig.Attach();
  rig.prefills[0]->transport->hold = true;
  rig.router->Generate("d", rig.MakeRequest(1, MakePrompt(100, 1), 4));
  rig.RunFor(std::chrono::milliseconds(2));
  v1::GenerateRequest local = rig.MakeRequest(2, MakePrompt(100, 2), 4);
  local.clear_prefill();
  rig.decode->executor->fail_next_launch = Error{Code::kInternal, "device lost"};
  rig.router->Generate("d", local);
  ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(1) && rig.Finished(2); }));
  for (const uint64_t id : {1, 2}) {
    EXPECT_EQ(rig.router->answers[id].finish, v1::FINISH_ERROR);
    EXPECT_TRUE(rig.router->answers[id].error.retryable());
  }
  rig.router->Generate("d", rig.MakeRequest(3, MakePrompt(10, 3), 4));
  ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(3); }));
  EXPECT_EQ(rig.router->answers[3].finish, v1::FINISH_ERROR);
  EXPECT_FALSE(rig.decode->decode->Ready());
  rig.prefills[0]->transport->hold = false;
  rig.RunFor(std::chrono::milliseconds(10));
  rig.ExpectAllBlocksBack();
}

TEST(Lifecycle, ADrainingDecodeWorkerFinishesWhatItHas) {
  RoleRig rig({});
  rig.Attach();
  rig.router->Generate("d", rig.MakeRequest(1, MakePrompt(100, 1), 30));
  rig.RunFor(std::chrono::milliseconds(3));
  v1::RouterMessage drain;
  drain.mutable_drain();
  rig.router->Send("d", drain);
  rig.RunFor(std::chrono::milliseconds(1));
  EXPECT_FALSE(rig.decode->decode->Drained());
  ASSERT_EQ(rig.router->drainings.size(), 1u);
  EXPECT_EQ(rig.router->drainings[0].not_started_size(), 0);
  rig.router->Generate("d", rig.MakeRequest(2, MakePrompt(10, 2), 3));
  ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(2); }));
  EXPECT_TRUE(rig.router->answers[2].error.retryable());
  EXPECT_TRUE(rig.router->answers[2].events[0].handed_back());
  rig.ExpectAnswer(1, MakePrompt(100, 1), 30);
  ASSERT_TRUE(rig.RunUntil([&] { return rig.router->telemetry["d"].drained(); }));
  EXPECT_TRUE(rig.decode->decode->Drained());
  EXPECT_FALSE(rig.decode->decode->StopWanted());
}

TEST(Lifecycle, ADrainingDecodeWorkerNamesWhatWaitsAndKeepsItUntilItIsTaken) {
  RigOptions options;
  options.limits.max_sequences = 1;
  options.decode.worker.drain_timeout = std::chrono::milliseconds(20);
  RoleRig rig(options);
  rig.Attach();
  for (uint64_t id = 1; id <= 3; ++id) {
    v1::GenerateRequest request = rig.MakeRequest(id, MakePrompt(30, id), 400);
    request.clear_prefill();
    rig.router->Generate("d", request);
  }
  ASSERT_TRUE(rig.RunUntil([&] { return !rig.router->answers[1].tokens.empty(); }));
  v1::RouterMessage drain;
  drain.mutable_drain()->set_stop(true);
  rig.router->Send("d", drain);
  rig.RunFor(std::chrono::milliseconds(2));
  ASSERT_EQ(rig.router->drainings.size(), 1u);
  EXPECT_FALSE(rig.router->drainings[0].move());
  ASSERT_EQ(rig.router->drainings[0].not_started_size(), 2);
  EXPECT_EQ(rig.router->drainings[0].not_started(0), 2u);
  EXPECT_EQ(rig.router->drainings[0].not_started(1), 3u);
  rig.router->Cancel("d", 2);  // the router found another worker for this one
  rig.RunFor(std::chrono::milliseconds(30));
  ASSERT_EQ(rig.router->drainings.size(), 2u);
  EXPECT_TRUE(rig.router->drainings[1].move()) << "the drain timeout is over";
  EXPECT_FALSE(rig.decode->decode->StopWanted()) << "what nobody else takes is finished here";
  rig.ExpectAnswer(1, MakePrompt(30, 1), 400);
  rig.ExpectAnswer(3, MakePrompt(30, 3), 400);
  ASSERT_TRUE(rig.RunUntil([&] { return rig.decode->decode->StopWanted(); }));
  rig.ExpectAllBlocksBack();
}

TEST(Lifecycle, ADrainWithMoveAsksForEverythingAtOnce) {
  RoleRig rig({});
  rig.Attach();
  rig.router->Generate("d", rig.MakeRequest(1, MakePrompt(100, 1), 500));
  ASSERT_TRUE(rig.RunUntil([&] { return !rig.router->answers[1].tokens.empty(); }));
  v1::RouterMessage drain;
  drain.mutable_drain()->set_move(true);
  rig.router->Send("d", drain);
  ASSERT_TRUE(rig.RunUntil([&] { return rig.router->drainings.size() == 2; }));
  EXPECT_TRUE(rig.router->drainings[1].move());
  rig.router->Cancel("d", 1);
  ASSERT_TRUE(rig.RunUntil([&] { return rig.decode->decode->Drained(); }));
  rig.ExpectAllBlocksBack();
}

TEST(Lifecycle, ADrainingPrefillWorkerGivesBackWhatItWasGrantedNothingFor) {
  RigOptions options;
  options.prefill_workers = 2;
  options.decode_blocks = 10;  // enough for one of the requests at a time
  RoleRig rig(options);
  rig.Attach();
  rig.prefills[0]->transport->hold = true;
  for (uint64_t id = 1; id <= 3; ++id)
    rig.router->Generate("d", rig.MakeRequest(id, MakePrompt(100, id), 5));
  ASSERT_TRUE(rig.RunUntil([&] { return rig.prefills[0]->transport->queued() > 0; }));
  rig.prefills[0]->prefill->BeginDrain();
  rig.RunFor(std::chrono::milliseconds(5));
  EXPECT_LT(rig.prefills[0]->prefill->num_transfers(), 3u);
  EXPECT_GT(rig.prefills[0]->prefill->num_transfers(), 0u) << "KV in flight";
  rig.prefills[0]->transport->hold = false;
  for (uint64_t id = 1; id <= 3; ++id) rig.ExpectAnswer(id, MakePrompt(100, id), 5);
  EXPECT_GT(rig.prefills[1]->executor->rows_computed(), 0u);
  ASSERT_TRUE(rig.RunUntil([&] { return rig.prefills[0]->prefill->Drained(); }));
  // After the worker's own message, a decode worker does not even ask it.
  const uint64_t computed = rig.prefills[0]->executor->rows_computed();
  rig.router->Generate("d", rig.MakeRequest(9, MakePrompt(80, 9), 5));
  rig.ExpectAnswer(9, MakePrompt(80, 9), 5);
  EXPECT_EQ(rig.prefills[0]->executor->rows_computed(), computed);
  rig.ExpectAllBlocksBack();
}

TEST(Lifecycle, ADrainingPrefillWorkerDeliversWhatItHasTaken) {
  RigOptions options;
  options.prefill_workers = 2;
  RoleRig rig(options);
  rig.Attach();
  rig.prefills[0]->transport->hold = true;
  rig.router->Generate("d", rig.MakeRequest(1, MakePrompt(100, 1), 5));
  ASSERT_TRUE(rig.RunUntil([&] { return rig.prefills[0]->transport->queued() > 0; }));
  rig.prefills[0]->prefill->BeginDrain();
  rig.RunFor(std::chrono::milliseconds(5));
  EXPECT_FALSE(rig.prefills[0]->prefill->Drained()) << "KV in flight";
  rig.router->Generate("d", rig.MakeRequest(2, MakePrompt(90, 2), 5));
  rig.ExpectAnswer(2, MakePrompt(90, 2), 5);
  EXPECT_EQ(rig.prefills[1]->executor->rows_computed(), 90u) << "the fallback took it";
  rig.prefills[0]->transport->hold = false;
  rig.ExpectAnswer(1, MakePrompt(100, 1), 5);
  EXPECT_EQ(rig.router->answers[1].timings[0].kv_transport(), "manual");
  EXPECT_TRUE(rig.prefills[0]->prefill->Drained());
}

TEST(Lifecycle, WorkersOfDifferentModelsRefuseEachOtherNamingBothValues) {
  RigOptions options;
  options.decode.worker.fingerprint.set_protocol_version(1);
  options.decode.worker.fingerprint.set_model_name("other");
  RoleRig rig(options);
  rig.Attach();
  std::string reason;
  rig.kv_links.on_down = [&](v1::PrefillToDecode& m) {
    if (m.has_refused()) reason = m.refused().reason();
    return true;
  };
  rig.router->Generate("d", rig.MakeRequest(1, MakePrompt(100, 1), 4));
  rig.ExpectAnswer(1, MakePrompt(100, 1), 4);
  EXPECT_EQ(rig.decode->executor->rows_computed(), 103u);
  EXPECT_NE(reason.find("provenance"), std::string::npos) << reason;
  EXPECT_NE(reason.find("other"), std::string::npos) << reason;
  rig.RunFor(std::chrono::seconds(6));
  rig.ExpectAllBlocksBack();
}

TEST(Lifecycle, ARequestThatCannotBeServedIsRefusedWithTheNumbers) {
  RoleRig rig({});
  rig.Attach();
  rig.router->Generate("d", rig.MakeRequest(1, MakePrompt(2000, 1), 4));
  ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(1); }));
  EXPECT_EQ(rig.router->answers[1].error.code(), static_cast<int>(Code::kInvalidArgument));
  EXPECT_NE(rig.router->answers[1].error.message().find("64"), std::string::npos);
}

std::vector<std::string> ToldLost(const RouterStandIn::Answer& answer) {
  std::vector<std::string> told;
  for (const v1::TokenEvent& event : answer.events) {
    for (const v1::PrefillTarget& lost : event.lost_prefill())
      told.push_back(lost.worker_id() + "/" + std::to_string(lost.incarnation()));
  }
  return told;
}

TEST(Lifecycle, AfterTwoPrefillWorkersThatEndedTheRouterJudgesBeforeAThirdIsAsked) {
  RigOptions options;
  options.prefill_workers = 3;
  RoleRig rig(options);
  rig.Attach();
  for (const auto& p : rig.prefills) p->transport->hold = true;
  rig.router->Generate("d", rig.MakeRequest(1, MakePrompt(120, 1), 4));
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(rig.RunUntil([&] { return rig.prefills[i]->prefill->num_transfers() > 0; })) << i;
    EXPECT_FALSE(rig.Finished(1));
    rig.KillPrefill(i, /*proof=*/true);
  }
  ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(1); }));
  rig.RunFor(std::chrono::milliseconds(50));
  EXPECT_EQ(rig.prefills[2]->executor->rows_computed(), 0u);
  const RouterStandIn::Answer& answer = rig.router->answers.at(1);
  EXPECT_EQ(answer.finish, v1::FINISH_ERROR);
  EXPECT_TRUE(answer.error.retryable());
  EXPECT_EQ(ToldLost(answer), (std::vector<std::string>{"p0/1", "p0/1", "p1/1"}));
  EXPECT_EQ(answer.events.back().lost_prefill_size(), 2) << "the end says why";
  rig.ExpectAllBlocksBack();
}

// The first prefill worker was too slow, and ends when the second one computes the prompt.
TEST(Lifecycle, APrefillWorkerThatEndsAfterItWasGivenUpIsToldToo) {
  RigOptions options;
  options.prefill_workers = 2;
  options.decode.prefill_silence_limit = std::chrono::milliseconds(40);
  options.prefill.takes_grants = false;  // with one, its lease would be the limit
  RoleRig rig(options);
  rig.Attach();
  rig.router->Generate("d", rig.MakeRequest(9, MakePrompt(120, 9), 4));
  rig.ExpectAnswer(9, MakePrompt(120, 9), 4);
  rig.prefills[0]->paused = true;
  rig.prefills[1]->transport->hold = true;
  rig.router->Generate("d", rig.MakeRequest(1, MakePrompt(120, 1), 4));
  ASSERT_TRUE(rig.RunUntil([&] { return rig.prefills[1]->prefill->num_transfers() > 0; }));
  rig.KillPrefill(0, /*proof=*/true);
  rig.RunFor(std::chrono::milliseconds(5));
  EXPECT_EQ(ToldLost(rig.router->answers[1]), std::vector<std::string>{"p0/1"});
  EXPECT_FALSE(rig.Finished(1));
  rig.prefills[1]->transport->hold = false;
  rig.ExpectAnswer(1, MakePrompt(120, 1), 4);
  rig.KillPrefill(1, /*proof=*/true);
  rig.RunFor(std::chrono::milliseconds(5));
  EXPECT_EQ(ToldLost(rig.router->answers[1]).size(), 1u) << "its token came";
}

}  // namespace
}  // namespace aisp
