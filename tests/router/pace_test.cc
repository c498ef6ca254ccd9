// The cost policy's prefill pace in steps with streams.
#include <gtest/gtest.h>

#include <vector>

#include "common/random.h"
#include "router/answer_lengths.h"
#include "router/prediction.h"
#include "tests/router/worker_views.h"

namespace aisp {
namespace {

TEST(Pace, ALocalPromptHasThePaceThatLeavesStreamsTheirTimeForAToken) {
  std::vector<WorkerView> workers = {Decode("d")};
  WorkerView& d = workers[0];
  d.cost.prefill = {2, 0.01, 1e-6, 0.1, 0};
  d.chunk_tokens = 2048;
  d.rows = 10;
  d.pace = PaceWithin(d, 20);
  // Nine tenths of 20 ms, minus 2 ms and 0.1 ms per decode row; 10,000 positions cost as much as a
  // prefill row.
  EXPECT_EQ(d.pace.rows, 1500);
  EXPECT_EQ(d.pace.positions, 10'000);
  EXPECT_EQ(Pick("cost", Request(4096), workers)->pace.rows, 1500);
  d.spare_ms = 1000;
  EXPECT_FALSE(Pick("cost", Request(4096), workers)->pace.any()) << "streams can wait for it";
  d.backlog_ms = 1000;
  EXPECT_TRUE(Pick("cost", Request(4096), workers)->pace.any()) << "but not for all that is there";
  EXPECT_FALSE(Pick("least-loaded", Request(4096), workers)->pace.any());
  EXPECT_EQ(PaceWithin(d, 2).rows, 256) << "however little is left, prompts go on";
  EXPECT_FALSE(PaceWithin(d, 0).any()) << "no limit";
  workers.push_back(Prefill("p"));
  RequestSummary remote = Request(4096);
  remote.preference = PrefillPreference::kRemote;
  EXPECT_FALSE(Pick("cost", remote, workers)->pace.any());
}

// Each prompt alone does no harm, but a constant stream of prompts would delay all streams.
TEST(Pace, WhatIsToComePacesAPromptAsLongAsItKeepsItsOwnLimit) {
  // Steps of 6 ms, limit 12 ms: with prefill rows for a third of the time they take 9 ms.
  EXPECT_NEAR(SpareMs(100, 6, 12), 480, 1e-9);
  EXPECT_NEAR(SpareMs(100, 6, 12, 1.0 / 3), 120, 1e-9);
  EXPECT_EQ(SpareMs(100, 6, 12, 0.5), 0);
  std::vector<WorkerView> workers = {Decode("d")};
  WorkerView& d = workers[0];
  d.cost.prefill = {2, 0.01, 0, 0.1, 0};
  d.chunk_tokens = 2048;
  d.rows = 10;
  d.pace = PaceWithin(d, 12);
  d.spare_ms = 480;
  d.lasting_spare_ms = 120;
  RequestSummary request = Request(4096);
  request.objective = {300, 12};
  EXPECT_FALSE(Pick("cost", request, workers)->pace.any());
  d.lasting_spare_ms = 0;
  EXPECT_TRUE(Pick("cost", request, workers)->pace.any());
  d.backlog_ms = 320;
  EXPECT_FALSE(Pick("cost", request, workers)->pace.any())
      << "late, and so would be who comes next";
  d.backlog_ms = 500;
  EXPECT_TRUE(Pick("cost", request, workers)->pace.any()) << "short streams wait for all of it";
}

TEST(Pace, APacedPromptIsPredictedToTakeMoreSteps) {
  WorkerView d = Decode("d");
  d.cost.prefill = {2, 0.01, 0, 0, 0};
  d.chunk_tokens = 1000;
  d.rows = 1;
  const PromptWork work = PromptWork::Of(0, 4000);
  EXPECT_DOUBLE_EQ(PromptMs(d, work), 4 * 2 + 40);
  d.pace = {500, 0};
  EXPECT_DOUBLE_EQ(PromptMs(d, work), 8 * 2 + 40);
  d.rows = 0;
  EXPECT_DOUBLE_EQ(PromptMs(d, work), 4 * 2 + 40) << "nobody waits for a token";
}

TEST(Pace, ShortAnswersAreAsShortAsOneInTwenty) {
  ShortAnswers answers;
  SplitMix64 random(1);
  for (int i = 0; i < 4000; ++i) answers.Add(static_cast<uint32_t>(100 + random.Below(1000)));
  EXPECT_GT(answers.tokens(), 105);
  EXPECT_LT(answers.tokens(), 220);
  for (int i = 0; i < 400; ++i) answers.Add(i % 5 == 0 ? 8 : 500);
  EXPECT_LT(answers.tokens(), 12) << "it follows a change";
  EXPECT_NEAR(answers.mean(), 0.2 * 8 + 0.8 * 500, 60);
  for (int i = 0; i < 100; ++i) answers.Add(1);
  EXPECT_GE(answers.tokens(), 2) << "what has no second token waits for none";
}

}  // namespace
}  // namespace aisp
