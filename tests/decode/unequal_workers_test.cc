// Workers whose pools differ in block size and number format. The tokens are those of one engine
// (every format holds each number of the model exactly), nothing is written twice or where it was
// not granted, and every block is freed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/role_rig.h"

namespace aisp {
namespace {

using std::chrono::milliseconds;

struct Format {
  int32_t block_tokens;
  DType dtype;
};

class UnequalWorkers : public ::testing::Test {
 protected:
  void Start(const Format& prefill, const Format& decode, RigOptions options = {}) {
    options.model.block_tokens = decode.block_tokens;
    options.model.spelled = decode.dtype;
    options.mixed_precision = prefill.dtype != decode.dtype;
    options.of_prefill = [prefill](ProvenanceOptions& model) {
      model.block_tokens = prefill.block_tokens;
      model.spelled = prefill.dtype;
    };
    rig_ = std::make_unique<RoleRig>(options);
    rig_->Attach();
  }
  const v1::Timing& Timing(uint64_t id) const { return rig_->router->answers.at(id).timings.at(0); }
  // A decode worker computes itself what is less than one of its blocks.
  void ExpectMoved(uint64_t id, int tokens, int32_t block_tokens) const {
    if (tokens <= block_tokens) return;
    EXPECT_EQ(Timing(id).fallback(), "");
    EXPECT_GT(Timing(id).kv_blocks_moved(), 0u);
  }
  v1::GenerateRequest Pulling(uint64_t id, const std::vector<TokenId>& prompt) const {
    return rig_->MakePull(id, prompt, 4);
  }
  RigPrefill& p() { return *rig_->prefills[0]; }
  int32_t Staging() { return p().prefill->staging_blocks(); }
  int32_t MostStaging() { return p().prefill->most_staging_blocks(); }
  void ExpectAllBack() {
    rig_->RunFor(milliseconds(50));
    rig_->ExpectAllBlocksBack();
  }
  std::unique_ptr<RoleRig> rig_;
};

constexpr int32_t kSizes[] = {16, 32, 48, 64, 128};
constexpr DType kFormats[] = {DType::kF32, DType::kBF16, DType::kF8E4M3};

// Prompts that end inside blocks and at block ends; then the same ones, partly cached on both
// sides.
TEST_F(UnequalWorkers, BlocksOfEachSizeFillBlocksOfEach) {
  for (const bool owner_copies : {false, true}) {
    for (const int32_t from : kSizes) {
      for (const int32_t to : kSizes) {
        SCOPED_TRACE(testing::Message() << from << " to " << to << " copies " << owner_copies);
        RigOptions options;
        options.owner_copies = owner_copies;
        Start({from, DType::kF32}, {to, DType::kF32}, options);
        uint64_t id = 0;
        for (const int tokens : {2, 17, 128, 129, 200, 257}) {
          const auto prompt = MakePrompt(tokens, static_cast<uint64_t>(tokens));
          rig_->router->Generate("d", rig_->MakeRequest(++id, prompt, 4));
          rig_->ExpectAnswer(id, prompt, 4);
          ExpectMoved(id, tokens, to);
          auto longer = prompt;
          longer.insert(longer.end(), {1, 2, 3});
          rig_->router->Generate("d", rig_->MakeRequest(++id, longer, 4));
          rig_->ExpectAnswer(id, longer, 4);
        }
        EXPECT_EQ(MostStaging(), 0) << "rows are copied where they go";
        ExpectAllBack();
      }
    }
  }
}

TEST_F(UnequalWorkers, EachFormatFillsEachInBlocksOfAnySize) {
  for (const DType from : kFormats) {
    for (const DType to : kFormats) {
      for (const auto& [ours, theirs] : {std::pair{16, 16}, {16, 128}, {64, 16}, {48, 32}}) {
        SCOPED_TRACE(testing::Message()
                     << DTypeName(from) << ' ' << ours << " to " << DTypeName(to) << ' ' << theirs);
        Start({ours, from}, {theirs, to});
        uint64_t id = 0;
        for (const int tokens : {17, 128, 300}) {
          const auto prompt = MakePrompt(tokens, static_cast<uint64_t>(tokens));
          rig_->router->Generate("d", rig_->MakeRequest(++id, prompt, 4));
          rig_->ExpectAnswer(id, prompt, 4);
          ExpectMoved(id, tokens, theirs);
        }
        EXPECT_EQ(MostStaging() > 0, from != to);
        ExpectAllBack();
      }
    }
  }
}

TEST_F(UnequalWorkers, PrefixesArePulledThroughConversions) {
  for (const DType from : kFormats) {
    for (const auto& [ours, theirs] : {std::pair{16, 32}, {64, 16}, {32, 48}}) {
      SCOPED_TRACE(testing::Message() << DTypeName(from) << ' ' << ours << " to " << theirs);
      Start({ours, from}, {theirs, DType::kBF16});
      const auto prompt = MakePrompt(150, 7);
      rig_->router->Generate("d", rig_->MakeRequest(1, prompt, 1));
      rig_->ExpectAnswer(1, prompt, 1);
      rig_->decode->engine->blocks().ClearCache();
      auto longer = prompt;
      longer.insert(longer.end(), 40, 9);
      rig_->router->Generate("d", Pulling(2, longer));
      rig_->ExpectAnswer(2, longer, 4);
      EXPECT_EQ(Timing(2).pull().result(), v1::PrefixPull::FILLED);
      // Whole blocks of both sizes.
      EXPECT_EQ(Timing(2).pull().tokens(),
                static_cast<uint32_t>(149 / ours * ours / theirs * theirs));
      ExpectAllBack();
    }
  }
}

// A small pool: conversions wait for staging memory and for a full queue.
TEST_F(UnequalWorkers, ManyPromptsShareALittleStagingMemory) {
  RigOptions options;
  options.prefill_blocks = 24;
  options.decode_blocks = 64;
  Start({16, DType::kF8E4M3}, {64, DType::kF32}, options);
  p().transport->queue_limit = 3;
  for (uint64_t id = 1; id <= 8; ++id)
    rig_->router->Generate("d", rig_->MakeRequest(id, MakePrompt(100, id), 4));
  for (uint64_t id = 1; id <= 8; ++id) {
    rig_->ExpectAnswer(id, MakePrompt(100, id), 4);
    ExpectMoved(id, 100, 64);
  }
  EXPECT_GT(MostStaging(), 0);
  EXPECT_LE(MostStaging(), 12);
  ExpectAllBack();
}

TEST_F(UnequalWorkers, APoolTooSmallForOneConvertedBlockRefusesTheReader) {
  RigOptions options;
  options.prefill_blocks = 12;
  options.model.num_layers = 1;
  Start({16, DType::kF8E4M3}, {128, DType::kF32}, options);
  const auto prompt = MakePrompt(150, 3);
  rig_->router->Generate("d", rig_->MakeRequest(1, prompt, 4));
  rig_->ExpectAnswer(1, prompt, 4);
  EXPECT_THAT(Timing(1).fallback(), ::testing::HasSubstr("KV is not converted from fp8_e4m3"));
  ExpectAllBack();
}

// Half precision on both sides without the declaration: refused with both values, and computed.
TEST_F(UnequalWorkers, OtherNumbersAreRefusedWhereNobodyAllowedThem) {
  RigOptions options;
  options.model.spelled = DType::kBF16;
  options.of_prefill = [](ProvenanceOptions& model) { model.spelled = DType::kF32; };
  rig_ = std::make_unique<RoleRig>(options);
  rig_->Attach();
  const auto prompt = MakePrompt(100, 3);
  rig_->router->Generate("d", rig_->MakeRequest(1, prompt, 4));
  rig_->ExpectAnswer(1, prompt, 4);
  for (const char* part : {"\"f32\"", "\"bf16\"", "--allow-mixed-precision"})
    EXPECT_THAT(Timing(1).fallback(), ::testing::HasSubstr(part));
  ExpectAllBack();
}

TEST_F(UnequalWorkers, ARowThatIsNotWhatWasConvertedIsNotRead) {
  for (const DType from : {DType::kBF16, DType::kF32}) {
    Start({32, from}, {16, DType::kBF16});
    p().transport->spoil = 1;
    const auto prompt = MakePrompt(100, 3);
    rig_->router->Generate("d", rig_->MakeRequest(1, prompt, 4));
    rig_->ExpectAnswer(1, prompt, 4);
    EXPECT_THAT(Timing(1).fallback(), ::testing::HasSubstr("data loss"));
    ExpectAllBack();
  }
}

TEST_F(UnequalWorkers, CancelledAtAnyStepItLeavesNothingBehind) {
  for (const bool owner_copies : {false, true}) {
    for (int turns = 0; turns < 14; ++turns) {
      SCOPED_TRACE(turns);
      RigOptions options;
      options.owner_copies = owner_copies;
      options.prefill_blocks = 40;
      Start({16, DType::kF32}, {64, DType::kF8E4M3}, options);
      p().transport->queue_limit = 1;
      rig_->router->Generate("d", rig_->MakeRequest(1, MakePrompt(150, 4), 4));
      for (int i = 0; i < turns && !rig_->Finished(1); ++i) rig_->Turn();
      rig_->router->Cancel("d", 1);
      ExpectAllBack();
    }
  }
}

TEST_F(UnequalWorkers, StagingMemoryGoesBackWithTheLastPush) {
  Start({16, DType::kF32}, {64, DType::kBF16});
  const auto prompt = MakePrompt(100, 3);
  rig_->router->Generate("d", rig_->MakeRequest(1, prompt, 4));
  rig_->ExpectAnswer(1, prompt, 4);
  rig_->RunFor(milliseconds(20));
  EXPECT_GT(MostStaging(), 0);
  EXPECT_EQ(Staging(), 0);
  rig_->KillDecode();
  rig_->RunFor(milliseconds(20));
  rig_->ExpectAllBlocksBack();
}

// It would wait for blocks that the staging memory holds, which in turn wait for the prompt to end.
TEST_F(UnequalWorkers, APromptThatFillsThePoolIsComputedWhereItsKvBelongs) {
  RigOptions options;
  options.prefill_blocks = 24;
  options.decode_blocks = 64;
  Start({16, DType::kF32}, {16, DType::kBF16}, options);
  const auto prompt = MakePrompt(16 * 24 - 1, 3);
  rig_->router->Generate("d", rig_->MakeRequest(1, prompt, 4));
  rig_->ExpectAnswer(1, prompt, 4);
  EXPECT_THAT(Timing(1).fallback(), ::testing::HasSubstr("no room"));
  ExpectAllBack();
}

// It dies while converted layers are in transit: its grant is freed, and the rest is computed.
TEST_F(UnequalWorkers, AWriterThatDiesBetweenTwoLayersGivesItsGrantBackByItsDeath) {
  Start({16, DType::kF32}, {64, DType::kBF16});
  p().transport->hold = true;
  const auto prompt = MakePrompt(150, 3);
  rig_->router->Generate("d", rig_->MakeRequest(1, prompt, 4));
  ASSERT_TRUE(rig_->RunUntil([&] { return p().transport->queued() > 1; }));
  p().transport->Land(1);
  rig_->KillPrefill(0, /*proof=*/true);
  rig_->ExpectAnswer(1, prompt, 4);
  ExpectAllBack();
}

}  // namespace
}  // namespace aisp
