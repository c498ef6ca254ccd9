// A prompt and its parts: the output holds the measured numbers and their ratio.
#include "bench/prefill.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

namespace aisp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

PrefillComparison Example() {
  PrefillComparison c;
  c.whole = {.tokens = 1024,
             .count = 6,
             .first_ms = 21.5,
             .rested_ms = 20.75,
             .back_to_back_ms = 22.5,
             .device_ms = 20.5};
  PrefillParts& parts = c.parts.emplace();
  parts.tokens = 1024;
  parts.format = "bf16";
  parts.linear_ms = 18.75;
  parts.attention_ms = 1;
  parts.head_ms = 0.25;
  return c;
}

TEST(BenchPrefill, ThePartsAreHeldAgainstPromptsThatHadARestAsWell) {
  EXPECT_NEAR(Example().percent(), 100 * 20.0 / 20.75, 1e-9);
}

TEST(BenchPrefill, JsonHasTheWholeItsPartsAndTheirRatio) {
  const auto json = nlohmann::json::parse(ToJson({Example(), Example()}, "a GPU", "llama-3.1-8b"));
  EXPECT_EQ(json["bench"], "prefill");
  EXPECT_EQ(json["model"], "llama-3.1-8b");
  EXPECT_EQ(json["device"], "a GPU");
  ASSERT_EQ(json["prompts"].size(), 2u);
  const auto& prompt = json["prompts"][0];
  EXPECT_EQ(prompt["whole"]["tokens"], 1024);
  EXPECT_EQ(prompt["whole"]["first_ms"], 21.5);
  EXPECT_EQ(prompt["whole"]["rested_ms"], 20.75);
  EXPECT_EQ(prompt["whole"]["back_to_back_ms"], 22.5);
  EXPECT_EQ(prompt["format"], "bf16");
  EXPECT_EQ(prompt["parts_ms"], 20.0);
  EXPECT_EQ(prompt["parts_percent"], 96.4);
}

TEST(BenchPrefill, TheTableHasALineForEachPrompt) {
  const std::string table = ToTable({Example()}, "a GPU", "llama-3.1-8b");
  EXPECT_THAT(table, HasSubstr("llama-3.1-8b"));
  EXPECT_THAT(table, HasSubstr("21.500"));
  EXPECT_THAT(table, HasSubstr("96.4 %"));
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 3);
}

TEST(BenchPrefill, PartsThatWereNotTimedAreLeftOut) {
  PrefillComparison whole = Example();
  whole.parts.reset();
  const auto json = nlohmann::json::parse(ToJson({whole}, "a GPU", "llama-3.1-8b"));
  EXPECT_EQ(json["prompts"][0].size(), 1u);
  EXPECT_EQ(json["prompts"][0]["whole"]["rested_ms"], 20.75);
  const std::string table = ToTable({whole}, "a GPU", "llama-3.1-8b");
  EXPECT_THAT(table, HasSubstr("20.750"));
  EXPECT_THAT(table, Not(HasSubstr("%")));
}

TEST(BenchPrefill, ManyRowsOfFp8WeightsAreMultipliedByFp8Activations) {
  EXPECT_THAT(PrefillFormatsOf("fp8", "auto"), ElementsAre("fp8 x fp8", "bf16 kv"));
  EXPECT_THAT(PrefillFormatsOf("nvfp4", "fp8"), ElementsAre("nvfp4 x bf16", "fp8 kv"));
  EXPECT_THAT(PrefillFormatsOf("auto", "bf16"), ElementsAre("bf16", "bf16 kv"));
}

}  // namespace
}  // namespace aisp
