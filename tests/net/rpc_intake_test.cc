// Which call may have its message read and which call is ended for another, by the test's own
// clock.
#include "net/rpc_intake.h"

#include <gmock/gmock.h>

namespace aisp {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Instant kStart = Instant{} + std::chrono::seconds(100);
constexpr Duration kAlmost = RpcIntake::kPatience - milliseconds(1);

class RpcIntakeTest : public ::testing::Test {
 protected:
  Status Begin(RpcIntake::Call call, const std::string& party, Duration at) {
    return intake_.Begin(call, party, kStart + at, [this, call](const Error& why) {
      EXPECT_EQ(why.code, Code::kResourceExhausted);
      given_up_.push_back(call);
    });
  }

  RpcIntake intake_{{.reading = 4, .reading_per_party = 2, .bytes = 100}};
  std::vector<RpcIntake::Call> given_up_;
};

TEST_F(RpcIntakeTest, WhoMayStillBeHonestKeepsItsPlaceAndTheNextIsRefused) {
  ASSERT_TRUE(Begin(1, "a", Duration{}));
  ASSERT_TRUE(Begin(2, "a", milliseconds(1)));
  const Status refused = Begin(3, "a", kAlmost);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kResourceExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("(2 of one client)"));
  EXPECT_THAT(given_up_, IsEmpty());
  EXPECT_EQ(intake_.reading(), 2u);
}

TEST_F(RpcIntakeTest, TheOldestGivesWayWhenItHadItsTime) {
  ASSERT_TRUE(Begin(1, "a", milliseconds(1)));
  ASSERT_TRUE(Begin(2, "a", Duration{}));
  EXPECT_TRUE(Begin(3, "a", RpcIntake::kPatience));
  EXPECT_THAT(given_up_, ElementsAre(2));
  EXPECT_EQ(intake_.reading(), 2u);
}

TEST_F(RpcIntakeTest, WithAllPlacesTakenThePartyWithMostGivesWay) {
  ASSERT_TRUE(Begin(1, "a", Duration{}));
  ASSERT_TRUE(Begin(2, "b", milliseconds(1)));
  ASSERT_TRUE(Begin(3, "b", milliseconds(2)));
  ASSERT_TRUE(Begin(4, "c", milliseconds(3)));
  const Status refused = Begin(5, "d", kAlmost);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("(4)"));
  EXPECT_TRUE(Begin(5, "d", RpcIntake::kPatience + milliseconds(1)));
  EXPECT_THAT(given_up_, ElementsAre(2));
}

TEST_F(RpcIntakeTest, AWholeMessageFreesItsPlaceAndCountsByItsBytesUntilTheEnd) {
  ASSERT_TRUE(Begin(1, "a", Duration{}));
  ASSERT_TRUE(Begin(2, "a", Duration{}));
  ASSERT_TRUE(intake_.Whole(1, 60));
  EXPECT_TRUE(Begin(3, "a", Duration{}));
  const Status full = intake_.Whole(2, 60);
  ASSERT_FALSE(full);
  EXPECT_THAT(full.error().message, HasSubstr("100 bytes"));
  intake_.End(1);
  intake_.End(1);
  EXPECT_TRUE(intake_.Whole(3, 100));
}

}  // namespace
}  // namespace aisp
