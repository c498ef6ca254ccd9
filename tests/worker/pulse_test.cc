// When a worker sends heartbeats inside a long step, and when it stops.
#include "worker/pulse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace aisp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class PulseTest : public ::testing::Test {
 protected:
  PulseTest() { pulse_.SetLinks({LinkId(1), LinkId(2)}, milliseconds(100)); }

  // Heartbeats until `age` of a step of `rows`, asked every 10 ms.
  int Beats(int64_t rows, Duration age) {
    pulse_.StepBegins(rows, clock_.Now());
    const Instant end = clock_.Now() + age;
    int beats = 0;
    while (clock_.Now() < end) {
      clock_.Advance(milliseconds(10));
      if (pulse_.Due(clock_.Now())) ++beats;
    }
    return beats;
  }
  void Step(int64_t rows, Duration duration) {
    pulse_.StepBegins(rows, clock_.Now());
    clock_.Advance(duration);
    pulse_.StepEnds(clock_.Now());
  }

  ManualClock clock_;
  Pulse pulse_{{.incarnation = 7, .least_limit = seconds(1), .most_limit = seconds(60)}};
};

TEST_F(PulseTest, SaysNothingOutsideALongStep) {
  EXPECT_FALSE(pulse_.Due(clock_.Now()));
  EXPECT_FALSE(pulse_.InStep());
  pulse_.StepBegins(10, clock_.Now());
  clock_.Advance(milliseconds(99));
  EXPECT_FALSE(pulse_.Due(clock_.Now())) << "telemetry comes as often";
  pulse_.StepEnds(clock_.Now());
  clock_.Advance(seconds(5));
  EXPECT_FALSE(pulse_.Due(clock_.Now()));
}

TEST_F(PulseTest, BeatsInALongStepToEveryRouterWithItsAge) {
  EXPECT_EQ(Beats(1500, seconds(10)), 100);
  clock_.Advance(milliseconds(100));
  const auto beat = pulse_.Due(clock_.Now());
  ASSERT_TRUE(beat);
  EXPECT_THAT(beat->links, ::testing::ElementsAre(LinkId(1), LinkId(2)));
  const v1::Heartbeat& heartbeat = beat->message.heartbeat();
  EXPECT_EQ(heartbeat.incarnation(), 7u);
  EXPECT_EQ(heartbeat.step_age_ns(), 10'100'000'000u);
  EXPECT_EQ(heartbeat.step_expected_ns(), 0u) << "the first step: nothing is known";
}

TEST_F(PulseTest, AStepBeyondWhatItsOwnStepsMakePlausibleFallsSilent) {
  for (int i = 0; i < 100; ++i) Step(100, milliseconds(200));  // 2 ms a row
  EXPECT_EQ(Beats(1000, seconds(30)), 300) << "1000 rows are expected to take 2 s, 40 are allowed";
  EXPECT_TRUE(pulse_.Moves(clock_.Now()));
  clock_.Advance(seconds(11));
  EXPECT_FALSE(pulse_.Due(clock_.Now()));
  const Status moves = pulse_.Moves(clock_.Now());
  ASSERT_FALSE(moves);
  EXPECT_THAT(moves.error().message, ::testing::HasSubstr("1000 rows"));
}

TEST_F(PulseTest, NoStepMayTakeLongerThanTheLimitWhateverWasSeen) {
  for (int i = 0; i < 3; ++i) Step(1, seconds(30));
  EXPECT_EQ(Beats(100, seconds(60)), 600);
  clock_.Advance(seconds(1));
  EXPECT_FALSE(pulse_.Due(clock_.Now()));
}

TEST_F(PulseTest, AShortStepIsGivenTheLeastLimit) {
  for (int i = 0; i < 100; ++i) Step(100, milliseconds(1));
  EXPECT_EQ(Beats(1, seconds(2)), 10) << "for one second";
}

TEST_F(PulseTest, OfTwoStepsInFlightTheSecondBeginsWhenTheFirstEnds) {
  pulse_.StepBegins(10, clock_.Now());
  pulse_.StepBegins(10, clock_.Now());
  clock_.Advance(milliseconds(90));
  pulse_.StepEnds(clock_.Now());
  clock_.Advance(milliseconds(90));
  EXPECT_FALSE(pulse_.Due(clock_.Now()));
  pulse_.StepFailed();
  EXPECT_FALSE(pulse_.InStep());
}

}  // namespace
}  // namespace aisp
