#include "server/step_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace aisp {
namespace {

std::string Read(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(StepLog, ALineForEachStepInAFileOfTheWorkersOwn) {
  const std::string folder = ::testing::TempDir() + "step-log";
  std::filesystem::create_directories(folder);
  auto log = StepLog::Open(folder, "../decode:0");
  ASSERT_TRUE(log) << log.error().message;
  StepTiming timing;
  timing.prefill_tokens = 512;
  timing.prefill_context = 131328;
  timing.decode_rows = 3;
  timing.decode_context = 3000;
  timing.duration = FromMs(9.5);
  timing.device = FromMs(8.25);
  (*log)->OnStep(timing, Instant{1'500'000'000});
  log->reset();
  EXPECT_EQ(Read(folder + "/___decode_0.csv"),
            "end_ms,device_ms,launch_to_end_ms,prompt_tokens,prompt_positions,rows,row_positions\n"
            "1500.000,8.2500,9.5000,512,131328,3,3000\n");
}

TEST(StepLog, AFolderThatIsNotThereIsNamed) {
  const auto log = StepLog::Open("/nowhere/at/all", "decode-0");
  ASSERT_FALSE(log);
  EXPECT_THAT(log.error().message, ::testing::HasSubstr("/nowhere/at/all/decode-0.csv"));
}

}  // namespace
}  // namespace aisp
