#include "simulate/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace aisp::simulate {
namespace {

using ::testing::HasSubstr;

const std::string kShipped = std::string(AISP_SOURCE_DIR) + "/config/workers";

TEST(Profile, WhatIsWrittenIsReadAgain) {
  WorkerProfile profile;
  profile.cost.decode.base_ms = 3.25;
  profile.blocks = 77;
  const auto back = ParseProfile(ProfileToJson(profile), "mine");
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->cost.decode.base_ms, 3.25);
  EXPECT_EQ(back->blocks, 77);
  EXPECT_EQ(back->name, "mine");
}

TEST(Profile, RowsFromWhichStepsTakeLonger) {
  WorkerProfile profile;
  profile.more_from_rows = {{33, 0.75}, {129, 0.5}};
  const std::string json = ProfileToJson(profile);
  const auto back = ParseProfile(json, "mine");
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->more_from_rows, profile.more_from_rows);
  std::string wrong = json;
  wrong.replace(wrong.find("\"33\""), 4, "\"few\"");
  EXPECT_THAT(ParseProfile(wrong, "mine").error().message, HasSubstr("has 'few': 0.75"));
}

TEST(Profile, ErrorsNameTheKeyItsValueAndTheLimit) {
  const auto error = [](const std::string& from, const std::string& to) {
    std::string text = ProfileToJson(WorkerProfile{});
    text.replace(text.find(from), from.size(), to);
    const auto parsed = ParseProfile(text, "mine");
    return parsed ? std::string("accepted") : parsed.error().message;
  };
  EXPECT_THAT(error("\"block_tokens\": 64", "\"block_tokens\": 40"), HasSubstr("multiple of 16"));
  EXPECT_THAT(error("\"max_running\": 256", "\"max_running\": 0"),
              HasSubstr("'max_running' is 0; it may be 1 to"));
  EXPECT_THAT(error("\"handoff_ms\"", "\"hand_off_ms\""), HasSubstr("'hand_off_ms' is no key"));
  EXPECT_THAT(error("\"decode_step_ms\"", "\"decode_ms\""), HasSubstr("'decode_ms' is no key"));
  EXPECT_THAT(ParseProfile("[1]", "mine").error().message, HasSubstr("mine: it is no JSON object"));
  EXPECT_THAT(ParseProfile("{}", "mine").error().message, HasSubstr("decode_step_ms"));
}

TEST(Profile, StepsLaunchedAheadMayBeLeftOut) {
  WorkerProfile p;
  p.launched_ahead = 1;
  std::string json = ProfileToJson(p);
  EXPECT_EQ(ParseProfile(json, "p")->launched_ahead, 1);
  const std::string key = ",\n  \"launched_ahead\": 1";
  ASSERT_NE(json.find(key), std::string::npos) << json;
  json.erase(json.find(key), key.size());
  const Result<WorkerProfile> without = ParseProfile(json, "p");
  ASSERT_TRUE(without) << without.error().message;
  EXPECT_EQ(without->launched_ahead, 0);
}

TEST(Fleets, NameProfilesAndCountWorkers) {
  const auto fleets = ParseFleets("h200-llama-3.1-8b-fp8:2P6D+h200-llama-3.1-8b-fp8:4D", kShipped);
  ASSERT_TRUE(fleets) << fleets.error().message;
  ASSERT_EQ(fleets->size(), 2u);
  EXPECT_EQ((*fleets)[0].prefill, 2);
  EXPECT_EQ((*fleets)[0].decode, 6);
  EXPECT_EQ((*fleets)[1].prefill, 0);
  EXPECT_EQ((*fleets)[1].decode, 4);
}

TEST(Fleets, AreRefusedWithAWayOut) {
  const auto error = [](const std::string& spec) {
    const auto fleets = ParseFleets(spec, kShipped);
    return fleets ? std::string("accepted") : fleets.error().message;
  };
  EXPECT_THAT(error("h200"), HasSubstr("write PROFILE:2P2D"));
  EXPECT_THAT(error("h300:2D"), HasSubstr("one of: h100-llama-3.1-8b-fp8, h200-llama-3.1-8b-fp8"));
  EXPECT_THAT(error("h200-llama-3.1-8b-fp8:2X"), HasSubstr("write 2P2D"));
  EXPECT_THAT(error("h200-llama-3.1-8b-fp8:2"), HasSubstr("write 2P2D"));
  EXPECT_THAT(error("h200-llama-3.1-8b-fp8:"), HasSubstr("write 2P2D"));
  EXPECT_THAT(error("h200-llama-3.1-8b-fp8:2P"), HasSubstr("no decode worker"));
  EXPECT_THAT(error("h200-llama-3.1-8b-fp8:4000D+h200-llama-3.1-8b-fp8:4000D"),
              HasSubstr("at most 4096"));
}

}  // namespace
}  // namespace aisp::simulate
