#include "router/shortlist.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "common/random.h"
#include "router/prediction.h"

namespace aisp {
namespace {

RequestSummary Request(int32_t tokens) {
  RequestSummary r;
  r.tokens = tokens;
  r.num_layers = 32;
  return r;
}

WorkerView Idle(bool prefill) {
  WorkerView w;
  w.prefill = prefill;
  w.available = true;
  w.known = true;
  w.max_rows = 64;
  w.free_blocks = 100'000;
  w.total_blocks = 100'000;
  w.kv_bytes_per_token = 131072;
  w.transfer_bytes_per_s = 1e11;
  return w;
}

// Random loads; some workers have part of the prompt, some are full, some unavailable.
std::vector<WorkerView> Cluster(SplitMix64* random, size_t prefills, size_t decodes) {
  std::vector<WorkerView> workers;
  for (size_t i = 0; i < prefills + decodes; ++i) {
    WorkerView w = Idle(i < prefills);
    w.available = random->Below(20) != 0;
    w.backlog_ms = static_cast<double>(random->Below(300));
    w.queued_prompts = w.backlog_ms > 0 ? 1 : 0;
    if (!w.prefill) {
      w.rows = static_cast<int32_t>(random->Below(70));
      w.context_tokens = w.rows * 1000;
    }
    if (random->Below(8) == 0) w.cached_tokens = 16 * static_cast<int32_t>(random->Below(100));
    workers.push_back(w);
  }
  return workers;
}

TEST(Shortlist, OfFewWorkersItLeavesNobodyOut) {
  const WorkerView workers[] = {Idle(true), Idle(false), Idle(false), Idle(true)};
  const Shortlist list = MakeShortlist(Request(1000), workers, {});
  EXPECT_EQ(list.locals, (std::vector<int>{1, 2}));
  EXPECT_EQ(list.decodes, (std::vector<int>{1, 2}));
  EXPECT_EQ(list.prefills, (std::vector<int>{0, 3}));
  EXPECT_TRUE(list.any_prefill);
}

// A short uncached rest gets its share of the next steps, however long the queued prompts are.
TEST(Shortlist, WhoHasThePromptIsListedBehindLongPromptsThatItDoesNotWaitFor) {
  std::vector<WorkerView> workers(64, Idle(false));
  workers[40].cached_tokens = 8192;
  workers[40].backlog_ms = 2000;
  workers[40].queued_prompts = 1;
  workers[40].queued_prefill = PromptWork::Of(0, 16'384);
  RequestSummary request = Request(8192 + 100);
  request.objective = {500, 50};
  const auto listed = [&] {
    const Shortlist list = MakeShortlist(request, workers, {});
    return std::count(list.locals.begin(), list.locals.end(), 40) == 1;
  };
  EXPECT_TRUE(listed());
  workers[40].queued_prompts = 12;
  EXPECT_FALSE(listed()) << "of a dozen it does";
}

TEST(Shortlist, OfManyItHasAtMostSixteenPairsOfThoseThatAreThere) {
  SplitMix64 random(7);
  for (int round = 0; round < 200; ++round) {
    const auto workers = Cluster(&random, random.Below(80), 1 + random.Below(200));
    RequestSummary request = Request(2000);
    request.tie_break = random.Next();
    const Shortlist list = MakeShortlist(request, workers, {});
    EXPECT_LE(list.locals.size(), Shortlist::kLocals);
    EXPECT_LE(list.decodes.size() * list.prefills.size(), Shortlist::kPairs);
    for (const int p : list.prefills) {
      EXPECT_TRUE(workers[static_cast<size_t>(p)].available);
      EXPECT_TRUE(workers[static_cast<size_t>(p)].prefill);
    }
    for (const std::vector<int>* of : {&list.locals, &list.decodes}) {
      for (const int d : *of) {
        EXPECT_TRUE(workers[static_cast<size_t>(d)].available);
        EXPECT_FALSE(workers[static_cast<size_t>(d)].prefill);
      }
    }
  }
}

// Winners of groups so small that the shortlist drops nobody, then the winner of these.
size_t BestOfAll(const RoutingPolicy& policy, const RequestSummary& request,
                 const std::vector<WorkerView>& workers) {
  std::vector<size_t> left(workers.size());
  for (size_t i = 0; i < left.size(); ++i) left[i] = i;
  while (left.size() > 1) {
    std::vector<size_t> winners;
    for (size_t begin = 0; begin < left.size(); begin += Shortlist::kLocals) {
      std::vector<WorkerView> group;
      const size_t end = std::min(begin + Shortlist::kLocals, left.size());
      for (size_t i = begin; i < end; ++i) group.push_back(workers[left[i]]);
      const auto best = policy.Pick(request, group);
      if (best) winners.push_back(left[begin + static_cast<size_t>(best->decode)]);
    }
    left = winners;
  }
  return left.front();
}

TEST(Shortlist, NearlyAlwaysHasTheOneThatIsBestOfAll) {
  SplitMix64 random(11);
  PolicyOptions options;
  options.cost.tie_fraction = 0;
  const auto policy = *MakeRoutingPolicy(options);
  int same = 0;
  constexpr int kRounds = 300;
  for (int round = 0; round < kRounds; ++round) {
    const auto workers = Cluster(&random, 0, 120);
    RequestSummary request = Request(3000);
    request.tie_break = random.Next();
    request.objective = request.others = {400, 20};
    const auto chosen = policy->Pick(request, workers);
    ASSERT_TRUE(chosen);
    if (static_cast<size_t>(chosen->decode) == BestOfAll(*policy, request, workers)) ++same;
  }
  EXPECT_GE(same, kRounds * 97 / 100);
}

TEST(Shortlist, OfEqualWorkersEachRequestSeesOthers) {
  const std::vector<WorkerView> workers(100, Idle(false));
  std::set<int> seen;
  SplitMix64 random(3);
  for (int i = 0; i < 400; ++i) {
    RequestSummary request = Request(500);
    request.tie_break = random.Next();
    const Shortlist list = MakeShortlist(request, workers, {});
    seen.insert(list.locals.begin(), list.locals.end());
  }
  EXPECT_EQ(seen.size(), workers.size());
}

TEST(Shortlist, AWorkerWithoutRoomOrTimeIsBehindOnesThatHaveBoth) {
  std::vector<WorkerView> workers(40, Idle(false));
  RequestSummary request = Request(500);
  request.objective = request.others = {500, 20};
  for (size_t i = 0; i < 32; ++i) {
    if (i % 3 == 0) workers[i].rows = workers[i].max_rows;
    if (i % 3 == 1) workers[i].free_blocks = 3;
    if (i % 3 == 2) workers[i].backlog_ms = 900;
  }
  // The free ones are slower, but meet the limits.
  for (size_t i = 32; i < 40; ++i) workers[i].backlog_ms = 300;
  const Shortlist list = MakeShortlist(request, workers, {});
  ASSERT_EQ(list.locals.size(), 8u);
  EXPECT_GE(*std::min_element(list.locals.begin(), list.locals.end()), 32);
}

TEST(MissRisk, RisesWithThePredictionToAHalfAtTheLimit) {
  EXPECT_EQ(MissRisk(500, 0, 10), 0) << "no limit";
  EXPECT_NEAR(MissRisk(300, 300, 10), 0.5, 1e-9);
  double last = 0;
  for (double ms = 30; ms <= 900; ms += 30) {
    const double risk = MissRisk(ms, 300, 20);
    EXPECT_GE(risk, last);
    last = risk;
  }
  EXPECT_GT(last, 0.999);
  EXPECT_GT(MissRisk(200, 300, 60), MissRisk(200, 300, 5)) << "who is often wrong is less sure";
}

// Both meet the limit of 300 ms, but a wait that ends just below it is a risk, and avoiding it
// costs no running stream anything.
TEST(CostPolicy, APromptLeavesAPrefillQueueThatEndsNearItsLimit) {
  WorkerView prefill = Idle(true), decode = Idle(false);
  prefill.cost.prefill = decode.cost.prefill = {1, 0.015, 0, 0, 0};
  decode.cost.decode = {3, 0, 0};
  prefill.chunk_tokens = decode.chunk_tokens = 2048;
  prefill.queued_prompts = 1;
  decode.rows = 6;
  decode.context_tokens = 36'000;
  RequestSummary request = Request(6000);
  request.expected_new_tokens = 128;
  request.objective = request.others = {300, 12};
  request.first_token_anywhere = true;
  const auto remote_at = [&](double backlog_ms, Objective limits) {
    prefill.backlog_ms = backlog_ms;
    request.objective = request.others = limits;
    const WorkerView workers[] = {prefill, decode};
    return (*MakeRoutingPolicy({}))->Pick(request, workers)->prefill >= 0;
  };
  EXPECT_TRUE(remote_at(60, {300, 12}));
  EXPECT_FALSE(remote_at(135, {300, 12}));
  EXPECT_TRUE(remote_at(135, {3000, 120})) << "far from its limits it may wait";
}

}  // namespace
}  // namespace aisp
