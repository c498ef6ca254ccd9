// Fields of older client interfaces: whole numbers with a decimal point, functions for tools.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/request.h"

namespace aisp {
namespace {

using testing::HasSubstr;

ApiResult<ChatRequest> Chat(const std::string& field) {
  return ParseChat(R"({"messages":[{"role":"user","content":"a"}],)" + field + "}", ApiLimits());
}

TEST(OldFields, AWholeNumberMayHaveAPoint) {
  for (const auto& [field, tokens] : std::vector<std::pair<std::string, uint32_t>>{
           {"\"max_tokens\":4.0", 4}, {"\"max_tokens\":4e1", 40}, {"\"max_tokens\":4", 4}}) {
    const auto request = Chat(field);
    ASSERT_TRUE(request) << field;
    EXPECT_EQ(request->max_tokens, tokens) << field;
  }
  for (const char* field : {"4.5", "-1.0", "0.0", "1e300", "\"4\"", "true"}) {
    const auto request = Chat(std::string("\"max_tokens\":") + field);
    ASSERT_FALSE(request) << field;
    EXPECT_THAT(request.error().message, HasSubstr("an integer from")) << field;
  }
}

TEST(OldFields, AreRefusedWithWhatToSendInstead) {
  for (const auto& [field, name, instead] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {R"("functions":[{"name":"f"}])", "functions", "tools and tool_choice have replaced"},
           {R"("function_call":{"name":"f"})", "function_call", "send these"},
           {R"("store":true)", "store", "/v1/responses keeps"},
           {R"("regex":"a")", "regex", "guided_regex"},
           {R"("audio":{"voice":"x"})", "audio", "leave it out"}}) {
    const auto request = Chat(field);
    ASSERT_FALSE(request) << field;
    EXPECT_EQ(request.error().param, name);
    EXPECT_THAT(request.error().message, HasSubstr(instead)) << field;
  }
  for (const char* field : {R"("functions":[])", R"("function_call":"none")", R"("store":false)"}) {
    EXPECT_TRUE(Chat(field)) << field;
  }
}

TEST(OldFields, ACallInAMessageIsNotOverlooked) {
  const auto request = ParseChat(
      R"({"messages":[{"role":"assistant","function_call":{"name":"f","arguments":"{}"}}]})",
      ApiLimits());
  ASSERT_FALSE(request);
  EXPECT_EQ(request.error().param, "messages[0].function_call");
  EXPECT_THAT(request.error().message, HasSubstr("tool_calls"));
}

}  // namespace
}  // namespace aisp
