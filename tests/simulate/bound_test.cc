#include "simulate/bound.h"

#include <gtest/gtest.h>

namespace aisp::simulate {
namespace {

using loadgen::WorkItem;

WorkItem Of(std::vector<loadgen::PromptPart> parts, int64_t output) {
  WorkItem item;
  item.input_tokens = 0;
  for (const loadgen::PromptPart& part : parts) item.input_tokens += part.tokens;
  item.parts = std::move(parts);
  item.output_tokens = output;
  return item;
}

// A prompt token takes 1 ms, an answer token 2 ms; nothing else takes time.
Fleet Plain(int workers) {
  WorkerProfile p;
  p.cost.prefill = {0, 1, 0, 0, 0};
  p.cost.decode = {0, 2, 0};
  return {p, 0, workers};
}

TEST(WorkConservingRate, IsThatOfWorkersThatAreNeverIdle) {
  const std::vector<WorkItem> items = {Of({{1, 100}}, 51), Of({{2, 300}}, 1)};
  // 200 and 300 ms of work.
  EXPECT_NEAR(WorkConservingRate({Plain(1)}, items), 4, 1e-9);
  EXPECT_NEAR(WorkConservingRate({Plain(2), Plain(3)}, items), 20, 1e-9);
  EXPECT_EQ(WorkConservingRate({Plain(1)}, {}), 0);
}

TEST(WorkConservingRate, WhatCameBeforeIsCached) {
  const auto ms = [](const std::vector<WorkItem>& items) {
    return 1e3 * static_cast<double>(items.size()) / WorkConservingRate({Plain(1)}, items);
  };
  EXPECT_NEAR(ms({Of({{1, 100}, {2, 50}}, 1), Of({{1, 100}, {3, 20}}, 1)}), 170, 1e-6);
  // The same part after another one is not the same prefix.
  EXPECT_NEAR(ms({Of({{1, 100}, {2, 50}}, 1), Of({{2, 50}}, 1)}), 200, 1e-6);
  // A shorter part is a prefix of a longer one with the same seed.
  EXPECT_NEAR(ms({Of({{1, 100}}, 1), Of({{1, 40}, {2, 10}}, 1), Of({{1, 120}}, 1)}), 130, 1e-6);
  // The last token of a prompt is always computed.
  EXPECT_NEAR(ms({Of({{1, 100}}, 1), Of({{1, 100}}, 1)}), 101, 1e-6);
}

}  // namespace
}  // namespace aisp::simulate
