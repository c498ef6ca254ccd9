// Chunks of servers parsed into deltas: text, counts, errors, and what a stream lacks.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "loadgen/chunk_reader.h"
#include "loadgen/http_backend.h"
#include "net/sse_reader.h"

namespace aisp::loadgen {
namespace {

using ::testing::HasSubstr;

class Heard final : public BackendListener {
 public:
  void OnResent() override {}
  void OnRoute(std::string_view) override {}
  void OnDelta(const Delta& delta) override {
    text += UnescapeJson(delta.raw_text);
    outputs += delta.has_output ? 1 : 0;
    if (delta.finished) finish = delta.finish_reason;
  }
  void OnUsage(const UsageCounts& counts) override { usage = counts; }
  void OnEnd(const Ending&) override {}

  std::string text, finish;
  int outputs = 0;
  UsageCounts usage;
};

constexpr const char* kCompletion =
    "data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"text\":\"One \\\"\",\"logprobs\":null,"
    "\"finish_reason\":null}]}\n\n"
    ": keep-alive\n\n"
    "data: {\"choices\":[{\"index\":0,\"text\":\"caf\\u00e9 "
    "\\ud83e\\udd8a\",\"finish_reason\":null}]}\r\n\r\n"
    "data:{\"choices\":[{\"text\":\"\",\"index\":0,\"finish_reason\":\"length\"}]}\n\n"
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":5,"
    "\"prompt_tokens_details\":{\"cached_tokens\":3},"
    "\"aisp\":{\"route\":\"decode=a\",\"queue_ms\":1.5,\"draft\":{\"accepted\":9}}}}\n\n"
    "data: [DONE]\n\n";

TEST(Stream, IsReadAlikeWhereverItIsCut) {
  const std::string_view bytes = kCompletion;
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    Heard heard;
    StreamReader stream(&heard, 1);
    SseReader events;
    for (const auto piece : {bytes.substr(0, cut), bytes.substr(cut)}) {
      events.Feed(piece);
      for (;;) {
        const auto event = events.Next();
        ASSERT_TRUE(event);
        if (!*event) break;
        if (!(*event)->data.empty()) stream.OnData((*event)->data);
      }
    }
    ASSERT_EQ(stream.Problem(), "") << cut;
    ASSERT_EQ(heard.text, "One \"caf\u00e9 \U0001F98A") << cut;
    ASSERT_EQ(heard.outputs, 2) << cut;
    ASSERT_EQ(heard.finish, "length");
    ASSERT_EQ(heard.usage.completion_tokens, 5);
    ASSERT_EQ(heard.usage.cached_tokens, 3);
    ASSERT_EQ(heard.usage.server, (ServerValues{{"queue_ms", 1.5}, {"draft.accepted", 9}}));
  }
}

TEST(Stream, WithoutFinishReasonOrDoneIsTruncated) {
  Heard heard;
  StreamReader no_finish(&heard, 1);
  no_finish.OnData(R"({"choices":[{"index":0,"text":"a","finish_reason":null}]})");
  no_finish.OnData("[DONE]");
  EXPECT_THAT(no_finish.Problem(), HasSubstr("no finish_reason"));
  StreamReader no_done(&heard, 1);
  no_done.OnData(R"({"choices":[{"index":0,"text":"a","finish_reason":"stop"}]})");
  EXPECT_THAT(no_done.Problem(), HasSubstr("[DONE]"));
  StreamReader one_of_two(&heard, 2);
  one_of_two.OnData(R"({"choices":[{"index":0,"text":"a","finish_reason":"stop"}]})");
  one_of_two.OnData("[DONE]");
  EXPECT_THAT(one_of_two.Problem(), HasSubstr("no finish_reason"));
}

TEST(Stream, AnErrorEventIsAFailureInWhateverForm) {
  for (const char* event : {R"({"error":{"message":"worker \"d\" died","type":"x"}})",
                            R"({"error":"worker \"d\" died"})",
                            R"({"object":"error","message":"worker \"d\" died","code":500})"}) {
    Heard heard;
    StreamReader stream(&heard, 1);
    stream.OnData(event);
    stream.OnData(R"({"choices":[{"index":0,"text":"a","finish_reason":"stop"}]})");
    stream.OnData("[DONE]");
    EXPECT_THAT(stream.Problem(), HasSubstr("worker \"d\" died")) << event;
    EXPECT_EQ(heard.text, "");
  }
}

TEST(Stream, ReadsChatsReasoningAndToolCalls) {
  Heard heard;
  StreamReader stream(&heard, 1);
  stream.OnData(
      R"({"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]})");
  EXPECT_EQ(heard.outputs, 0);
  stream.OnData(R"({"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]})");
  stream.OnData(R"({"choices":[{"index":0,"delta":{"content":"Hi","tool_calls":[{"index":0}]}}]})");
  stream.OnData(
      R"({"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null,"error":null})");
  stream.OnData("[DONE]");
  EXPECT_EQ(stream.Problem(), "");
  EXPECT_EQ(heard.text, "Hi");
  EXPECT_EQ(heard.outputs, 2);
}

TEST(Stream, TokenIdsAreOutputToo) {
  Heard heard;
  StreamReader stream(&heard, 1);
  stream.OnData(R"({"choices":[{"index":0,"text":"","token_ids":[5,6],"finish_reason":null}]})");
  EXPECT_EQ(heard.outputs, 1);
}

TEST(ChunkReader, AgreesWithAFullParserOnEveryPrefixOfAChunk) {
  const std::string whole =
      R"( {"a":[1,-2.5e3,{"b":"x\\\"y"}],"choices":[{"index":0,"text":"t\u00fc","finish_reason":null}],"u":null} )";
  Chunk chunk;
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    const std::string text = whole.substr(0, cut);
    const bool valid = nlohmann::json::parse(text, nullptr, false).is_object();
    EXPECT_EQ(ReadChunk(text, &chunk), valid) << text;
  }
  EXPECT_FALSE(ReadChunk("[]", &chunk));
  EXPECT_FALSE(ReadChunk(std::string(1000, '['), &chunk));
  EXPECT_FALSE(ReadChunk("{\"a\":" + std::string(1000, '[') + "}", &chunk));
}

TEST(ChunkReader, TakesTheNumbersOfAnObjectAndWhatIsWithin) {
  EXPECT_EQ(
      ReadNumbers(R"({"a":1,"b":"2","c":{"d":-3.5,"e":{"f":1e3}},"g":[4],"h":null,"i":true})"),
      (ServerValues{{"a", 1}, {"c.d", -3.5}, {"c.e.f", 1000}}));
  EXPECT_TRUE(ReadNumbers("{\"a\":1").empty());
  EXPECT_TRUE(ReadNumbers("7").empty());
}

TEST(ChunkReader, UnescapesAsAFullParserDoes) {
  for (const char* raw : {R"(plain)", R"(\n\t\r\b\f\/\\\")", R"(\u0041\u00df\u20ac)",
                          R"(\ud83d\ude00 tail)", R"(ß direct)"}) {
    const auto expected = nlohmann::json::parse("\"" + std::string(raw) + "\"").get<std::string>();
    EXPECT_EQ(UnescapeJson(raw), expected) << raw;
  }
  EXPECT_EQ(UnescapeJson(R"(\ud83d alone)"), "\uFFFD alone");
  EXPECT_EQ(UnescapeJson(R"(cut \u12)"), R"(cut \u12)");
}

TEST(RequestBodies, AreWhatTheServerIsAsked) {
  Options options;
  options.temperature = 0;
  options.ignore_eos = true;
  options.extra_body = R"({"n":2,"seed":5})";
  PromptMaker prompts;
  prompts.vocab = 100;
  WorkItem item;
  item.parts = {{1, 3}};
  item.output_tokens = 9;
  const RequestBodies bodies(options, "m");
  EXPECT_EQ(bodies.choices(), 2u);
  const auto json = nlohmann::json::parse(bodies.Make(item, prompts));
  EXPECT_EQ(json["model"], "m");
  EXPECT_EQ(json["prompt"].size(), 3u);
  EXPECT_EQ(json["max_tokens"], 9);
  EXPECT_EQ(json["stream"], true);
  EXPECT_EQ(json["stream_options"]["include_usage"], true);
  EXPECT_EQ(json["ignore_eos"], true);
  EXPECT_EQ(json["n"], 2);
  EXPECT_EQ(json["seed"], 5);
  options.endpoint = "/v1/chat/completions";
  options.extra_body = R"({"max_completion_tokens":4})";
  item = {};
  item.text = "Say \"hi\"";
  const auto chat = nlohmann::json::parse(RequestBodies(options, "m").Make(item, prompts));
  EXPECT_EQ(chat["messages"][0]["role"], "user");
  EXPECT_EQ(chat["messages"][0]["content"], "Say \"hi\"");
  EXPECT_FALSE(chat.contains("max_tokens"));
  EXPECT_EQ(chat["max_completion_tokens"], 4);
}

}  // namespace
}  // namespace aisp::loadgen
