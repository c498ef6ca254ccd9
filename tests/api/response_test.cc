// Answers as bytes; they must be JSON whatever the text is.
#include "api/response.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/strict_sse.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

// The JSON of one SSE event.
Json EventJson(const std::string& event) {
  const size_t data = event.find("data: ");
  EXPECT_EQ(event.substr(event.size() - 2), "\n\n");
  EXPECT_EQ(event.find('\n', data), event.size() - 2) << event;
  return Json::parse(event.substr(data + 6), nullptr, false);
}

TEST(ResponseEncoder, ChatStreamIsWrittenAsOpenAiDoes) {
  ResponseEncoder encoder(Endpoint::kChat, "chatcmpl-1", "m", 1700000000);
  std::string out;
  encoder.Open(0, {}, &out);
  EXPECT_EQ(
      out,
      "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":"
      "1700000000,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\","
      "\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n");
  out.clear();
  encoder.Text(2, 17, "Hi \"you\"", {}, {}, &out);
  EXPECT_EQ(out,
            "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":"
            "1700000000,\"model\":\"m\",\"choices\":[{\"index\":2,\"delta\":{\"content\":\"Hi "
            "\\\"you\\\"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n");
  out.clear();
  encoder.Finish(0, 18, {"stop"}, &out);
  EXPECT_EQ(out,
            "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":"
            "1700000000,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,"
            "\"finish_reason\":\"stop\"}]}\n\n");
  out.clear();
  encoder.End({}, &out);
  EXPECT_EQ(out, "data: [DONE]\n\n");
}

TEST(ResponseEncoder, CompletionStreamIsWrittenAsOpenAiDoes) {
  ResponseEncoder encoder(Endpoint::kCompletions, "cmpl-1", "m", 5, {.usage_field = true});
  std::string out;
  encoder.Open(0, {}, &out);
  EXPECT_EQ(out, "");
  encoder.Text(0, 1, "a\n", {}, {}, &out);
  EXPECT_EQ(out,
            "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":5,\"model\":"
            "\"m\",\"choices\":[{\"index\":0,\"text\":\"a\\n\",\"logprobs\":null,\"finish_reason\":"
            "null}],\"usage\":null}\n\n");
  out.clear();
  encoder.Finish(0, 2, {"length"}, &out);
  EXPECT_EQ(out,
            "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":5,\"model\":"
            "\"m\",\"choices\":[{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":"
            "\"length\"}],\"usage\":null}\n\n");
  out.clear();
  encoder.End({10, 3, 8}, &out);
  EXPECT_EQ(
      out,
      "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":5,\"model\":\"m\","
      "\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":3,\"total_tokens\":"
      "13,\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\ndata: [DONE]\n\n");
}

TEST(ResponseEncoder, EveryEventIsOneLineOfDataForTheStrictestReader) {
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions}) {
    ResponseEncoder encoder(endpoint, "c-1", "m", 5, {.usage_field = true});
    std::string out(kKeepAliveComment);
    encoder.Open(0, {}, &out);
    encoder.Text(0, 1, "a\n\r\n\n: b\u2028", {}, {}, &out);
    encoder.SetRunningUsage({1, 1, 0});
    encoder.Text(0, 2, "c", {}, {}, &out);
    encoder.Finish(0, 2, {"stop"}, &out);
    encoder.End({1, 2, 0, 0, "{\"route\":\"x\"}"}, &out);
    encoder.Fail(ApiError(Code::kInternal, "one\n\ntwo"), &out);
    const auto events = ReadStrictSse(out);
    ASSERT_TRUE(events) << events.error().message;
    EXPECT_EQ(events->size(), endpoint == Endpoint::kChat ? 8u : 7u);
    for (const std::string& event : *events)
      EXPECT_TRUE(event == "[DONE]" || Json::accept(event)) << event;
    EXPECT_EQ(events->back(), "[DONE]");
  }
}

TEST(ResponseEncoder, IdsOfEventsAreForThoseWhoAskForThem) {
  ResponseEncoder encoder(Endpoint::kChat, "c", "m", 5, {.event_ids = true});
  std::string out;
  encoder.Text(2, 17, "Hi", {}, {}, &out);
  EXPECT_THAT(out, ::testing::StartsWith("id: 2:17\ndata: {"));
  EXPECT_FALSE(ReadStrictSse(out));
}

TEST(ResponseEncoder, WholeAnswersCarryChoicesAndUsage) {
  Usage usage{4, 2, 0, 0, "{\"route\":\"local\"}"};
  ResponseEncoder chat(Endpoint::kChat, "chatcmpl-1", "m", 5);
  const std::vector<Choice> choices = {{0, "one", "stop", false, {}},
                                       {1, "two", "length", false, {}}};
  EXPECT_EQ(chat.Whole(choices, usage),
            "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":5,\"model\":\"m\","
            "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"one\","
            "\"refusal\":null},"
            "\"logprobs\":null,\"finish_reason\":\"stop\"},{\"index\":1,\"message\":{\"role\":"
            "\"assistant\",\"content\":\"two\",\"refusal\":null},\"logprobs\":null,\"finish_"
            "reason\":\"length\"}],"
            "\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":2,\"total_tokens\":6,"
            "\"prompt_tokens_details\":{\"cached_tokens\":0},\"aisp\":{\"route\":\"local\"}}}");
  usage.extension.clear();
  ResponseEncoder completions(Endpoint::kCompletions, "cmpl-1", "m", 5);
  EXPECT_EQ(
      completions.Whole(std::span(choices).first(1), usage),
      "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":5,\"model\":\"m\","
      "\"choices\":[{\"index\":0,\"text\":\"one\",\"logprobs\":null,\"finish_reason\":\"stop\"}],"
      "\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":2,\"total_tokens\":6,"
      "\"prompt_tokens_details\":{\"cached_tokens\":0}}}");
}

const std::vector<ChoiceLogprob> kLogprobs = {
    {"Hi", -0.5f, {{"Hi", -0.5f}, {"\xc3", -1.25f}}, 0},
    {"\xa9", -INFINITY, {}, 2},
};

TEST(ResponseEncoder, ChatLogprobsHaveTokensBytesAndAlternatives) {
  ResponseEncoder encoder(Endpoint::kChat, "c", "m", 5);
  std::string out;
  encoder.Text(0, 2, "Hi", kLogprobs, {}, &out);
  EXPECT_THAT(
      out,
      HasSubstr("\"logprobs\":{\"content\":[{\"token\":\"Hi\",\"logprob\":-0.5,\"bytes\":[72,"
                "105],\"top_logprobs\":[{\"token\":\"Hi\",\"logprob\":-0.5,\"bytes\":[72,105]},"
                "{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-1.25,\"bytes\":[195]}]},{\"token\":"
                "\"\xEF\xBF\xBD\",\"logprob\":-9999,\"bytes\":[169],\"top_logprobs\":[]}],"
                "\"refusal\":null}"));
  EXPECT_FALSE(EventJson(out).is_discarded());
}

TEST(ResponseEncoder, CompletionLogprobsAreParallelLists) {
  ResponseEncoder encoder(Endpoint::kCompletions, "c", "m", 5);
  const std::vector<Choice> choices = {{0, "Hi", "stop", true, kLogprobs}};
  const Json whole = Json::parse(encoder.Whole(choices, {}));
  const Json& logprobs = whole["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], Json({"Hi", "\xEF\xBF\xBD"}));
  EXPECT_EQ(logprobs["token_logprobs"], Json({-0.5, -9999}));
  EXPECT_EQ(logprobs["top_logprobs"][0]["Hi"], -0.5);
  // The drawn token is listed even if it is not among the likeliest.
  EXPECT_EQ(logprobs["top_logprobs"][1], (Json{{"\xEF\xBF\xBD", -9999}}));
  EXPECT_EQ(logprobs["text_offset"], Json({0, 2}));
}

TEST(ResponseEncoder, EscapesControlCharactersAndRepairsBrokenUtf8) {
  std::string out;
  AppendJsonString(std::string("a\0b\x1f\"\\/\b\f\n\r\t\x7f", 13), &out);
  EXPECT_EQ(out, "\"a\\u0000b\\u001f\\\"\\\\/\\b\\f\\n\\r\\t\x7f\"");
  out.clear();
  AppendJsonString("\xF0\x9F\x99\x82 \xE2\x82 \xFF\xC0\xAF\xED\xA0\x80", &out);
  const Json parsed = Json::parse(out, nullptr, false);
  ASSERT_TRUE(parsed.is_string()) << out;
  EXPECT_THAT(parsed.get<std::string>(),
              ::testing::StartsWith("\xF0\x9F\x99\x82 \xEF\xBF\xBD \xEF\xBF\xBD"));
}

TEST(ResponseEncoder, EveryByteInTextAndModelStaysInsideItsString) {
  std::string all;
  for (int c = 0; c < 256; ++c) all.push_back(static_cast<char>(c));
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions}) {
    ResponseEncoder encoder(endpoint, all, all, 5);
    std::string out;
    encoder.Text(0, 1, all, {}, {}, &out);
    const Json event = EventJson(out);
    ASSERT_TRUE(event.is_object());
    const Json& choice = event["choices"][0];
    const std::string text =
        endpoint == Endpoint::kChat ? choice["delta"]["content"] : choice["text"];
    EXPECT_EQ(text.substr(0, 128), all.substr(0, 128));
    EXPECT_TRUE(Json::accept(encoder.Whole({}, {})));
  }
}

TEST(ErrorBody, HasOpenAisShapeAndTheStatusOfItsCode) {
  EXPECT_EQ(
      ErrorBody(ApiError(Code::kInvalidArgument, "n must be \"small\"", "n")),
      "{\"error\":{\"message\":\"n must be \\\"small\\\"\",\"type\":\"invalid_request_error\","
      "\"param\":\"n\",\"code\":null}}");
  EXPECT_EQ(
      ErrorBody(ApiError(Code::kNotFound, "no such model", "model", "model_not_found")),
      "{\"error\":{\"message\":\"no such model\",\"type\":\"invalid_request_error\",\"param\":"
      "\"model\",\"code\":\"model_not_found\"}}");
  EXPECT_EQ(
      ErrorBody(413, "too large"),
      "{\"error\":{\"message\":\"too large\",\"type\":\"invalid_request_error\",\"param\":null,"
      "\"code\":null}}");
  EXPECT_EQ(HttpStatus(Code::kInvalidArgument), 400);
  EXPECT_EQ(HttpStatus(Code::kResourceExhausted), 429);
  EXPECT_EQ(HttpStatus(Code::kUnavailable), 503);
  EXPECT_EQ(HttpStatus(Code::kDeadlineExceeded), 504);
  EXPECT_EQ(HttpStatus(Code::kInternal), 500);
  EXPECT_EQ(ErrorType(429), "rate_limit_error");
  EXPECT_EQ(ErrorType(500), "server_error");
  std::string event;
  ResponseEncoder encoder(Endpoint::kChat, "c", "m", 5);
  encoder.Fail(ApiError(Error{Code::kUnavailable, "worker\nlost"}), &event);
  ASSERT_THAT(event, ::testing::EndsWith("data: [DONE]\n\n"));
  event.resize(event.size() - std::string_view("data: [DONE]\n\n").size());
  const Json json = EventJson(event);
  EXPECT_EQ(json["error"]["message"], "worker\nlost");
  EXPECT_EQ(json["error"]["code"], "service_unavailable");
}

TEST(ModelList, NamesTheModels) {
  const std::vector<ModelInfo> models = {{"a", 7, 2048}};
  EXPECT_EQ(ModelList(models),
            "{\"object\":\"list\",\"data\":[{\"id\":\"a\",\"object\":\"model\",\"created\":7,"
            "\"owned_by\":\"aisp\",\"max_model_len\":2048}]}");
  const std::vector<TokenId> tokens = {1, 2};
  EXPECT_EQ(TokenizeResponse(tokens, 9), "{\"count\":2,\"max_model_len\":9,\"tokens\":[1,2]}");
  EXPECT_EQ(DetokenizeResponse("a\"b"), "{\"prompt\":\"a\\\"b\"}");
}

// Not a benchmark, but a guard against building a JSON tree per token: the target is 2 us, a tree
// takes far more than 20.
TEST(ResponseEncoder, AChunkCostsMicroseconds) {
  ResponseEncoder encoder(Endpoint::kChat, "chatcmpl-0123456789abcdef", "some-model-name", 5);
  constexpr int kCount = 20000;
  std::string out;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCount; ++i) {
    out.clear();
    encoder.Text(0, static_cast<uint64_t>(i), " token", {}, {}, &out);
  }
  const auto elapsed = std::chrono::steady_clock::now() - start;
  const double us = std::chrono::duration<double, std::micro>(elapsed).count() / kCount;
  RecordProperty("us_per_chunk", std::to_string(us));
  EXPECT_LT(us, 20.0);
}

TEST(ResponseEncoder, TokenIdsStandBesideTheTextWhenTheyAreWanted) {
  ResponseEncoder encoder(Endpoint::kCompletions, "cmpl-1", "m", 7);
  std::string out;
  const std::vector<TokenId> ids = {5, 9};
  encoder.Text(0, 2, "Hi", {}, ids, &out);
  EXPECT_NE(out.find(R"("token_ids":[5,9])"), std::string::npos) << out;
  Choice choice;
  choice.finish_reason = "length";
  EXPECT_EQ(encoder.Whole({&choice, 1}, {}).find("token_ids"), std::string::npos);
  choice.token_ids = ids;
  EXPECT_NE(encoder.Whole({&choice, 1}, {}).find(R"("token_ids":[5,9])"), std::string::npos);
}

}  // namespace
}  // namespace aisp
