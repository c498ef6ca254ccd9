#include "planner/planner.h"

#include <gmock/gmock.h>

#include <functional>
#include <map>

#include "common/random.h"
#include "tests/planner/card.h"

namespace aisp::planner {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

// Workers that carry out role changes after some time.
class Fleet {
 public:
  Fleet(int prefill, int decode, int parked = 0) {
    for (int i = 0; i < prefill; ++i) Add("p", i, v1::ROLE_PREFILL);
    for (int i = 0; i < decode; ++i) Add("d", i, v1::ROLE_DECODE);
    for (int i = 0; i < parked; ++i) Add("x", i, v1::ROLE_PARKED);
  }
  Observation seen;
  Duration takes = seconds(2);
  int working_at_most = 0;
  int changes = 0;
  bool refuses = false;                                // all changes
  std::vector<std::pair<Instant, std::string>> asked;  // of refused changes: time and worker

  // `rate` requests arrive per second for `time`; the planner decides every second.
  void Run(Planner* planner, const Load& load, Duration time) {
    for (Duration t{}; t < time; t += seconds(1)) {
      now_ = now_ + seconds(1);
      for (auto& [at, change] : under_way_) {
        if (at <= now_) Finish(change);
      }
      std::erase_if(under_way_, [&](const auto& u) { return u.first <= now_; });
      Arrive(load);
      last = planner->Decide(now_, seen);
      working_at_most = std::max(working_at_most, Working());
      for (const Change& change : last.changes) {
        if (refuses) {
          planner->Refused(now_, change.worker);
          asked.emplace_back(now_, change.worker);
        } else {
          Begin(change);
        }
      }
    }
  }
  Split split() const {
    Split s;
    for (const WorkerStatus& w : seen.workers) {
      if (w.state != WorkerStatus::State::kReady) continue;
      ++(w.role == v1::ROLE_PREFILL ? s.prefill : s.decode);
    }
    return s;
  }
  int Parked() const {
    return static_cast<int>(std::count_if(
        seen.workers.begin(), seen.workers.end(),
        [](const WorkerStatus& w) { return w.state == WorkerStatus::State::kParked; }));
  }
  Instant now() const { return now_; }
  Plan last;

 private:
  void Add(const char* kind, int i, v1::Role role) {
    WorkerStatus w;
    w.id = kind + std::to_string(i);
    w.role = role;
    w.role_epoch = 1;
    w.roles = {v1::ROLE_PREFILL, v1::ROLE_DECODE, v1::ROLE_PARKED};
    w.state = role == v1::ROLE_PARKED ? WorkerStatus::State::kParked : WorkerStatus::State::kReady;
    const Machine card = Card();
    w.cost = card.cost;
    w.fitted_steps = 1000;
    w.chunk_tokens = 2048;
    w.max_running = 256;
    w.block_tokens = 16;
    w.total_blocks = 25'000;
    seen.workers.push_back(w);
  }
  // A worker that is changing may still do, or already do, some of its work.
  int Working() const { return static_cast<int>(seen.workers.size()) - Parked(); }
  void Arrive(const Load& load) {
    const auto n = static_cast<uint64_t>(load.requests_per_s * (0.9 + 0.2 * random_.Uniform()));
    seen.totals.requests += n;
    seen.totals.finished += n;
    seen.totals.prompt_tokens += static_cast<uint64_t>(static_cast<double>(n) * load.prompt_tokens);
    seen.totals.placed_tokens += static_cast<uint64_t>(static_cast<double>(n) * load.prompt_tokens);
    seen.totals.uncached_tokens +=
        static_cast<uint64_t>(static_cast<double>(n) * load.uncached_tokens);
    seen.totals.new_tokens += static_cast<uint64_t>(static_cast<double>(n) * load.new_tokens);
  }
  WorkerStatus& Named(const std::string& id) {
    return *std::find_if(seen.workers.begin(), seen.workers.end(),
                         [&](const WorkerStatus& w) { return w.id == id; });
  }
  void Begin(const Change& change) {
    WorkerStatus& w = Named(change.worker);
    EXPECT_EQ(change.wish.expected, w.role);
    EXPECT_EQ(change.wish.expected_epoch, w.role_epoch);
    if (w.state != WorkerStatus::State::kParked) w.state = WorkerStatus::State::kDraining;
    under_way_.emplace_back(now_ + takes, change);
    ++changes;
  }
  void Finish(const Change& change) {
    WorkerStatus& w = Named(change.worker);
    w.role = change.wish.to;
    ++w.role_epoch;
    w.state =
        w.role == v1::ROLE_PARKED ? WorkerStatus::State::kParked : WorkerStatus::State::kReady;
  }

  Instant now_{1'000'000'000};
  SplitMix64 random_{7};
  std::vector<std::pair<Instant, Change>> under_way_;
};

PlannerOptions Options() {
  PlannerOptions o;
  o.limits = {1500, 12};
  o.park = false;
  return o;
}

constexpr double kMany = 80;

TEST(Planner, FollowsAChangeOfTheMixWithinHalfAMinuteAndComesBack) {
  Fleet fleet(2, 2);
  Planner planner(Options());
  const Load answers = LoadOf(180, 256, 512);
  const Load prompts = LoadOf(26, 6000, 128);
  fleet.Run(&planner, answers, seconds(60));
  const Split before = fleet.split();
  EXPECT_LE(before.prefill, 1) << fleet.last.reason;
  EXPECT_GT(fleet.changes, 0);
  fleet.Run(&planner, prompts, seconds(30));
  EXPECT_GT(fleet.split().prefill, before.prefill) << fleet.last.reason;
  fleet.Run(&planner, answers, seconds(30));
  EXPECT_EQ(fleet.split(), before) << fleet.last.reason;
  EXPECT_EQ(fleet.working_at_most, 4);
}

// One worker changes at a time, in a second; each way three have to.
TEST(Planner, OneChangeFollowsTheOtherWithoutARest) {
  Fleet fleet(0, 4);
  fleet.takes = seconds(1);
  Planner planner(Options());
  const Load answers = LoadOf(200, 64, 512);
  const Load prompts = LoadOf(28, 6000, 8);
  fleet.Run(&planner, answers, seconds(40));
  ASSERT_EQ(fleet.split(), (Split{0, 4})) << fleet.last.reason;
  fleet.Run(&planner, prompts, seconds(11));
  EXPECT_EQ(fleet.split(), (Split{3, 1})) << fleet.last.reason;
  fleet.Run(&planner, prompts, seconds(20));
  EXPECT_EQ(fleet.changes, 3);
  fleet.Run(&planner, answers, seconds(11));
  EXPECT_EQ(fleet.split(), (Split{0, 4})) << fleet.last.reason;
}

TEST(Planner, ASteadyLoadIsLeftAlone) {
  Fleet fleet(2, 6);
  Planner planner(Options());
  fleet.Run(&planner, LoadOf(kMany, 1024, 256), seconds(60));
  const int settled = fleet.changes;
  fleet.Run(&planner, LoadOf(kMany, 1024, 256), seconds(600));
  EXPECT_EQ(fleet.changes, settled) << "it must not swing: " << fleet.last.reason;
}

// Mixes of which two aggregated workers serve slightly more than 1P1D: enough for a change under
// overload, but not if either split suffices.
TEST(Planner, WhatIsALittleBetterIsTakenWhereThereIsTooMuchToDo) {
  const Machine card = Card();
  const Objective limits = Options().limits;
  for (double tokens = 32; tokens < 1024; tokens += 8) {
    const Load one = LoadOf(1, 1024, tokens);
    const double apart = Headroom(one, card, {1, 1}, limits);
    const double together = Headroom(one, card, {0, 2}, limits);
    if (together < 1.05 * apart || together > 1.07 * apart) continue;
    for (const double part : {0.7, 1.2}) {
      Fleet fleet(1, 1);
      Planner planner(Options());
      fleet.Run(&planner, LoadOf(part * together, 1024, tokens), seconds(40));
      EXPECT_EQ(fleet.split(), part < 1 ? (Split{1, 1}) : (Split{0, 2})) << fleet.last.reason;
      const int changes = fleet.changes;
      fleet.Run(&planner, LoadOf(part * together, 1024, tokens), seconds(300));
      EXPECT_EQ(fleet.changes, changes) << "it must not swing: " << fleet.last.reason;
    }
    return;
  }
  FAIL() << "there is no such mix";
}

TEST(Planner, WithoutALoadNothingChangesAndWithParkingOneWorkerIsLeft) {
  Fleet fleet(2, 2);
  Planner planner(Options());
  fleet.Run(&planner, {}, seconds(100));
  EXPECT_EQ(fleet.changes, 0);
  PlannerOptions options = Options();
  options.park = true;
  options.shrink_after = seconds(10);
  Planner parks(options);
  fleet.Run(&parks, {}, seconds(100));
  EXPECT_EQ(fleet.split(), (Split{0, 1}));
  EXPECT_EQ(fleet.Parked(), 3);
  // They return for a load faster than they were parked.
  fleet.Run(&parks, LoadOf(kMany, 1024, 256), seconds(30));
  EXPECT_GE(fleet.split().workers(), 2) << fleet.last.reason;
  EXPECT_GE(fleet.last.wanted.workers(), fleet.split().workers());
}

TEST(Planner, TheBudgetIsNeverExceededAndWhatIsBeyondItIsParkedAtOnce) {
  Fleet fleet(2, 2, 4);
  PlannerOptions options = Options();
  options.max_workers = 4;
  Planner planner(options);
  fleet.Run(&planner, LoadOf(1000, 1024, 256), seconds(120));
  EXPECT_EQ(fleet.working_at_most, 4);
  EXPECT_LE(fleet.last.wanted.workers(), 4);
  Fleet more(3, 3);
  Planner shrinks(options);
  more.Run(&shrinks, LoadOf(1000, 1024, 256), seconds(20));
  EXPECT_EQ(more.split().workers(), 4);
}

TEST(Planner, AGrowingLoadIsSeenAheadAndNoiseIsNone) {
  Fleet fleet(0, 4);
  Planner planner(Options());
  for (int i = 1; i <= 20; ++i) fleet.Run(&planner, LoadOf(20 * i, 64, 16), seconds(1));
  EXPECT_GT(fleet.last.load.requests_per_s, 400);
  EXPECT_LE(fleet.last.load.requests_per_s, 800);
  fleet.Run(&planner, LoadOf(400, 64, 16), seconds(20));
  EXPECT_NEAR(fleet.last.load.requests_per_s, 400, 40);
}

// In a burst prompts wait for prefill workers while decode workers have room; the mean over seconds
// does not show it.
TEST(Planner, BurstsLeaveFewerToPrefillAlone) {
  PlannerOptions options = Options();
  options.limits = kLimits;
  Planner for_steady(options);
  Fleet steady(2, 2);
  steady.Run(&for_steady, LoadOf(72, 1024, 256), seconds(60));
  Planner for_bursts(options);
  Fleet bursts(2, 2);
  for (int i = 0; i < 30; ++i) {
    bursts.Run(&for_bursts, LoadOf(200, 1024, 256), seconds(2));
    bursts.Run(&for_bursts, LoadOf(40, 1024, 256), seconds(8));
  }
  EXPECT_LT(bursts.split().prefill, steady.split().prefill) << bursts.last.reason;
  EXPECT_NEAR(steady.last.load.dispersion, 1, 0.01);
  EXPECT_GT(bursts.last.load.dispersion, 10);
  EXPECT_THAT(bursts.last.reason, HasSubstr("in bursts"));
  const int settled = bursts.changes;
  for (int i = 0; i < 30; ++i) {
    bursts.Run(&for_bursts, LoadOf(200, 1024, 256), seconds(2));
    bursts.Run(&for_bursts, LoadOf(40, 1024, 256), seconds(8));
  }
  EXPECT_EQ(bursts.changes, settled) << "it must not swing: " << bursts.last.reason;
}

// Every worker weighs prefill against its streams: a queue in front of prefill workers protects
// streams no better than aggregated workers do.
TEST(Planner, WorkersThatDoEverythingStaySoWhereTooMuchComes) {
  const double most = 100 * Headroom(LoadOf(100, 1024, 256), Card(), {0, 4}, kLimits);
  PlannerOptions options = Options();
  options.limits = kLimits;
  for (const double factor : {1.0, 1.15, 1.5, 3.0}) {
    Fleet fleet(0, 4);
    Planner planner(options);
    fleet.Run(&planner, LoadOf(factor * most, 1024, 256), seconds(60));
    EXPECT_EQ(fleet.changes, 0) << factor << ": " << fleet.last.reason;
  }
}

// Its streams would have to move, and the predicted load does not come.
TEST(Planner, NoDecodeWorkerIsTakenForALoadThatOnlySeemsToCome) {
  const double most = 100 * Headroom(LoadOf(100, 1024, 256), Card(), {0, 4}, kLimits);
  PlannerOptions options = Options();
  options.limits = kLimits;
  Fleet fleet(0, 4);
  Planner planner(options);
  fleet.Run(&planner, {}, seconds(10));
  fleet.Run(&planner, LoadOf(0.93 * most, 1024, 256), seconds(60));
  EXPECT_EQ(fleet.changes, 0) << fleet.last.reason;
}

// The home split without prefill workers is reached under low load, and in bursts.
TEST(Planner, WorkersGoHomeWhileLittleIsAskedAndInBursts) {
  PlannerOptions options = Options();
  options.limits = kLimits;
  options.home = Split{0, 4};
  options.enough = 1.15;
  Fleet little(2, 2);
  Planner for_little(options);
  little.Run(&for_little, LoadOf(20, 1024, 256), seconds(20));
  EXPECT_EQ(little.split(), (Split{0, 4})) << little.last.reason;
  EXPECT_EQ(little.changes, 2);
  Fleet steady(2, 2);
  Planner for_steady(options);
  steady.Run(&for_steady, LoadOf(100, 1024, 256), seconds(60));
  EXPECT_EQ(steady.split(), (Split{2, 2})) << steady.last.reason;
  for (int i = 0; i < 6; ++i) {
    steady.Run(&for_steady, LoadOf(250, 1024, 256), seconds(2));
    steady.Run(&for_steady, LoadOf(60, 1024, 256), seconds(8));
  }
  EXPECT_EQ(steady.split(), (Split{0, 4})) << steady.last.reason;
}

TEST(Planner, AllIdleWorkersGoHomeAtOnce) {
  PlannerOptions options = Options();
  options.home = Split{0, 8};
  Fleet fleet(4, 4);
  Planner planner(options);
  fleet.Run(&planner, {}, seconds(3));
  EXPECT_EQ(fleet.changes, 4) << fleet.last.reason;
}

TEST(Planner, ALoadThatBeginsOrEndsOrGrowsIsNoBurst) {
  Planner planner(Options());
  Fleet fleet(2, 2);
  const auto expect_none = [&](const char* what) {
    EXPECT_NEAR(fleet.last.load.dispersion, 1, 0.5) << what;
  };
  fleet.Run(&planner, {}, seconds(10));
  for (int i = 0; i < 30; ++i) {
    fleet.Run(&planner, LoadOf(90, 1024, 256), seconds(1));
    expect_none("begins");
  }
  fleet.Run(&planner, {}, seconds(5));
  expect_none("ends");
  fleet.Run(&planner, {}, seconds(60));
  for (int i = 0; i < 30; ++i) {
    fleet.Run(&planner, LoadOf(6 * i, 1024, 256), seconds(1));
    expect_none("grows");
  }
}

TEST(Planner, ARefusedWorkerIsLeftAloneAndARestartedRouterIsNoLoad) {
  Fleet fleet(3, 1);
  Planner planner(Options());
  fleet.refuses = true;
  fleet.Run(&planner, LoadOf(kMany, 64, 1024), seconds(60));
  ASSERT_GE(fleet.asked.size(), 2U) << fleet.last.reason;
  std::map<std::string, Instant> before;
  for (const auto& [at, worker] : fleet.asked) {
    const auto [last, first_time] = before.try_emplace(worker, at);
    EXPECT_TRUE(first_time || at - last->second >= 2 * Options().rest) << worker;
    last->second = at;
  }
  Planner again(Options());
  Fleet same(3, 1);
  same.takes = seconds(1000);
  same.Run(&again, LoadOf(kMany, 64, 1024), seconds(9));
  same.seen.totals = {};
  same.Run(&again, LoadOf(kMany, 64, 1024), seconds(2));
  EXPECT_LE(same.last.load.requests_per_s, 1.3 * kMany);
}

TEST(Planner, WhoCannotTakeAnotherRoleIsAskedForNothing) {
  Fleet fleet(3, 1);
  for (WorkerStatus& w : fleet.seen.workers) w.roles = {};
  Planner planner(Options());
  fleet.Run(&planner, LoadOf(kMany, 64, 1024), seconds(60));
  EXPECT_EQ(fleet.changes, 0);
  EXPECT_THAT(fleet.last.reason, HasSubstr("3P1D"));
}

TEST(Planner, NothingIsDecidedBeforeStepsWereSeen) {
  Fleet fleet(3, 1);
  for (WorkerStatus& w : fleet.seen.workers) w.fitted_steps = 31;
  Planner planner(Options());
  fleet.Run(&planner, LoadOf(kMany, 64, 1024), seconds(30));
  EXPECT_EQ(fleet.changes, 0);
  fleet.seen.workers.back().fitted_steps = 32;
  fleet.Run(&planner, LoadOf(kMany, 64, 1024), seconds(10));
  EXPECT_GT(fleet.changes, 0);
}

TEST(Planner, ASplitThatSufficesIsKeptWhereThatIsEnough) {
  const Load load = LoadOf(12, 64, 1024);
  Fleet any(3, 1);
  Planner eager(Options());
  any.Run(&eager, load, seconds(30));
  EXPECT_GT(any.changes, 0) << any.last.reason;

  PlannerOptions options = Options();
  options.enough = 1.15;
  Fleet kept(3, 1);
  Planner planner(options);
  kept.Run(&planner, load, seconds(30));
  EXPECT_EQ(kept.changes, 0) << kept.last.reason;
  kept.Run(&planner, LoadOf(kMany, 64, 1024), seconds(30));
  EXPECT_GT(kept.changes, 0) << kept.last.reason;
}

TEST(Planner, WorkersGoHomeOnceNothingIsAskedAndNothingRuns) {
  PlannerOptions options = Options();
  options.home = Split{1, 1};
  Fleet fleet(0, 2);
  Planner planner(options);
  fleet.seen.workers[0].running = 1;
  fleet.Run(&planner, {}, seconds(10));
  EXPECT_EQ(fleet.changes, 0) << "a stream runs";
  fleet.seen.workers[0].running = 0;
  fleet.Run(&planner, {}, seconds(10));
  EXPECT_EQ(fleet.split(), (Split{1, 1})) << fleet.last.reason;
  EXPECT_EQ(fleet.changes, 1);

  PlannerOptions another = Options();
  another.home = Split{2, 2};
  Fleet two(0, 2);
  Planner other(another);
  two.Run(&other, {}, seconds(10));
  EXPECT_EQ(two.changes, 0) << "there are not so many workers";
}

// A decode worker that changes serves nobody until its streams have ended.
TEST(Planner, TheOnlyOtherDecodeWorkerIsNotTakenAwayUnderALoadForALittleMore) {
  const Load load = LoadOf(9, 6000, 128);
  PlannerOptions options = Options();
  options.limits = {1500, 12};
  Fleet fleet(0, 2);
  Planner planner(options);
  fleet.Run(&planner, load, seconds(40));
  EXPECT_EQ(fleet.changes, 0) << fleet.last.reason;
}

// An aggregated worker's fit of prefill steps is poor, because they also hold decode rows. It must
// not undo at once a decision based on the costs of a prefill-only worker.
TEST(Planner, WhoTakesTheLastPrefillWorkerJudgesByTheSameCostsAfterwards) {
  const Objective limits = {300, 12};
  Machine card = Card();
  card.cost.prefill.per_token_ms *= 0.2;
  card.cost.decode.per_row_ms = card.cost.prefill.per_row_ms = 0.025;
  const Load one = LoadOf(1, 1024, 256);
  const double together = Headroom(one, card, {0, 2}, limits);
  ASSERT_GT(together, 1.1 * Headroom(one, card, {1, 1}, limits));
  card.cost.prefill.per_row_ms = 0.4;
  ASSERT_LT(Headroom(one, card, {0, 2}, limits), 0.7 * Headroom(one, card, {1, 1}, limits));
  PlannerOptions options = Options();
  options.limits = limits;
  Fleet fleet(1, 1);
  fleet.takes = milliseconds(500);
  for (WorkerStatus& w : fleet.seen.workers) w.cost = card.cost;
  Planner planner(options);
  fleet.Run(&planner, LoadOf(0.95 * together, 1024, 256), seconds(120));
  EXPECT_EQ(fleet.split(), (Split{0, 2})) << fleet.last.reason;
  EXPECT_EQ(fleet.changes, 1) << fleet.last.reason;
}

TEST(Planner, NothingIsDecidedWhileAChangeIsUnderWay) {
  Fleet fleet(3, 1);
  fleet.takes = seconds(40);
  Planner planner(Options());
  fleet.Run(&planner, LoadOf(kMany, 64, 1024), seconds(35));
  EXPECT_EQ(fleet.changes, 1) << "one of four at a time";
}

}  // namespace
}  // namespace aisp::planner
