#include "server/kv_pool.h"

#include <gmock/gmock.h>

namespace aisp {
namespace {

using ::testing::HasSubstr;

constexpr size_t kGiBytes = size_t{1} << 30;

Config Llama() {
  Config config;
  config.model.weights = "random:1";
  config.model.path = AISP_SOURCE_DIR "/config/models/llama-3.1-8b.json";
  config.engine.block_tokens = 64;
  return config;
}

KvPoolPlan Plan(const Config& config, size_t total, size_t free, bool gpu) {
  const auto served = LoadServedModel(config);
  EXPECT_TRUE(served) << served.error().message;
  const auto plan = PlanKvPool(config, **served, {total * kGiBytes, free * kGiBytes}, gpu);
  EXPECT_TRUE(plan) << plan.error().message;
  return plan.value_or(KvPoolPlan{});
}

// 128 KiB a token: a block of 64 is 8 MiB, a GiB 128 of them.
TEST(KvPool, ACpuGetsAQuarterOfWhatIsFreeAndSharersDivideIt) {
  Config config = Llama();
  EXPECT_EQ(Plan(config, 64, 40, false).blocks, 1280);
  EXPECT_THAT(Plan(config, 64, 40, false).why, HasSubstr("a quarter of 40 GiB free"));
  config.engine.pool_sharers = 2;
  EXPECT_EQ(Plan(config, 64, 40, false).blocks, 640);
  config.role = "split";
  EXPECT_EQ(Plan(config, 64, 40, false).blocks, 320);
  EXPECT_THAT(Plan(config, 64, 40, false).why, HasSubstr("shared by 4 workers"));
}

TEST(KvPool, ACpuTakesNoMoreThanItsSequencesCanUse) {
  Config config = Llama();
  config.model.max_model_len = 640;
  config.engine.max_sequences = 4;
  EXPECT_EQ(Plan(config, 512, 400, false).blocks, 4 * 4 * 10);
}

TEST(KvPool, AGpuGivesWhatTheModelLeavesOfItsPart) {
  Config config = Llama();
  // 120 of 140 GiB are free once the weights are in; a tenth of the card, 14 GiB, stays free.
  EXPECT_EQ(Plan(config, 140, 120, true).blocks, 106 * 128);
  config.engine.gpu_memory_utilization = 0.5;
  EXPECT_EQ(Plan(config, 140, 120, true).blocks, 50 * 128);
}

TEST(KvPool, WorkersOfOneCardTakeEqualPartsThoughTheOthersAreNotLoadedYet) {
  Config config = Llama();
  config.engine.pool_sharers = 2;
  const KvPoolPlan plan = Plan(config, 140, 120, true);
  // 63 GiB each, less 15 of weights and one of buffers.
  EXPECT_NEAR(plan.blocks, 47 * 128, 128);
  EXPECT_THAT(plan.why, HasSubstr("shared by 2 workers"));
}

TEST(KvPool, APoolThatIsToldOutrightIsTakenOrRefusedByName) {
  Config config = Llama();
  config.engine.kv_blocks = 100;
  EXPECT_EQ(Plan(config, 64, 1, true).blocks, 100);
  config.engine.kv_blocks = 1;
  const auto one = LoadServedModel(config);
  ASSERT_FALSE(one);
  EXPECT_THAT(one.error().message, HasSubstr("engine.kv_blocks (--kv-blocks) = 1"));
  EXPECT_THAT(one.error().message, HasSubstr("at least 6 blocks"));
  config.engine.kv_blocks = 0;
  config.engine.kv_memory = kMiB;
  EXPECT_THAT(LoadServedModel(config).error().message, HasSubstr("engine.kv_memory (--kv-memory)"));
}

TEST(KvPool, ADraftModelOnAGpuHasItsPartOfTheCard) {
  const Config config = Llama();
  const auto served = LoadServedModel(config);
  ASSERT_TRUE(served) << served.error().message;
  const MemoryInfo memory{100 * kGiBytes, 90 * kGiBytes};
  const auto blocks = [&](const DraftMemory& draft) {
    const auto plan = PlanKvPool(config, **served, memory, true, draft);
    EXPECT_TRUE(plan) << plan.error().message;
    return plan.value_or(KvPoolPlan{}).blocks;
  };
  const int32_t alone = blocks({});
  EXPECT_EQ(blocks({.fixed_bytes = 10 * kGiBytes, .block_bytes = 0}), alone - 10 * 128);
  EXPECT_EQ(blocks({.fixed_bytes = 0, .block_bytes = 8 * (kGiBytes >> 10)}), alone / 2);
}

TEST(KvPool, NoRoomIsAnErrorWithTheNumbersAndTheSettingsThatHelp) {
  const Config config = Llama();
  const auto served = LoadServedModel(config);
  const auto plan = PlanKvPool(config, **served, {140 * kGiBytes, 14 * kGiBytes}, true);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, Code::kResourceExhausted);
  EXPECT_THAT(plan.error().message, HasSubstr("--gpu-memory-utilization"));
  EXPECT_THAT(plan.error().message, HasSubstr("14 GiB"));
}

}  // namespace
}  // namespace aisp
