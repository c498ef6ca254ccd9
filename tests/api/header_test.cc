// Headers of requests, and bodies of /tokenize and /detokenize.
#include <gmock/gmock.h>

#include "api/request.h"

namespace aisp {
namespace {

using ::testing::ElementsAre;

ApiLimits Limits() {
  ApiLimits limits;
  limits.vocab_size = 100;
  return limits;
}

TEST(ParseTargetHeader, IsMillisecondsWithinADay) {
  EXPECT_EQ(*ParseTargetHeader("x-slo-ttft-ms", ""), 0);
  EXPECT_EQ(*ParseTargetHeader("x-slo-ttft-ms", "12.5"), 12.5);
  for (const char* bad : {"0", "-1", "soon", "nan", "inf", "1e9", "5ms"}) {
    const auto refused = ParseTargetHeader("x-slo-tpot-ms", bad);
    ASSERT_FALSE(refused) << bad;
    EXPECT_EQ(refused.error().param, "x-slo-tpot-ms");
  }
}

TEST(ParseClassHeader, IsOneOfThree) {
  EXPECT_EQ(*ParseClassHeader(""), std::nullopt);
  EXPECT_EQ(*ParseClassHeader("interactive"), ServiceClass::kInteractive);
  EXPECT_EQ(*ParseClassHeader("best-effort"), ServiceClass::kBestEffort);
  const auto refused = ParseClassHeader("Batch");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().param, "x-aisp-class");
}

TEST(ParseTimeoutHeader, IsSecondsWithinTheLimit) {
  EXPECT_EQ(*ParseTimeoutHeader("", Limits()), Duration());
  EXPECT_EQ(*ParseTimeoutHeader("1.5", Limits()), std::chrono::milliseconds(1500));
  for (const char* bad : {"0", "-1", "soon", "nan", "inf", "1e9", "5s"}) {
    const auto refused = ParseTimeoutHeader(bad, Limits());
    ASSERT_FALSE(refused) << bad;
    EXPECT_EQ(refused.error().param, "x-request-timeout");
  }
}

TEST(ParseTokenize, ReadsTextAndRefusesTheRest) {
  const auto r = ParseTokenize(R"({"prompt":"abc","add_special_tokens":false})", Limits());
  ASSERT_TRUE(r);
  EXPECT_EQ(r->prompt, "abc");
  EXPECT_FALSE(r->add_special_tokens);
  EXPECT_FALSE(ParseTokenize("{}", Limits()));
  EXPECT_FALSE(ParseTokenize("{\"prompt\":5}", Limits()));
  const auto chat = ParseTokenize(
      R"({"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function"}]})", Limits());
  ASSERT_TRUE(chat);
  EXPECT_FALSE(chat->add_special_tokens);
  EXPECT_EQ(chat->chat->tools.AsList().size(), 1u);
  EXPECT_EQ(ParseTokenize(R"({"messages":[],"prompt":"a"})", Limits()).error().param, "prompt");
  const auto d = ParseDetokenize(R"({"tokens":[1,2]})", Limits());
  ASSERT_TRUE(d);
  EXPECT_THAT(d->tokens, ElementsAre(1, 2));
  EXPECT_FALSE(ParseDetokenize("{}", Limits()));
  EXPECT_FALSE(ParseDetokenize(R"({"tokens":[100]})", Limits()));
}

}  // namespace
}  // namespace aisp
