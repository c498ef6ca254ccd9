// Prefill and decode roles wired together: the tokens of a disaggregated request are those of one
// engine, whatever the block size, chunking and cache hits are, and every block is freed.
#include <gtest/gtest.h>

#include "tests/worker/role_rig.h"

namespace aisp {
namespace {

TEST(RemotePrefill, KvComesFromThePrefillWorker) {
  RoleRig rig({});
  rig.Attach();
  const auto prompt = MakePrompt(100, 1);
  rig.router->Generate("d", rig.MakeRequest(1, prompt, 8));
  rig.ExpectAnswer(1, prompt, 8);
  EXPECT_EQ(rig.prefills[0]->executor->rows_computed(), 100u);
  EXPECT_EQ(rig.decode->executor->rows_computed(), 7u) << "the first token came with the KV";
  rig.RunFor(std::chrono::milliseconds(5));
  rig.ExpectAllBlocksBack();
}

TEST(RemotePrefill, ChoicesThatShareAPromptShareItWithThePrefillWorkerToo) {
  RigOptions options;
  options.decode_blocks = options.prefill_blocks = 96;
  RoleRig rig(options);
  size_t shared = 0, dropped = 0, bytes = 0;
  rig.kv_links.on_up = [&](v1::DecodeToPrefill& message) {
    shared += message.has_shared_prompt() ? 1 : 0;
    dropped += message.has_drop_prompt() ? 1 : 0;
    if (message.has_shared_prompt() || message.has_prefill()) bytes += message.ByteSizeLong();
    return true;
  };
  rig.Attach();
  const auto prompt = MakePrompt(400, 9);
  v1::RouterMessage told;
  told.mutable_shared_prompt()->set_prompt_id(5);
  *told.mutable_shared_prompt()->mutable_tokens() = {prompt.begin(), prompt.end()};
  rig.router->Send("d", told);
  constexpr uint64_t kChoices = 6;
  for (uint64_t id = 1; id <= kChoices; ++id) {
    v1::GenerateRequest request = rig.MakeRequest(id, prompt, 8);
    request.clear_tokens();
    request.set_prompt_id(5);
    rig.router->Generate("d", request);
  }
  // The answers so far continue the shared prefixes.
  const ExpectedEnd before = ExpectedOutput(rig.options.model, [&] {
    SequenceRequest s;
    s.tokens = prompt;
    s.prompt_tokens = 400;
    s.sampling.seed = 77;
    s.max_new_tokens = 8;
    return s;
  }());
  v1::GenerateRequest moved = rig.MakeRequest(77, prompt, 8);
  moved.set_prompt_id(5);
  *moved.mutable_tokens() = {before.tokens.begin(), before.tokens.begin() + 3};
  rig.router->Generate("d", moved);
  for (uint64_t id = 1; id <= kChoices; ++id) rig.ExpectAnswer(id, prompt, 8);
  ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(77); }));
  const auto& rest = rig.router->answers[77].tokens;
  EXPECT_EQ(rest, (std::vector<TokenId>{before.tokens.begin() + 3, before.tokens.end()}));
  EXPECT_EQ(shared, 1u);
  EXPECT_EQ(dropped, 1u);
  EXPECT_LT(bytes, 3 * 400 + 200 * (kChoices + 1));
  rig.RunFor(std::chrono::milliseconds(5));
  rig.ExpectAllBlocksBack();
}

TEST(RemotePrefill, ARequestThatNamesAnUnknownPromptIsRefusedAndMayGoElsewhere) {
  RoleRig rig({});
  rig.Attach();
  v1::GenerateRequest request = rig.MakeRequest(1, MakePrompt(40, 1), 8);
  request.clear_tokens();
  request.set_prompt_id(9);
  rig.router->Generate("d", request);
  ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(1); }));
  EXPECT_TRUE(rig.router->answers[1].error.retryable());
}

struct Shape {
  int block_tokens;
  int chunk;
  int depth;
  bool owner_copies;
};

class RemotePrefillShapes : public ::testing::TestWithParam<Shape> {};

// Prompt lengths around block and chunk boundaries, with cached prefixes of many lengths on either
// side.
TEST_P(RemotePrefillShapes, TokensEqualTheOracle) {
  const Shape shape = GetParam();
  RigOptions options;
  options.model.block_tokens = shape.block_tokens;
  options.model.max_depth = shape.depth;
  options.model.num_layers = 3;
  options.limits.max_prefill_chunk = shape.chunk;
  options.limits.max_batch_tokens = std::max(64, shape.chunk);
  options.prefill_blocks = options.decode_blocks = 96;
  options.owner_copies = shape.owner_copies;
  uint64_t id = 0;
  const int b = shape.block_tokens;
  for (const int prefill_hit : {0, b, 3 * b}) {
    for (const int decode_hit : {0, b, 2 * b, 4 * b}) {
      RoleRig rig(options);
      rig.Attach();
      const auto base = MakePrompt(4 * b + 70, 5);
      const auto warm = [&](int tokens, bool local) {
        if (tokens == 0) return;
        const std::vector<TokenId> prefix(base.begin(), base.begin() + tokens + 1);
        v1::GenerateRequest request = rig.MakeRequest(++id, prefix, 1);
        if (local) request.clear_prefill();
        rig.router->Generate("d", request);
        rig.ExpectAnswer(id, prefix, 1);
        if (!local) const_cast<Engine&>(rig.decode->decode->engine()).blocks().ClearCache();
      };
      warm(prefill_hit, false);
      warm(decode_hit, true);
      for (const int n :
           {2, b, b + 1, b + 2, 2 * b + 1, 3 * b, 4 * b, 4 * b + 1, 4 * b + 2, 4 * b + 69}) {
        const std::vector<TokenId> prompt(base.begin(), base.begin() + n);
        rig.router->Generate("d", rig.MakeRequest(++id, prompt, 5));
        rig.ExpectAnswer(id, prompt, 5);
      }
      rig.RunFor(std::chrono::milliseconds(5));
      rig.ExpectAllBlocksBack();
      const auto& landed = rig.prefills[0]->transport->landed();
      EXPECT_TRUE(std::adjacent_find(landed.begin(), landed.end()) == landed.end())
          << "a layer's block was written twice";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, RemotePrefillShapes,
                         ::testing::Values(Shape{16, 512, 1, false}, Shape{16, 7, 1, false},
                                           Shape{32, 16, 1, true}, Shape{16, 24, 2, false},
                                           Shape{32, 40, 2, true}));

TEST(RemotePrefill, ManyRequestsThroughASmallDecodePoolAllEndRight) {
  RigOptions options;
  options.decode_blocks = 16;
  options.limits.max_sequences = 8;
  options.limits.max_prefill_chunk = 32;
  options.decode.max_granted_blocks_per_peer = 16;
  RoleRig rig(options);
  rig.Attach();
  int refusals = 0;
  rig.kv_links.on_up = [&](v1::DecodeToPrefill& m) {
    refusals += m.body_case() == v1::DecodeToPrefill::kRefused;
    return true;
  };
  constexpr int kRequests = 24;
  for (int i = 1; i <= kRequests; ++i) {
    rig.router->Generate(
        "d", rig.MakeRequest(static_cast<uint64_t>(i), MakePrompt(40 + 5 * (i % 7), 100 + i), 10));
  }
  for (int i = 1; i <= kRequests; ++i) {
    rig.ExpectAnswer(static_cast<uint64_t>(i), MakePrompt(40 + 5 * (i % 7), 100 + i), 10);
  }
  EXPECT_GT(refusals, 0);
  rig.RunFor(std::chrono::milliseconds(30));
  rig.ExpectAllBlocksBack();
}

TEST(RemotePrefill, BlocksAreAskedForOnlyShortlyBeforeThePrefillRuns) {
  RigOptions options;
  options.limits.max_batch_tokens = 32;
  options.limits.max_prefill_chunk = 32;
  options.limits.max_sequences = 8;
  options.prefill.takes_grants = false;
  RoleRig rig(options);
  rig.Attach();
  rig.prefills[0]->paused = true;
  for (uint64_t id = 1; id <= 6; ++id)
    rig.router->Generate("d", rig.MakeRequest(id, MakePrompt(100, id), 2));
  int needs = 0;
  rig.kv_links.on_down = [&](v1::PrefillToDecode& m) {
    needs += m.body_case() == v1::PrefillToDecode::kNeed;
    return true;
  };
  rig.RunFor(std::chrono::milliseconds(2));
  rig.prefills[0]->paused = false;
  rig.Turn();
  rig.Turn();
  // Two steps are 64 tokens. Half of them are for the first prompt, and the other two share the
  // rest.
  EXPECT_EQ(needs, 3);
  for (uint64_t id = 1; id <= 6; ++id) rig.ExpectAnswer(id, MakePrompt(100, id), 2);
}

TEST(RemotePrefill, AFullHitOnTheDecodeWorkerSkipsThePrefillWorker) {
  RoleRig rig({});
  rig.Attach();
  const auto prompt = MakePrompt(65, 3);
  rig.router->Generate("d", rig.MakeRequest(1, prompt, 2));
  rig.ExpectAnswer(1, prompt, 2);
  int requests = 0;
  rig.kv_links.on_up = [&](v1::DecodeToPrefill& m) {
    requests += m.body_case() == v1::DecodeToPrefill::kPrefill;
    return true;
  };
  rig.router->Generate("d", rig.MakeRequest(2, prompt, 2));
  rig.ExpectAnswer(2, prompt, 2);
  EXPECT_EQ(requests, 0);
  EXPECT_EQ(rig.router->answers[2].timings[0].cached_tokens(), 64u);
  EXPECT_EQ(rig.router->answers[2].timings[0].kv_transport(), "");
}

TEST(RemotePrefill, AHitThatAppearsWhileWaitingEndsTheTransferWithoutWrites) {
  RoleRig rig({});
  rig.Attach();
  const auto prompt = MakePrompt(65, 3);
  rig.prefills[0]->paused = true;
  rig.router->Generate("d", rig.MakeRequest(1, prompt, 2));
  rig.RunFor(std::chrono::milliseconds(2));
  v1::GenerateRequest local = rig.MakeRequest(2, prompt, 2);
  local.clear_prefill();
  rig.router->Generate("d", local);
  rig.ExpectAnswer(2, prompt, 2);
  rig.prefills[0]->paused = false;
  rig.ExpectAnswer(1, prompt, 2);
  EXPECT_EQ(rig.prefills[0]->transport->writes_started(), 0u);
  rig.RunFor(std::chrono::milliseconds(5));
  rig.ExpectAllBlocksBack();
}

TEST(RemotePrefill, AFullTransportQueueOnlyDelaysTheWrites) {
  RoleRig rig({});
  rig.Attach();
  rig.prefills[0]->transport->queue_limit = 1;
  rig.prefills[0]->transport->hold = true;
  const auto prompt = MakePrompt(100, 1);
  rig.router->Generate("d", rig.MakeRequest(1, prompt, 4));
  for (int i = 0; i < 400 && !rig.Finished(1); ++i) {
    rig.Turn();
    rig.clock.Advance(rig.tick);
    rig.prefills[0]->transport->Land(1);
  }
  rig.ExpectAnswer(1, prompt, 4);
  EXPECT_EQ(rig.decode->executor->rows_computed(), 3u);
}

TEST(RemotePrefill, TheTokensOfOneStepTravelInOneMessage) {
  RoleRig rig({});
  rig.Attach();
  for (uint64_t id = 1; id <= 4; ++id)
    rig.router->Generate("d", rig.MakeRequest(id, MakePrompt(40, id), 12));
  for (uint64_t id = 1; id <= 4; ++id) rig.ExpectAnswer(id, MakePrompt(40, id), 12);
  size_t most = 0;
  for (const v1::TokenBatch& batch : rig.router->batches)
    most = std::max(most, static_cast<size_t>(batch.events_size()));
  EXPECT_EQ(most, 4u);
  EXPECT_LE(rig.router->batches.size(), rig.decode->executor->steps() + 4)
      << "a first token has a message of its own";
}

TEST(RemotePrefill, TimingPartsAddUpToTheFirstToken) {
  RigOptions options;
  options.limits.max_batch_tokens = 32;
  options.limits.max_prefill_chunk = 32;
  RoleRig rig(options);
  rig.Attach();
  rig.prefills[0]->transport->hold = true;
  const auto prompt = MakePrompt(100, 1);
  const Instant sent = rig.clock.Now();
  rig.router->Generate("d", rig.MakeRequest(1, prompt, 3));
  rig.RunFor(std::chrono::milliseconds(20));
  rig.prefills[0]->transport->hold = false;
  ASSERT_TRUE(rig.RunUntil([&] { return !rig.router->answers[1].tokens.empty(); }));
  const v1::Timing timing = rig.router->answers[1].timings.at(0);
  const Instant seen = rig.clock.Now();
  const int64_t sum =
      timing.queue_ns() + timing.prefill_ns() + timing.transfer_ns() + timing.first_decode_ns();
  // The request arrives in the turn in which it is sent; the token was drawn one or two turns
  // before the test sees it.
  EXPECT_LE(sum, (seen - sent).count());
  EXPECT_GE(sum, (seen - sent - 3 * rig.tick).count());
  EXPECT_GT(timing.prefill_ns(), 0);
  EXPECT_GT(timing.transfer_ns(), Duration(std::chrono::milliseconds(10)).count());
  EXPECT_GE(timing.queue_ns(), 0);
  EXPECT_EQ(timing.kv_transport(), "manual");
  EXPECT_EQ(timing.kv_blocks_moved(), 7u);
}

// Four chunks of a prompt; the first one is in transit while the others are computed. The hidden
// and the exposed part of the transfer are counted separately.
TEST(RemotePrefill, WhatComputingHidesOfTheTransferIsTold) {
  RigOptions options;
  options.limits.max_batch_tokens = 32;
  options.limits.max_prefill_chunk = 32;
  RoleRig rig(options);
  rig.Attach();
  RigPrefill& p = *rig.prefills[0];
  p.transport->hold = true;
  rig.router->Generate("d", rig.MakeRequest(1, MakePrompt(128, 1), 3));
  ASSERT_TRUE(rig.RunUntil([&] { return p.transport->queued() > 0; }));
  const Instant first_write = rig.clock.Now();
  ASSERT_TRUE(rig.RunUntil([&] { return !p.engine->InFlight() && !p.engine->CanLaunch(); }));
  const Instant computed = rig.clock.Now();
  rig.RunFor(std::chrono::milliseconds(4));
  p.transport->hold = false;
  const Instant landed = rig.clock.Now();
  ASSERT_TRUE(rig.RunUntil([&] { return !rig.router->answers[1].timings.empty(); }));
  const v1::Timing timing = rig.router->answers[1].timings.at(0);
  const int64_t turns = 3 * Duration(rig.tick).count();
  EXPECT_NEAR(timing.transfer_ns(), (landed - computed).count(), turns);
  EXPECT_NEAR(timing.transfer_total_ns(), (landed - first_write).count(), turns);
  EXPECT_GT(timing.transfer_total_ns(), timing.transfer_ns());
  rig.RunFor(std::chrono::milliseconds(20));
  EXPECT_NE(
      rig.metrics.Render().find("aisp_kv_transfer_seconds_count{role=\"decode\",worker=\"d\"} 1"),
      std::string::npos);
}

TEST(RemotePrefill, MetricsSayWhatBothSidesDid) {
  RoleRig rig({});
  rig.Attach();
  rig.router->Generate("d", rig.MakeRequest(1, MakePrompt(100, 1), 4));
  rig.ExpectAnswer(1, MakePrompt(100, 1), 4);
  rig.RunFor(std::chrono::milliseconds(60));
  const std::string text = rig.metrics.Render();
  const std::string decode = "{role=\"decode\",worker=\"d\"}";
  const KvLayout layout = rig.decode->engine->blocks().layout();
  for (const std::string& line :
       {"aisp_remote_prefills_total" + decode + " 1",
        "aisp_remote_prefill_fallbacks_total" + decode + " 0",
        "aisp_kv_grants_total" + decode + " 1",
        "aisp_first_tokens_from_prefill_total" + decode + " 1",
        std::string("aisp_prefill_first_tokens_total{role=\"prefill\",worker=\"p0\"} 1"),
        "aisp_tokens_generated_total" + decode + " 4",
        std::string("aisp_prefill_tokens_total{role=\"prefill\",worker=\"p0\"} 100"),
        std::string("aisp_decode_rows_total{role=\"decode\",worker=\"d\"} 3"),
        std::string("aisp_worker_ready{role=\"decode\",worker=\"d\"} 1"),
        std::string("aisp_worker_ttft_part_seconds_count{part=\"transfer\",role=\"decode\","
                    "worker=\"d\"} 1"),
        std::string("aisp_prefix_cache_queries_total{role=\"decode\",worker=\"d\"} 99"),
        std::string("aisp_prefix_cache_queries_total{role=\"prefill\",worker=\"p0\"} 99"),
        "aisp_kv_transfer_bytes_total{lane=\"manual\",role=\"prefill\",worker=\"p0\"} " +
            std::to_string(7 * layout.BlockBytes())}) {
    EXPECT_NE(text.find(line + "\n"), std::string::npos) << line;
  }
}

// A read of a corrupted block would show: the executor of these tests checks all that it reads.
TEST(RemotePrefill, ABlockThatIsNotWhatWasWrittenIsNeverRead) {
  RoleRig rig({});
  rig.Attach();
  // The last block is partial: 100 tokens, of which the last is computed here.
  const auto prompt = MakePrompt(100, 1);
  rig.prefills[0]->transport->spoil = 1;
  rig.router->Generate("d", rig.MakeRequest(1, prompt, 8));
  rig.ExpectAnswer(1, prompt, 8);
  EXPECT_EQ(rig.decode->executor->rows_computed(), 107u);
  rig.RunFor(std::chrono::milliseconds(5));
  rig.ExpectAllBlocksBack();
  const std::string labels = "{role=\"decode\",worker=\"d\"} ";
  std::string text = rig.metrics.Render();
  for (const char* line : {"aisp_kv_corrupt_transfers_total", "aisp_kv_data_loss_total",
                           "aisp_remote_prefill_fallbacks_total"}) {
    EXPECT_NE(text.find(line + labels + "1\n"), std::string::npos) << line;
  }
  // The next request succeeds.
  const auto other = MakePrompt(100, 2);
  rig.router->Generate("d", rig.MakeRequest(2, other, 8));
  rig.ExpectAnswer(2, other, 8);
  text = rig.metrics.Render();
  EXPECT_NE(text.find("aisp_kv_verified_blocks_total" + labels + "7\n"), std::string::npos);
}

TEST(RemotePrefill, ChecksThatDoNotFitTheBlocksAreDataLoss) {
  RoleRig rig({});
  rig.kv_links.on_down = [](v1::PrefillToDecode& message) {
    if (message.has_done()) message.mutable_done()->mutable_block_checks()->RemoveLast();
    return true;
  };
  rig.Attach();
  const auto prompt = MakePrompt(100, 1);
  rig.router->Generate("d", rig.MakeRequest(1, prompt, 8));
  rig.ExpectAnswer(1, prompt, 8);
  EXPECT_EQ(rig.decode->executor->rows_computed(), 107u);
  rig.RunFor(std::chrono::milliseconds(5));
  rig.ExpectAllBlocksBack();
}

TEST(RemotePrefill, AWriterOfBeforeThereWereChecksIsReadAsItWas) {
  RoleRig rig({});
  rig.kv_links.on_down = [](v1::PrefillToDecode& message) {
    if (message.has_done()) message.mutable_done()->clear_block_checks();
    return true;
  };
  rig.Attach();
  const auto prompt = MakePrompt(100, 1);
  rig.router->Generate("d", rig.MakeRequest(1, prompt, 8));
  rig.ExpectAnswer(1, prompt, 8);
  EXPECT_EQ(rig.decode->executor->rows_computed(), 7u);
}

TEST(RemotePrefill, ATakeoverGoesOnWhereTheOtherWorkerStopped) {
  RoleRig rig({});
  rig.Attach();
  const auto prompt = MakePrompt(50, 1);
  rig.router->Generate("d", rig.MakeRequest(1, prompt, 10));
  rig.ExpectAnswer(1, prompt, 10);
  const std::vector<TokenId> all = rig.router->answers[1].tokens;
  v1::GenerateRequest request = rig.MakeRequest(2, prompt, 10);
  request.mutable_sampling()->set_seed(1);
  for (int i = 0; i < 4; ++i) request.add_tokens(all[static_cast<size_t>(i)]);
  rig.router->Generate("d", request);
  ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(2); }));
  EXPECT_EQ(rig.router->answers[2].tokens, std::vector<TokenId>(all.begin() + 4, all.end()));
  EXPECT_EQ(rig.router->answers[2].events[0].first_position(), 54u);
}

}  // namespace
}  // namespace aisp
