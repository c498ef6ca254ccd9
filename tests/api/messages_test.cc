// The Messages API: request bodies converted to chats, and messages and their events as bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "api/json_text.h"
#include "api/messages_encoder.h"
#include "api/messages_request.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

ApiResult<ChatRequest> Parse(const std::string& body) {
  return ParseMessages(body, ApiLimits{}, MessagesUse::kAnswer);
}

Json MessagesOf(const ChatRequest& request) {
  std::string out;
  AppendJson(request.messages, &out);
  return Json::parse(out);
}

TEST(MessagesRequest, BlocksBecomeMessagesOfAChat) {
  const auto request = Parse(R"({"max_tokens": 9, "system": [{"type": "text", "text": "Be kind."}],
      "stop_sequences": ["x"], "metadata": {"user_id": "u"}, "messages": [
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": [
          {"type": "thinking", "thinking": "hm", "signature": ""},
          {"type": "text", "text": "I look."},
          {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}}]},
      {"role": "user", "content": [
          {"type": "tool_result", "tool_use_id": "t1", "content": "no", "is_error": true},
          {"type": "text", "text": "Well?"}]}]})");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(MessagesOf(*request), Json::parse(R"([
      {"role": "system", "content": "Be kind."},
      {"role": "user", "content": "a\nb"},
      {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [
          {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]},
      {"role": "tool", "tool_call_id": "t1", "content": "Error: no", "name": "f"},
      {"role": "user", "content": "Well?"}])"));
  EXPECT_EQ(request->max_tokens, 9u);
  EXPECT_EQ(request->stop, std::vector<std::string>{"x"});
  EXPECT_EQ(request->user, "u");
  EXPECT_TRUE(request->add_generation_prompt);
}

TEST(MessagesRequest, ALastTurnOfTheAssistantIsGoneOnWith) {
  const auto request = Parse(R"({"max_tokens": 9, "messages": [
      {"role": "user", "content": "a"}, {"role": "assistant", "content": "It"}]})");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_TRUE(request->continue_final_message);
}

TEST(MessagesRequest, ToolsThinkingAndFormatAreThoseOfAChat) {
  const auto request = Parse(R"({"max_tokens": 9, "messages": [{"role": "user", "content": "a"}],
      "tools": [{"name": "f", "input_schema": {"type": "object"}, "cache_control": {}}],
      "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
      "thinking": {"type": "enabled", "budget_tokens": 5}})");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->tool_options.choice, ToolChoice::kRequired);
  EXPECT_FALSE(request->tool_options.parallel);
  EXPECT_EQ(request->thinking.budget, 5u);
  EXPECT_TRUE(request->template_variables.AsMap().Find("enable_thinking")->AsBool());
  const auto quiet = Parse(R"({"max_tokens": 9, "messages": [{"role": "user", "content": "a"}],
      "thinking": {"type": "disabled"},
      "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}})");
  ASSERT_TRUE(quiet) << quiet.error().message;
  EXPECT_FALSE(quiet->thinking.include);
  EXPECT_FALSE(quiet->template_variables.AsMap().Find("enable_thinking")->AsBool());
  EXPECT_EQ(quiet->sampling.constraint().kind(), v1::Constraint::JSON_SCHEMA);
}

TEST(MessagesRequest, ErrorsSpeakOfItsOwnFields) {
  const auto message = [](const std::string& body) {
    const auto request = Parse(body);
    return request ? "" : request.error().message;
  };
  EXPECT_THAT(message(R"({"messages": []})"), HasSubstr("max_tokens is missing"));
  EXPECT_THAT(message(R"({"max_tokens": 1})"), HasSubstr("messages is missing"));
  const std::string ask = R"("max_tokens": 8, "messages": [{"role": "user", "content": "a"}])";
  EXPECT_THAT(message("{" + ask + R"(, "stop_sequences": [7]})"), HasSubstr("stop_sequences[0]"));
  EXPECT_THAT(message("{" + ask + R"(, "response_format": {}})"),
              HasSubstr("use output_config.format"));
  EXPECT_THAT(message("{" + ask + R"(, "output_config": {"effort": "max"}})"),
              HasSubstr("output_config.effort must be"));
  EXPECT_THAT(message("{" + ask + R"(, "thinking": {"type": "enabled"}})"),
              HasSubstr("thinking.budget_tokens must be"));
  EXPECT_THAT(message("{" + ask + R"(, "thinking": {"type": "enabled", "budget_tokens": 8}})"),
              HasSubstr("less than max_tokens"));
  EXPECT_THAT(message("{" + ask + R"(, "tool_choice": {"type": "tool"}})"),
              HasSubstr("tool_choice.name"));
  EXPECT_THAT(message(R"({"max_tokens": 8, "messages": [{"role": "user", "content": [
                         {"type": "document"}]}]})"),
              HasSubstr("messages[0].content[0].type"));
  EXPECT_TRUE(ParseMessages(R"({"messages": [{"role": "user", "content": "a"}]})", ApiLimits{},
                            MessagesUse::kCount));
}

// The name and the data of each event.
std::vector<Json> Events(const std::string& stream) {
  std::vector<Json> out;
  for (size_t at = 0; at < stream.size();) {
    const size_t end = stream.find("\n\n", at);
    EXPECT_NE(end, std::string::npos);
    const std::string event = stream.substr(at, end - at);
    const size_t data = event.find("\ndata: ");
    out.push_back(Json::parse(event.substr(data + 7), nullptr, false));
    EXPECT_EQ(event.substr(0, data), "event: " + out.back().value("type", ""));
    at = end + 2;
  }
  return out;
}

TEST(MessagesEncoder, ThinkingWordsAndCallsAreBlocksInTheirOrder) {
  MessagesEncoder encoder("msg_1", "m", "req-1");
  std::string out;
  encoder.Open(0, {9, 1, 4}, &out);
  encoder.Reasoning(0, 1, "hm", &out);
  encoder.Text(0, 2, "Hi ", {}, {}, &out);
  encoder.Text(0, 3, "you", {}, {}, &out);
  encoder.Call(0, 4, 0, "t1", "f", &out);
  encoder.CallArguments(0, 5, 0, "{\"x\":", &out);
  encoder.CallArguments(0, 6, 0, "1}", &out);
  encoder.Call(0, 7, 1, "t2", "g", &out);
  encoder.Finish(0, 8, {"tool_calls"}, &out);
  encoder.End({9, 8, 4}, &out);
  const std::vector<Json> events = Events(out);
  std::string shape;
  for (const Json& event : events) {
    const std::string type = event.value("type", "");
    shape += type == "content_block_start"   ? "(" + event["content_block"].value("type", "")
             : type == "content_block_delta" ? " " + event["delta"].value("type", "")
             : type == "content_block_stop"  ? ")"
                                             : type + " ";
  }
  EXPECT_EQ(shape,
            "message_start (thinking thinking_delta)(text text_delta text_delta)(tool_use "
            "input_json_delta input_json_delta)(tool_use)message_delta message_stop ");
  EXPECT_EQ(events[0]["message"]["usage"]["input_tokens"], 5);
  EXPECT_EQ(events[0]["message"]["usage"]["cache_read_input_tokens"], 4);
  const Json& delta = events[events.size() - 2];
  EXPECT_EQ(delta["delta"]["stop_reason"], "tool_use");
  EXPECT_EQ(delta["usage"]["output_tokens"], 8);
}

TEST(MessagesEncoder, WholeMessagesHaveTheSameBlocks) {
  MessagesEncoder encoder("msg_1", "m", "req-1");
  Choice choice;
  choice.reasoning = "hm";
  choice.text = "Hi";
  choice.calls = {{"t1", "f", "{\"x\":1}"}, {"t2", "g", "{\"cut"}};
  choice.finish_reason = "length";
  const Json whole = Json::parse(encoder.Whole({&choice, 1}, {9, 8, 4}));
  EXPECT_EQ(whole["content"], Json::parse(R"([
      {"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "Hi"},
      {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}},
      {"type": "tool_use", "id": "t2", "name": "g", "input": {}}])"));
  EXPECT_EQ(whole["stop_reason"], "max_tokens");
  EXPECT_EQ(whole["stop_sequence"], nullptr);
  Choice silent;
  silent.finish_reason = "stop";
  silent.stop = ".";
  const Json stopped = Json::parse(encoder.Whole({&silent, 1}, {}));
  EXPECT_EQ(stopped["content"], Json::parse(R"([{"type": "text", "text": ""}])"));
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], ".");
}

TEST(MessagesEncoder, ErrorsAreInItsOwnShape) {
  EXPECT_EQ(Json::parse(MessagesErrorBody(ApiError(Code::kUnavailable, "a\nb"), "req-1")),
            Json::parse(R"({"type": "error", "request_id": "req-1",
                            "error": {"type": "overloaded_error", "message": "a\nb"}})"));
  EXPECT_THAT(MessagesErrorBody(ApiError(Code::kResourceExhausted, "x"), ""),
              HasSubstr("rate_limit_error"));
  EXPECT_THAT(MessagesErrorBody(ApiError(Code::kInternal, "x"), ""), HasSubstr("api_error"));
  MessagesEncoder encoder("msg_1", "m", "req-1");
  std::string out;
  encoder.Fail(ApiError(Code::kDeadlineExceeded, "late"), &out);
  EXPECT_EQ(Events(out).at(0)["error"]["type"], "timeout_error");
}

TEST(MessagesModels, AreListedInAnthropicsShape) {
  const std::vector<ModelInfo> models = {{"m", 86400, 2048, ""}, {"a", 86400, 2048, "m"}};
  const Json list = Json::parse(MessagesModelList(models));
  EXPECT_EQ(list["data"][0], Json::parse(R"({"type": "model", "id": "m", "display_name": "m",
            "created_at": "1970-01-02T00:00:00Z", "max_input_tokens": 2048})"));
  EXPECT_EQ(list["first_id"], "m");
  EXPECT_EQ(list["last_id"], "a");
  EXPECT_EQ(list["has_more"], false);
}

TEST(MessagesEncoder, BlocksStandInTheirOrder) {
  using Kind = Choice::Piece::Kind;
  Choice choice;
  choice.text = "Well.Done.";
  choice.calls = {{"c1", "f", "{\"x\":1}"}};
  choice.order = {{Kind::kText, 5, 1}, {Kind::kCall}, {Kind::kText, 5, 2}};
  choice.finish_reason = "tool_calls";
  const Json whole = Json::parse(MessagesEncoder("msg_1", "m", "r").Whole({&choice, 1}, {}));
  ASSERT_EQ(whole["content"].size(), 3u);
  EXPECT_EQ(whole["content"][0]["text"], "Well.");
  EXPECT_EQ(whole["content"][1]["input"], Json({{"x", 1}}));
  EXPECT_EQ(whole["content"][2]["text"], "Done.");
}

}  // namespace
}  // namespace aisp
