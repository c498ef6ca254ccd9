// Classes of service in one engine: batch and best-effort sequences yield, but do not starve.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "tests/engine/scheduler_views.h"
#include "tests/engine/small_engine.h"

namespace aisp {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;

int64_t Standing(int32_t rank, ServiceClass service_class) {
  TenantShare tenant;
  tenant.rank = rank;
  tenant.service_class = service_class;
  return tenant.Standing();
}

SequenceView Of(ServiceClass service_class, SequenceView view) {
  view.service_class = service_class;
  view.rank = Standing(0, service_class);
  return view;
}

constexpr auto kBatch = ServiceClass::kBatch;
constexpr auto kBestEffort = ServiceClass::kBestEffort;

TEST(ClassesScheduler, AnInteractiveRequestTakesThePlaceOfTheLastOfTheLeastClass) {
  const ScheduleLimits limits{.max_sequences = 3};
  const StepPlan plan = Plan({Of(kBestEffort, Decoding(1, 20)), Of(kBatch, Decoding(2, 20)),
                              Of(kBestEffort, Decoding(3, 20)), Waiting(4, 30)},
                             100, limits);
  EXPECT_THAT(Preempted(plan), ElementsAre(3));
  EXPECT_THAT(Ids(plan), ElementsAre(2, 1)) << "the freed place is for the next plan";
}

TEST(ClassesScheduler, AnInteractiveRequestTakesAsManyBlocksAsItLacks) {
  // The prompt needs 4 blocks and one is kept free; 1 is free.
  const StepPlan plan = Plan({Of(kBatch, Decoding(1, 33)), Of(kBatch, Decoding(2, 33)),
                              Of(kBatch, Decoding(3, 33)), Waiting(4, 60)},
                             1);
  EXPECT_THAT(Preempted(plan), ElementsAre(3, 2));
}

TEST(ClassesScheduler, NobodyIsPreemptedWhereThatWouldNotBeEnough) {
  const StepPlan plan = Plan({Of(kBatch, Decoding(1, 33)), Waiting(2, 600)}, 1);
  EXPECT_THAT(Preempted(plan), IsEmpty());
}

TEST(ClassesScheduler, WhatIsOfOneClassDoesNotGiveWayToARank) {
  const ScheduleLimits limits{.max_sequences = 1};
  SequenceView urgent = Waiting(2, 30);
  urgent.rank = Standing(5, ServiceClass::kInteractive);
  EXPECT_THAT(Preempted(Plan({Decoding(1, 20), urgent}, 100, limits)), IsEmpty());
  EXPECT_THAT(
      Preempted(Plan({Of(kBatch, Decoding(1, 20)), Of(kBatch, Waiting(2, 30))}, 100, limits)),
      IsEmpty());
}

TEST(ClassesScheduler, AClassCountsBeforeARank) {
  EXPECT_GT(Standing(INT32_MIN, ServiceClass::kInteractive), Standing(INT32_MAX, kBatch));
  EXPECT_GT(Standing(0, ServiceClass::kInteractive), Standing(1000, kBatch));
  EXPECT_GT(Standing(-1000, kBatch), Standing(1000, kBestEffort));
}

SequenceRequest Batch(uint64_t seed, int32_t new_tokens, Duration patience = {}) {
  SequenceRequest request = MakeRequest(SomeTokens(20, seed), new_tokens);
  request.tenant.service_class = kBatch;
  request.tenant.patience = patience;
  return request;
}

class ClassesEngine : public testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Depth, ClassesEngine, testing::Values(1, 2));

TEST_P(ClassesEngine, AnInteractiveRequestStartsAtOnceWhereBatchHasEveryPlace) {
  EngineOptions options;
  options.limits.max_sequences = 2;
  EngineHarness h(SmallModel(GetParam()), options);
  const SequenceId first = h.Add(Batch(1, 60));
  const SequenceId second = h.Add(Batch(2, 60));
  for (int i = 0; i < 10; ++i) h.Step();
  ASSERT_EQ(h.engine.NumRunning(), 2);
  EXPECT_EQ(h.engine.Yielding().rows, 2);
  EXPECT_GT(h.engine.Yielding().blocks, 0);
  const SequenceId urgent = h.Add(MakeRequest(SomeTokens(20, 3), 4));
  for (int i = 0; i < 12; ++i) h.Step();
  EXPECT_TRUE(h.outcomes[urgent].ended);
  EXPECT_EQ(h.engine.Preemptions(), 1u);
  h.Run();
  h.ExpectAllOracle();
  EXPECT_EQ(h.engine.Times(first).preemptions, 0);
  EXPECT_EQ(h.engine.Times(second).preemptions, 1) << "the one that came last";
  h.ExpectIdle();
}

// Interactive requests arrive as long as batch ones wait: more than one slot can serve.
TEST_P(ClassesEngine, WhatHasWaitedLongEnoughGoesAsAnInteractiveOne) {
  for (const Duration patience : {Duration{}, Duration(50ms)}) {
    EngineOptions options;
    options.limits.max_sequences = 1;
    EngineHarness h(SmallModel(GetParam()), options);
    const SequenceId batch = h.Add(Batch(1, 4, patience));
    uint64_t seed = 10;
    for (int i = 0; i < 400; ++i) {
      if (h.engine.NumWaiting() < 2) h.Add(MakeRequest(SomeTokens(20, ++seed), 4));
      h.Step();
    }
    EXPECT_EQ(h.outcomes[batch].ended, patience > Duration{});
    h.Run();
    h.ExpectAllOracle();
  }
}

TEST_P(ClassesEngine, RandomLoadsOfAllClassesEndAsTheyWouldAlone) {
  SplitMix64 random(7);
  EngineOptions options;
  options.limits.max_sequences = 3;
  EngineHarness h(SmallModel(GetParam(), /*blocks=*/24), options);
  for (int i = 0; i < 120; ++i) {
    SequenceRequest request =
        MakeRequest(RandomTokens(random, 1 + static_cast<int32_t>(random.Below(60))),
                    1 + static_cast<int32_t>(random.Below(30)), random.Next());
    request.tenant.service_class = static_cast<ServiceClass>(random.Below(3));
    request.tenant.patience = std::chrono::milliseconds(random.Below(200));
    request.tenant.name = std::string(1, random.Below(2) == 0 ? 'a' : 'b');
    h.Add(request);
    for (uint64_t steps = random.Below(12); steps > 0; --steps) h.Step();
  }
  h.Run();
  h.ExpectAllOracle();
  EXPECT_GT(h.engine.Preemptions(), 0u);
  h.ExpectIdle();
}

}  // namespace
}  // namespace aisp
