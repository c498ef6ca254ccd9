// Small bodies that could be expensive to parse or to answer: the work must be linear in the body's
// size, and what an error quotes of it is bounded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "api/json_text.h"
#include "api/messages_request.h"
#include "api/request.h"
#include "api/responses_request.h"
#include "tests/support/sanitized.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;

// CPU time of this thread, because the machine may be busy with other work.
double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// "begin" followed by many unknown names.
std::string Wide(std::string body, size_t names) {
  for (size_t i = 0; i < names; ++i) body += ",\"k" + std::to_string(i) + "\":1";
  return body + "}";
}

ApiResult<ResponsesRequest> ParseResponse(const std::string& body) {
  return ParseResponses(body, ApiLimits{},
                        [](const std::string&) -> ApiResult<Value::List> { return Value::List(); });
}

TEST(HostileBody, AHundredThousandUnknownNamesAreReadInLinearTime) {
  constexpr size_t kNames = 100'000;
  const double begin = CpuSeconds();
  const auto message =
      ParseMessages(Wide(R"({"max_tokens":1,"messages":[{"role":"user","content":"a"}])", kNames),
                    ApiLimits{}, MessagesUse::kAnswer);
  ASSERT_TRUE(message) << message.error().message;
  EXPECT_EQ(message->ignored.size(), kNames);
  const auto response = ParseResponse(Wide(R"({"input":"a")", kNames));
  ASSERT_TRUE(response) << response.error().message;
  EXPECT_EQ(response->chat.ignored.size(), kNames);
  EXPECT_LT(CpuSeconds() - begin, 5 * kSlowerUnderSanitizers)
      << "it was 20 s where each name was looked for in a list";
}

// One round of libstdc++'s string hash for eight bytes, and its inverse.
constexpr uint64_t kMultiplier = 0xc6a4a7935bd1e995;
uint64_t Mix(uint64_t word) {
  word *= kMultiplier;
  return (word ^ word >> 47) * kMultiplier;
}
uint64_t Unmix(uint64_t word) {
  uint64_t inverse = kMultiplier;  // each of Newton's steps doubles the correct bits
  for (int i = 0; i < 5; ++i) inverse *= 2 - kMultiplier * inverse;
  word *= inverse;
  return (word ^ word >> 47) * inverse;
}

// Two pairs of words, each of which differs only in the highest bit of its round's result. Two such
// pairs in a row collide in the hash, whatever is around them.
struct Twins {
  std::string one, other;
};
std::vector<Twins> FindTwins(size_t count) {
  std::vector<Twins> out;
  const auto bytes_of = [](uint64_t word) {
    std::string bytes(sizeof(word), '\0');
    std::memcpy(bytes.data(), &word, sizeof(word));
    return bytes;
  };
  const auto ascii = [](const std::string& bytes) {
    return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c > 0; });
  };
  for (uint64_t i = 1; out.size() < count; ++i) {
    const uint64_t word = Mix(i) & 0x7F7F7F7F7F7F7F7F;
    std::string one = bytes_of(word);
    std::string other = bytes_of(Unmix(Mix(word) ^ uint64_t{1} << 63));
    if (ascii(one) && ascii(other)) out.push_back({std::move(one), std::move(other)});
  }
  return out;
}

TEST(HostileBody, NamesWhoseHashesCollideAreReadLikeOthers) {
  constexpr size_t kBits = 14;
  const std::vector<Twins> twins = FindTwins(2 * kBits);
  std::vector<std::string> keys = {""};
  for (size_t bit = 0; bit < kBits; ++bit) {
    std::vector<std::string> longer;
    for (const std::string& key : keys) {
      longer.push_back(key + twins[2 * bit].one + twins[2 * bit + 1].one);
      longer.push_back(key + twins[2 * bit].other + twins[2 * bit + 1].other);
    }
    keys = std::move(longer);
  }
  EXPECT_EQ(std::hash<std::string>()(keys.front()), std::hash<std::string>()(keys.back()))
      << "another hash of strings: the keys no longer test anything";
  std::string body = R"({"prompt":"a","x":{"a":1)";
  for (const std::string& key : keys) {
    body.push_back(',');
    AppendJsonString(key, &body);
    body += ":1";
  }
  const double begin = CpuSeconds();
  const auto parsed = ParseCompletion(body + "}}", ApiLimits{});
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_LT(CpuSeconds() - begin, 0.5 * kSlowerUnderSanitizers);
}

TEST(HostileBody, AnErrorQuotesLittleOfALongName) {
  const std::string name(4 << 20, 'k');
  const std::vector<std::string> bodies = {
      R"({"prompt":"a","structured_outputs":{")" + name + R"(":5}})",
      R"({"prompt":"a","logit_bias":{")" + std::string(name.size(), '0') + R"(5":"x"}})"};
  std::vector<ApiError> errors;
  for (const std::string& body : bodies) {
    const auto refused = ParseCompletion(body, ApiLimits{});
    ASSERT_FALSE(refused);
    errors.push_back(refused.error());
  }
  const auto refused = ParseResponse(R"({"input":"a","metadata":{")" + name + R"(":5}})");
  ASSERT_FALSE(refused);
  errors.push_back(refused.error());
  for (const ApiError& error : errors) {
    EXPECT_LT(error.message.size(), 500u);
    EXPECT_LT(error.param.size(), 257u);
  }
  EXPECT_THAT(errors[0].message, HasSubstr("json, json_object, regex, choice and grammar are"));
  // Whatever causes the error, the hint is at its end and stays there.
  const ApiError any(Error{Code::kInvalidArgument, "bad: " + name + "; leave it out"});
  EXPECT_EQ(any.message.size(), ApiError::kMostMessageBytes);
  EXPECT_THAT(any.message, ::testing::EndsWith("; leave it out"));
}

TEST(CutMiddle, KeepsBeginningAndEnd) {
  EXPECT_EQ(CutMiddle("abcdefgh", 8), "abcdefgh");
  EXPECT_EQ(CutMiddle("abcdefghi", 8), "ab...ghi");
  // Never half a character, and no longer than allowed.
  EXPECT_EQ(CutMiddle("a\xE2\x82\xAC"
                      "defghijk",
                      9),
            "a...ijk");
  EXPECT_EQ(CutMiddle("abcdefgh\xE2\x82\xACk", 9), "abc...k");
  EXPECT_EQ(CutMiddle(std::string(100, '\x80'), 20).size(), 14u) << "no text, yet bounded";
}

}  // namespace
}  // namespace aisp
