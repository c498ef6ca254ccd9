// Granted blocks are freed when the writer confirms or is proven dead, and never after a timeout.
#include <gtest/gtest.h>

#include "tests/worker/role_rig.h"

namespace aisp {
namespace {

RigOptions ShortLeases() {
  RigOptions options;
  options.decode.lease_base = std::chrono::milliseconds(50);
  options.decode.lease_per_1k_tokens = {};
  options.decode.fence_grace = std::chrono::milliseconds(100);
  return options;
}

int32_t Quarantined(const RoleRig& rig) { return rig.decode->engine->blocks().Stats().quarantined; }

// Runs until the prefill worker has started to write and its writes are blocked.
void HangWrites(RoleRig& rig, uint64_t id, const std::vector<TokenId>& prompt) {
  rig.prefills[0]->transport->hold = true;
  rig.router->Generate("d", rig.MakeRequest(id, prompt, 6));
  ASSERT_TRUE(rig.RunUntil([&] { return rig.prefills[0]->transport->queued() > 0; }));
}

TEST(Fencing, AnExpiredLeaseRunsLocallyAndItsBlocksStayInQuarantineUntilTheAcknowledgement) {
  RoleRig rig(ShortLeases());
  rig.Attach();
  const auto prompt = MakePrompt(100, 1);
  HangWrites(rig, 1, prompt);
  rig.ExpectAnswer(1, prompt, 6);
  EXPECT_EQ(rig.router->answers[1].timings[0].kv_transport(), "");
  rig.RunFor(std::chrono::milliseconds(500));
  EXPECT_EQ(Quarantined(rig), 7);
  EXPECT_EQ(rig.decode->engine->blocks().Available(), 64 - 7);
  EXPECT_EQ(rig.decode->decode->num_leases(), 1u);

  // Other requests use every other block while the late writes land: nobody's tokens change.
  for (uint64_t id = 2; id <= 9; ++id) {
    v1::GenerateRequest request = rig.MakeRequest(id, MakePrompt(90, id), 20);
    request.clear_prefill();
    rig.router->Generate("d", request);
  }
  rig.RunFor(std::chrono::milliseconds(2));
  rig.prefills[0]->transport->Land();
  for (uint64_t id = 2; id <= 9; ++id) rig.ExpectAnswer(id, MakePrompt(90, id), 20);
  rig.RunFor(std::chrono::milliseconds(10));
  rig.ExpectAllBlocksBack();
}

TEST(Fencing, AStoppedPrefillWorkerThatComesBackStartsNoWriteAndAcknowledges) {
  RoleRig rig(ShortLeases());
  rig.Attach();
  const auto prompt = MakePrompt(100, 1);
  HangWrites(rig, 1, prompt);
  rig.prefills[0]->paused = true;
  rig.ExpectAnswer(1, prompt, 6);
  rig.RunFor(std::chrono::milliseconds(200));
  EXPECT_EQ(Quarantined(rig), 7);
  const size_t started = rig.prefills[0]->transport->writes_started();
  rig.prefills[0]->paused = false;
  rig.prefills[0]->transport->hold = false;
  rig.RunFor(std::chrono::milliseconds(20));
  EXPECT_EQ(rig.prefills[0]->transport->writes_started(), started);
  rig.ExpectAllBlocksBack();
}

TEST(Fencing, ASilentWriterGetsNoNewGrants) {
  RigOptions options = ShortLeases();
  options.decode.prefill_silence_limit = std::chrono::milliseconds(300);
  RoleRig rig(options);
  rig.Attach();
  HangWrites(rig, 1, MakePrompt(100, 1));
  rig.ExpectAnswer(1, MakePrompt(100, 1), 6);
  rig.RunFor(std::chrono::milliseconds(200));
  ASSERT_EQ(Quarantined(rig), 7);
  int grants = 0;
  rig.kv_links.on_up = [&](v1::DecodeToPrefill& m) {
    grants += m.has_grant() || m.prefill().has_grant();
    return true;
  };
  for (uint64_t id = 2; id <= 5; ++id) {
    rig.router->Generate("d", rig.MakeRequest(id, MakePrompt(80, id), 3));
    rig.ExpectAnswer(id, MakePrompt(80, id), 3);
  }
  EXPECT_EQ(grants, 0);
  EXPECT_EQ(Quarantined(rig), 7);
  rig.prefills[0]->transport->hold = false;
  rig.RunFor(std::chrono::milliseconds(50));
  // It has answered, so it is trusted again.
  rig.router->Generate("d", rig.MakeRequest(6, MakePrompt(80, 6), 3));
  rig.ExpectAnswer(6, MakePrompt(80, 6), 3);
  EXPECT_EQ(grants, 1);
  rig.RunFor(std::chrono::milliseconds(10));
  rig.ExpectAllBlocksBack();
}

TEST(Fencing, OutstandingGrantsOfOneWriterAreCapped) {
  RigOptions options;
  options.decode.max_granted_blocks_per_peer = 10;
  options.decode.lease_base = std::chrono::seconds(60);
  RoleRig rig(options);
  rig.Attach();
  rig.prefills[0]->transport->hold = true;
  for (uint64_t id = 1; id <= 6; ++id)
    rig.router->Generate("d", rig.MakeRequest(id, MakePrompt(60, id), 2));
  for (int i = 0; i < 200; ++i) {
    rig.Turn();
    rig.clock.Advance(rig.tick);
    EXPECT_LE(rig.decode->engine->blocks().LeasedBlocks(), 10);
  }
  EXPECT_EQ(rig.decode->engine->blocks().LeasedBlocks(), 8);
  rig.prefills[0]->transport->hold = false;
  for (uint64_t id = 1; id <= 6; ++id) rig.ExpectAnswer(id, MakePrompt(60, id), 2);
}

TEST(Fencing, TheQuarantineOfAllWritersTogetherIsHalfOfThePool) {
  RigOptions options = ShortLeases();
  options.prefill_workers = 5;
  RoleRig rig(options);
  rig.Attach();
  for (auto& prefill : rig.prefills) prefill->transport->hold = true;
  const auto prompt = MakePrompt(100, 1);
  rig.router->Generate("d", rig.MakeRequest(1, prompt, 6));
  rig.RunFor(std::chrono::seconds(1));
  EXPECT_EQ(Quarantined(rig), 4 * 7) << "with those of a fifth it would be more than 32";
  EXPECT_EQ(rig.decode->engine->blocks().LeasedBlocks(), 4 * 7) << "and it is granted none";
  for (auto& prefill : rig.prefills) prefill->transport->hold = false;
  rig.ExpectAnswer(1, prompt, 6);
  rig.RunFor(std::chrono::milliseconds(100));
  rig.ExpectAllBlocksBack();
}

TEST(Fencing, ADeadWriterWithProofGivesBlocksBack) {
  RoleRig rig({});
  rig.Attach();
  const auto prompt = MakePrompt(100, 1);
  HangWrites(rig, 1, prompt);
  rig.KillPrefill(0, /*proof=*/true);
  rig.ExpectAnswer(1, prompt, 6);
  rig.RunFor(std::chrono::milliseconds(50));
  rig.ExpectAllBlocksBack();
  EXPECT_EQ(rig.death.watches, 0);
}

TEST(Fencing, ALostWriterWithoutProofKeepsItsBlocksInQuarantine) {
  RoleRig rig({});
  rig.Attach();
  const auto prompt = MakePrompt(100, 1);
  HangWrites(rig, 1, prompt);
  rig.KillPrefill(0, /*proof=*/false);
  rig.ExpectAnswer(1, prompt, 6);
  rig.RunFor(std::chrono::seconds(1));
  EXPECT_EQ(Quarantined(rig), 7);

  // Another process at its address says nothing about the first one, whatever it acknowledges.
  rig.StartPrefill(0, /*incarnation=*/2);
  ASSERT_TRUE(rig.RunUntil([&] { return rig.router->links.count("p0") == 1; }));
  const auto other = MakePrompt(80, 2);
  rig.RunFor(std::chrono::seconds(2));
  EXPECT_EQ(Quarantined(rig), 7);
  rig.death.dead["p0/1"] = true;
  rig.RunFor(std::chrono::milliseconds(50));
  EXPECT_EQ(Quarantined(rig), 0);
  rig.router->Generate("d", rig.MakeRequest(2, other, 4));
  rig.ExpectAnswer(2, other, 4);
  EXPECT_EQ(rig.router->answers[2].timings[0].kv_transport(), "manual");
  rig.RunFor(std::chrono::milliseconds(10));
  rig.ExpectAllBlocksBack();
}

TEST(Fencing, ALostConnectionIsMendedAndTheSameProcessAcknowledges) {
  RoleRig rig({});
  rig.Attach();
  const auto prompt = MakePrompt(100, 1);
  HangWrites(rig, 1, prompt);
  rig.kv_links.BreakAll();
  rig.ExpectAnswer(1, prompt, 6);
  rig.RunFor(std::chrono::milliseconds(500));
  EXPECT_EQ(Quarantined(rig), 7) << "the writes still hang, so nobody may acknowledge";
  rig.prefills[0]->transport->hold = false;
  rig.RunFor(std::chrono::milliseconds(500));
  rig.ExpectAllBlocksBack();
}

TEST(Fencing, ATransportThatFencesOnTheOwnersSideGivesBlocksBackAtOnce) {
  RigOptions options = ShortLeases();
  options.owner_copies = true;
  RoleRig rig(options);
  rig.Attach();
  const auto prompt = MakePrompt(100, 1);
  HangWrites(rig, 1, prompt);
  rig.ExpectAnswer(1, prompt, 6);
  EXPECT_EQ(Quarantined(rig), 0);
  EXPECT_EQ(rig.decode->decode->num_leases(), 0u);
  rig.prefills[0]->transport->Land();
  EXPECT_GT(rig.decode->transport->fenced_writes(), 0u);
  rig.prefills[0]->transport->hold = false;
  rig.RunFor(std::chrono::milliseconds(50));
  rig.ExpectAllBlocksBack();
  EXPECT_EQ(rig.decode->transport->allowed_epochs(), 0u);
}

TEST(Fencing, AnOwnerThatFetchesKeepsBlocksUntilItsFetchesHaveEnded) {
  RigOptions options = ShortLeases();
  options.owner_copies = true;
  RoleRig rig(options);
  rig.Attach();
  const auto prompt = MakePrompt(100, 1);
  rig.decode->transport->fetching = true;
  HangWrites(rig, 1, prompt);
  rig.ExpectAnswer(1, prompt, 6);
  EXPECT_EQ(Quarantined(rig), 7);
  // The writer's confirmation that it has stopped says nothing about our own fetches.
  rig.prefills[0]->transport->hold = false;
  rig.RunFor(std::chrono::milliseconds(500));
  EXPECT_EQ(Quarantined(rig), 7);
  rig.decode->transport->fetching = false;
  rig.RunFor(std::chrono::milliseconds(500));
  EXPECT_EQ(rig.decode->decode->num_leases(), 0u);
  rig.ExpectAllBlocksBack();
}

TEST(Fencing, WhoReportsDoneWhileItsBytesAreFetchedIsNotBelieved) {
  RigOptions options;
  options.owner_copies = true;
  RoleRig rig(options);
  rig.Attach();
  rig.decode->transport->fetching = true;
  const auto prompt = MakePrompt(100, 1);
  rig.router->Generate("d", rig.MakeRequest(1, prompt, 6));
  rig.ExpectAnswer(1, prompt, 6);
  EXPECT_EQ(rig.router->answers[1].timings[0].kv_transport(), "") << "the prompt ran here";
  EXPECT_GT(Quarantined(rig), 0);
  rig.decode->transport->fetching = false;
  rig.RunFor(std::chrono::milliseconds(500));
  rig.ExpectAllBlocksBack();
}

TEST(Fencing, AWrongTokenCountIsDataLossAndItsBlocksAreNeverUsed) {
  RoleRig rig({});
  rig.Attach();
  rig.kv_links.on_down = [](v1::PrefillToDecode& m) {
    if (m.has_done()) m.mutable_done()->set_token_layers(m.done().token_layers() - 1);
    return true;
  };
  const auto prompt = MakePrompt(100, 1);
  rig.router->Generate("d", rig.MakeRequest(1, prompt, 6));
  rig.ExpectAnswer(1, prompt, 6);
  EXPECT_EQ(rig.router->answers[1].timings[0].kv_transport(), "");
  EXPECT_EQ(rig.decode->executor->rows_computed(), 105u) << "the prompt ran here";
  rig.RunFor(std::chrono::milliseconds(10));
  rig.ExpectAllBlocksBack();
}

TEST(Fencing, ADoneOfAnotherEpochIsNotBelieved) {
  RoleRig rig({});
  rig.Attach();
  rig.kv_links.on_down = [](v1::PrefillToDecode& m) {
    if (m.has_done()) m.mutable_done()->set_epoch(m.done().epoch() + 1);
    return true;
  };
  const auto prompt = MakePrompt(40, 1);
  rig.router->Generate("d", rig.MakeRequest(1, prompt, 6));
  rig.ExpectAnswer(1, prompt, 6);
  rig.RunFor(std::chrono::milliseconds(10));
  rig.ExpectAllBlocksBack();
}

TEST(Fencing, AFailedWriteFailsTheTransferAndIsAcknowledged) {
  RoleRig rig({});
  rig.Attach();
  rig.prefills[0]->transport->fail_next_write = Internal("bad cable");
  const auto prompt = MakePrompt(100, 1);
  rig.router->Generate("d", rig.MakeRequest(1, prompt, 6));
  rig.ExpectAnswer(1, prompt, 6);
  EXPECT_EQ(rig.router->answers[1].timings[0].kv_transport(), "");
  rig.RunFor(std::chrono::milliseconds(10));
  rig.ExpectAllBlocksBack();
  rig.router->Generate("d", rig.MakeRequest(2, MakePrompt(90, 2), 6));
  rig.ExpectAnswer(2, MakePrompt(90, 2), 6);
  EXPECT_EQ(rig.router->answers[2].timings[0].kv_transport(), "manual");
}

TEST(Fencing, ALaneThatIsLostIsGreetedAnew) {
  RoleRig rig({});
  rig.Attach();
  rig.prefills[0]->transport->fail_next_write = Unavailable("connection reset");
  const int dials = rig.kv_links.dials();
  rig.router->Generate("d", rig.MakeRequest(1, MakePrompt(100, 1), 6));
  rig.ExpectAnswer(1, MakePrompt(100, 1), 6);
  rig.RunFor(std::chrono::milliseconds(100));
  rig.router->Generate("d", rig.MakeRequest(2, MakePrompt(90, 2), 6));
  rig.ExpectAnswer(2, MakePrompt(90, 2), 6);
  EXPECT_EQ(rig.router->answers[2].timings[0].kv_transport(), "manual");
  EXPECT_EQ(rig.kv_links.dials(), dials + 2);
  rig.RunFor(std::chrono::milliseconds(10));
  rig.ExpectAllBlocksBack();
}

TEST(Fencing, ADecodeWorkerThatDiesLeavesNothingOnThePrefillWorker) {
  RoleRig rig({});
  rig.Attach();
  HangWrites(rig, 1, MakePrompt(100, 1));
  rig.router->Generate("d", rig.MakeRequest(2, MakePrompt(100, 2), 6));
  rig.RunFor(std::chrono::milliseconds(2));
  rig.KillDecode();
  rig.RunFor(std::chrono::milliseconds(5));
  EXPECT_EQ(rig.prefills[0]->engine->NumWaiting() + rig.prefills[0]->engine->NumRunning(), 0);
  EXPECT_GT(rig.prefills[0]->engine->blocks().Stats().pinned, 0)
      << "a write that is carried out still reads its source";
  rig.prefills[0]->transport->hold = false;
  rig.RunFor(std::chrono::milliseconds(5));
  rig.ExpectAllBlocksBack();
}

TEST(Fencing, ALaneWithoutAProofOfDeathIsNotUsed) {
  RoleRig rig({});
  rig.death.blind = true;
  rig.Attach();
  int offers = -1;
  rig.kv_links.on_up = [&](v1::DecodeToPrefill& message) {
    if (message.has_hello()) offers = message.hello().offers_size();
    return true;
  };
  const auto prompt = MakePrompt(100, 1);
  rig.router->Generate("d", rig.MakeRequest(1, prompt, 4));
  rig.ExpectAnswer(1, prompt, 4);
  EXPECT_EQ(rig.decode->executor->rows_computed(), 103u) << "it computed the prompt itself";
  EXPECT_EQ(offers, 1);
  rig.RunFor(std::chrono::milliseconds(50));
  rig.router->Generate("d", rig.MakeRequest(2, MakePrompt(100, 2), 4));
  rig.ExpectAnswer(2, MakePrompt(100, 2), 4);
  EXPECT_EQ(offers, 0) << "the lane is not offered again; there is no other";
  rig.RunFor(std::chrono::milliseconds(5));
  rig.ExpectAllBlocksBack();
}

}  // namespace
}  // namespace aisp
