// The Responses API: request bodies converted to chats, and response objects and their events as
// bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "api/json_text.h"
#include "api/responses_encoder.h"
#include "api/responses_request.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

ApiResult<ResponsesRequest> Parse(const std::string& body, const Value::List& before = {}) {
  return ParseResponses(body, ApiLimits{}, [&](const std::string& id) -> ApiResult<Value::List> {
    if (id == "resp_1") return before;
    return tl::unexpected(ApiError(Code::kNotFound, "no response '" + id + "'"));
  });
}

std::string MessagesOf(const ResponsesRequest& request) {
  std::string out;
  AppendJson(request.chat.messages, &out);
  return out;
}

TEST(ResponsesRequest, ItemsOfAnAssistantBecomeOneMessage) {
  const auto request = Parse(R"({"instructions": "Be kind.", "input": [
      {"role": "developer", "content": "And short."},
      {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
      {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
      {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"x\":1}"},
      {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "c2", "output": "7"},
      {"role": "assistant", "content": "Seven."}]})");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(Json::parse(MessagesOf(*request)), Json::parse(R"([
      {"role": "system", "content": "Be kind.\n\nAnd short."},
      {"role": "user", "content": "a\nb"},
      {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [
          {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
          {"id": "c2", "type": "function", "function": {"name": "g", "arguments": {}}}]},
      {"role": "tool", "tool_call_id": "c2", "content": "7", "name": "g"},
      {"role": "assistant", "content": "Seven."}])"));
  EXPECT_TRUE(request->store);
  EXPECT_EQ(request->items.size(), 8u);
}

TEST(ResponsesRequest, AConversationGoesBeforeTheInput) {
  const Value::List before = {
      Value(Value::Map{{"type", "message"}, {"role", "user"}, {"content", "one"}})};
  const auto request = Parse(
      R"({"previous_response_id": "resp_1", "instructions": "Now.", "input": "two"})", before);
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(MessagesOf(*request),
            R"([{"role":"system","content":"Now."},{"role":"user","content":"one"},)"
            R"({"role":"user","content":"two"}])");
  EXPECT_EQ(request->items.size(), 2u);
  EXPECT_EQ(Parse(R"({"previous_response_id": "resp_2", "input": "x"})").error().code,
            Code::kNotFound);
}

TEST(ResponsesRequest, ErrorsSpeakOfItsOwnFields) {
  const auto param = [](const std::string& body) {
    const auto request = Parse(body);
    return request ? "" : request.error().param;
  };
  EXPECT_EQ(param(R"({})"), "input");
  EXPECT_EQ(param(R"({"input": 7})"), "input");
  EXPECT_EQ(param(R"({"input": ["x"]})"), "input[0]");
  EXPECT_EQ(param(R"({"input": [{"role": "robot", "content": "x"}]})"), "input[0].role");
  EXPECT_EQ(param(R"({"input": "x", "max_output_tokens": -1})"), "max_output_tokens");
  EXPECT_EQ(param(R"({"input": "x", "text": {"format": {"type": "json_schema"}}})"),
            "text.format.schema");
  EXPECT_EQ(param(R"({"input": "x", "metadata": {"a": 1}})"), "metadata.a");
  EXPECT_EQ(param(R"({"input": "x", "messages": []})"), "messages");
  EXPECT_EQ(param(R"({"input": "x", "tool_choice": "required"})"), "tool_choice");
  EXPECT_EQ(param(R"({"input": [{"type": "reasoning", "encrypted_content": "x"}]})"),
            "input[0].encrypted_content");
  EXPECT_EQ(param(R"({"input": "x", "n": 2})"), "n");
  EXPECT_THAT(Parse(R"({"input": "x", "max_output_tokens": -1})").error().message,
              HasSubstr("max_output_tokens must be"));
}

TEST(ResponsesRequest, NothingIsKeptWhereTheOperatorKeepsNothing) {
  ApiLimits limits;
  limits.keeps_responses = false;
  const auto request = ParseResponses(R"({"input": "x", "store": true})", limits, {});
  ASSERT_TRUE(request);
  EXPECT_FALSE(request->store);
  EXPECT_THAT(request->echo, HasSubstr("\"store\":false"));
}

// The data of each event; its name is also on a line of its own.
std::vector<Json> Events(const std::string& stream) {
  std::vector<Json> out;
  size_t at = 0;
  while (at < stream.size()) {
    const size_t end = stream.find("\n\n", at);
    EXPECT_NE(end, std::string::npos);
    const std::string event = stream.substr(at, end - at);
    const size_t data = event.find("\ndata: ");
    out.push_back(Json::parse(event.substr(data + 7), nullptr, false));
    EXPECT_EQ(event.substr(0, data), "event: " + out.back().value("type", ""));
    EXPECT_EQ(out.back().value("sequence_number", -1), static_cast<int>(out.size()) - 1);
    at = end + 2;
  }
  return out;
}

std::vector<std::string> Types(const std::vector<Json>& events) {
  std::vector<std::string> out;
  for (const Json& event : events) out.push_back(event.value("type", ""));
  return out;
}

TEST(ResponsesEncoder, ThinkingWordsAndCallsAreItemsInTheirOrder) {
  std::string kept;
  Value::List output;
  ResponsesEncoder encoder({.id = "resp_ab",
                            .model = "m",
                            .created_s = 5,
                            .echo = "\"store\":true",
                            .keep = [&](const std::string& json, Value::List items) {
                              kept = json;
                              output = std::move(items);
                            }});
  std::string out;
  encoder.Open(0, {}, &out);
  encoder.Reasoning(0, 1, "hm", &out);
  encoder.Text(0, 2, "Hi ", {}, {}, &out);
  encoder.Text(0, 3, "you", {}, {}, &out);
  encoder.Call(0, 4, 0, "call_1", "f", &out);
  encoder.CallArguments(0, 5, 0, "{\"x\":1}", &out);
  encoder.Finish(0, 6, {"tool_calls"}, &out);
  encoder.End({7, 6, 2, 1}, &out);
  const std::vector<Json> events = Events(out);
  EXPECT_EQ(Types(events), (std::vector<std::string>{"response.created",
                                                     "response.in_progress",
                                                     "response.output_item.added",
                                                     "response.content_part.added",
                                                     "response.reasoning_text.delta",
                                                     "response.reasoning_text.done",
                                                     "response.content_part.done",
                                                     "response.output_item.done",
                                                     "response.output_item.added",
                                                     "response.content_part.added",
                                                     "response.output_text.delta",
                                                     "response.output_text.delta",
                                                     "response.output_text.done",
                                                     "response.content_part.done",
                                                     "response.output_item.done",
                                                     "response.output_item.added",
                                                     "response.function_call_arguments.delta",
                                                     "response.function_call_arguments.done",
                                                     "response.output_item.done",
                                                     "response.completed"}));
  const Json response = events.back()["response"];
  EXPECT_EQ(response["output"], Json::parse(R"([
      {"id": "rs_ab_0", "status": "completed", "type": "reasoning", "summary": [],
       "content": [{"type": "reasoning_text", "text": "hm"}]},
      {"id": "msg_ab_1", "status": "completed", "type": "message", "role": "assistant",
       "content": [{"type": "output_text", "text": "Hi you", "annotations": [], "logprobs": []}]},
      {"id": "fc_ab_2", "status": "completed", "type": "function_call", "call_id": "call_1",
       "name": "f", "arguments": "{\"x\":1}"}])"));
  EXPECT_EQ(response["usage"]["output_tokens_details"]["reasoning_tokens"], 1);
  EXPECT_EQ(Json::parse(kept), response);
  ASSERT_EQ(output.size(), 3u);
  // A stored answer's items are valid input as they are.
  EXPECT_TRUE(Parse(R"({"previous_response_id": "resp_1", "input": "x"})", output));
}

// Logprobs without text wait for it; those of reasoning and of calls are not shown.
TEST(ResponsesEncoder, LogprobsStandBesideTheTextThatTheyAreOf) {
  const auto token = [](const char* bytes, uint32_t part) {
    ChoiceLogprob out;
    out.bytes = bytes;
    out.text_part = part;
    return out;
  };
  const auto tokens = [](const Json& item) {
    std::string out;
    for (const Json& each : item["content"][0]["logprobs"]) out += each["token"];
    return out;
  };
  ResponsesEncoder stream({.id = "resp_ab", .model = "m", .echo = ""});
  const std::vector<ChoiceLogprob> all = {token("t", 0), token("a", 1), token("b", 1),
                                          token("c", 0), token("d", 2), token("e", 2)};
  std::string out;
  stream.Open(0, {}, &out);
  stream.Reasoning(0, 1, "hm", &out);
  stream.Text(0, 2, "", std::span(all).first(2), {}, &out);
  stream.Text(0, 3, "ab", std::span(all).subspan(2, 1), {}, &out);
  stream.Call(0, 4, 0, "call_1", "f", &out);
  stream.Text(0, 5, "d", std::span(all).subspan(3, 2), {}, &out);
  stream.Text(0, 6, "", std::span(all).last(1), {}, &out);
  stream.Finish(0, 6, {"tool_calls"}, &out);
  stream.End({}, &out);
  const Json streamed = Events(out).back()["response"]["output"];
  ASSERT_EQ(streamed.size(), 4u);
  EXPECT_EQ(tokens(streamed[1]), "ab");
  EXPECT_EQ(tokens(streamed[3]), "de");

  using Kind = Choice::Piece::Kind;
  Choice choice;
  choice.text = "abd";
  choice.reasoning = "hm";
  choice.calls = {{"call_1", "f", ""}};
  choice.logprobs = all;
  choice.order = {
      {Kind::kReasoning, 2, 0}, {Kind::kText, 2, 1}, {Kind::kCall}, {Kind::kText, 1, 2}};
  choice.finish_reason = "tool_calls";
  ResponsesEncoder whole({.id = "resp_ab", .model = "m", .echo = ""});
  EXPECT_EQ(Json::parse(whole.Whole({&choice, 1}, {}))["output"], streamed);
}

TEST(ResponsesEncoder, AFaultEndsWithAFailedResponseAndIsNotKept) {
  bool kept = false;
  ResponsesEncoder encoder(
      {.id = "resp_ab", .model = "m", .echo = "", .keep = [&](const std::string&, Value::List) {
         kept = true;
       }});
  std::string out;
  encoder.Fail(ApiError(Code::kUnavailable, "worker\nlost"), &out);
  const std::vector<Json> events = Events(out);
  EXPECT_EQ(Types(events), (std::vector<std::string>{"response.created", "response.in_progress",
                                                     "response.failed"}));
  EXPECT_EQ(events.back()["response"]["status"], "failed");
  EXPECT_EQ(events.back()["response"]["error"]["message"], "worker\nlost");
  EXPECT_FALSE(kept);
}

TEST(ResponsesEncoder, AWholeAnswerThatSaidNothingHasAnEmptyMessage) {
  ResponsesEncoder encoder({.id = "resp_ab", .model = "m", .echo = ""});
  Choice choice;
  choice.finish_reason = "length";
  const Json whole = Json::parse(encoder.Whole({&choice, 1}, {}));
  EXPECT_EQ(whole["status"], "incomplete");
  EXPECT_EQ(whole["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(whole["output"][0]["content"][0]["text"], "");
}

}  // namespace
}  // namespace aisp
