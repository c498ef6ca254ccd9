// The cost policy where streams miss their TPOT already.
#include <gtest/gtest.h>

#include "tests/router/worker_views.h"

namespace aisp {
namespace {

// A decode step takes 1 ms and 1 ms a row, a step with a prompt 0.1 ms a token.
WorkerView DecodeWith(std::string_view id, int32_t rows) {
  WorkerView worker = Decode(id);
  worker.cost = {{1, 1, 0}, {0, 0.1, 0, 1, 0}};
  worker.rows = rows;
  return worker;
}

TEST(LateStreams, DoNotDrawPromptsFromWorkersWhoseStreamsAreAtTheLimit) {
  const WorkerView workers[] = {DecodeWith("at the limit", 8), DecodeWith("late", 12)};
  RequestSummary request = Request(1000);
  request.objective = request.others = {.ttft_ms = 1000, .tpot_ms = 10};
  request.aggregated = true;
  EXPECT_EQ(Pick("cost", request, workers)->decode, 0);
}

// One worker would compute the prompt in steps with many streams, and prolong their later steps by
// its row; the other one has few streams, but the same TPOT.
TEST(LateStreams, AreSparedARowThatManyOfThemWouldFeel) {
  WorkerView workers[] = {DecodeWith("many", 12), DecodeWith("few", 4)};
  workers[1].cost.decode = {9, 1, 0};
  RequestSummary request = Request(1000);
  request.objective = request.others = {.ttft_ms = 1000, .tpot_ms = 10};
  request.aggregated = true;
  for (WorkerView& worker : workers) worker.cached_tokens = 992;
  EXPECT_EQ(Pick("cost", request, workers)->decode, 1);
}

}  // namespace
}  // namespace aisp
