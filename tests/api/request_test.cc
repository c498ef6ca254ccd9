// Bodies of the OpenAI API: what is read, and what is refused with which message.
#include "api/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace aisp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ApiLimits Limits() {
  ApiLimits limits;
  limits.vocab_size = 100;
  return limits;
}

// A completion body with `fields` beside the prompt.
std::string Completion(const std::string& fields) {
  return "{\"prompt\":\"p\"" + (fields.empty() ? "" : "," + fields) + "}";
}
std::string Chat(const std::string& fields) {
  return "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]" +
         (fields.empty() ? "" : "," + fields) + "}";
}

CompletionRequest Parsed(const std::string& fields) {
  auto request = ParseCompletion(Completion(fields), Limits());
  EXPECT_TRUE(request) << fields << ": " << (request ? "" : request.error().message);
  return request ? *request : CompletionRequest{};
}
ChatRequest ParsedChat(const std::string& body) {
  auto request = ParseChat(body, Limits());
  EXPECT_TRUE(request) << body << ": " << (request ? "" : request.error().message);
  return request ? *request : ChatRequest{};
}

TEST(ParseCompletion, ReadsEveryField) {
  const CompletionRequest r = Parsed(R"(
      "model":"m","stream":true,"stream_options":{"include_usage":true},"max_tokens":7,"min_tokens":3,
      "temperature":0.5,"top_p":0.25,"top_k":40,"min_p":0.125,"seed":42,"n":2,
      "presence_penalty":-1.5,"frequency_penalty":1.5,"repetition_penalty":1.25,
      "stop":["a","b"],"stop_token_ids":[5,99],"ignore_eos":true,"include_stop_str_in_output":true,
      "skip_special_tokens":false,"logit_bias":{"3":-100,"17":2.5},"logprobs":5,
      "user":"u","cache_salt":"salt","priority":-3,"timeout":1.5)");
  EXPECT_EQ(r.model, "m");
  EXPECT_TRUE(r.stream);
  EXPECT_TRUE(r.include_usage);
  EXPECT_EQ(r.max_tokens, 7u);
  EXPECT_EQ(r.min_tokens, 3u);
  EXPECT_EQ(r.n, 2u);
  EXPECT_EQ(r.sampling.temperature(), 0.5f);
  EXPECT_EQ(r.sampling.top_p(), 0.25f);
  EXPECT_EQ(r.sampling.top_k(), 40);
  EXPECT_EQ(r.sampling.min_p(), 0.125f);
  EXPECT_EQ(r.sampling.seed(), 42u);
  EXPECT_EQ(r.sampling.presence_penalty(), -1.5f);
  EXPECT_EQ(r.sampling.frequency_penalty(), 1.5f);
  EXPECT_EQ(r.sampling.repetition_penalty(), 1.25f);
  EXPECT_EQ(r.sampling.num_logprobs(), 5);
  EXPECT_EQ(r.sampling.logit_bias().at(3), -100.0f);
  EXPECT_EQ(r.sampling.logit_bias().at(17), 2.5f);
  EXPECT_THAT(r.stop, ElementsAre("a", "b"));
  EXPECT_THAT(r.stop_token_ids, ElementsAre(5, 99));
  EXPECT_TRUE(r.ignore_eos);
  EXPECT_TRUE(r.include_stop_in_output);
  EXPECT_FALSE(r.skip_special_tokens);
  EXPECT_EQ(r.user, "u");
  EXPECT_EQ(r.cache_salt, "salt");
  EXPECT_EQ(r.priority, -3);
  EXPECT_EQ(r.timeout, std::chrono::milliseconds(1500));
}

TEST(ParseCompletion, AbsentAndNullFieldsTakeTheDefaults) {
  for (const std::string fields :
       {"",
        R"("model":null,"stream":null,"stream_options":null,"max_tokens":null,"temperature":null,
              "top_p":null,"top_k":null,"seed":null,"n":null,"stop":null,"stop_token_ids":null,
              "logit_bias":null,"logprobs":null,"user":null,"timeout":null,"echo":null,
              "response_format":null,"best_of":null,"suffix":null,"unknown":{"a":[1]})"}) {
    const CompletionRequest r = Parsed(fields);
    EXPECT_EQ(r.model, "");
    EXPECT_FALSE(r.stream);
    EXPECT_EQ(r.max_tokens, std::nullopt);
    EXPECT_EQ(r.n, 1u);
    EXPECT_EQ(r.sampling.temperature(), 1.0f);
    EXPECT_EQ(r.sampling.top_p(), 1.0f);
    EXPECT_EQ(r.sampling.top_k(), 0);
    EXPECT_EQ(r.sampling.repetition_penalty(), 1.0f);
    EXPECT_EQ(r.sampling.seed(), 0u);
    EXPECT_EQ(r.sampling.num_logprobs(), -1);
    EXPECT_TRUE(r.stop.empty());
    EXPECT_TRUE(r.skip_special_tokens);
    EXPECT_EQ(r.timeout, Duration());
  }
}

TEST(ParseCompletion, TheCheckpointsSamplingDefaultsStandInForAbsentFieldsOnly) {
  ApiLimits limits = Limits();
  limits.sampling_defaults.temperature = 0.6f;
  limits.sampling_defaults.top_k = 20;
  limits.sampling_defaults.top_p = 0.95f;
  const auto r = ParseCompletion(Completion("\"top_k\":-1"), limits);
  ASSERT_TRUE(r);
  EXPECT_EQ(r->sampling.temperature(), 0.6f);
  EXPECT_EQ(r->sampling.top_p(), 0.95f);
  EXPECT_EQ(r->sampling.top_k(), 0);
  EXPECT_EQ(r->sampling.min_p(), 0.0f);
}

TEST(ParseCompletion, ASeedOfZeroIsASeed) {
  EXPECT_EQ(Parsed("\"seed\":0").sampling.seed(), kSeedZero);
  EXPECT_EQ(Parsed("\"seed\":-1").sampling.seed(), UINT64_MAX);
}

TEST(ParseCompletion, MaxCompletionTokensComesBeforeMaxTokens) {
  EXPECT_EQ(Parsed("\"max_tokens\":3,\"max_completion_tokens\":5").max_tokens, 5u);
  EXPECT_EQ(Parsed("\"max_completion_tokens\":5").max_tokens, 5u);
}

TEST(ParseCompletion, TakesAllFourKindsOfPrompt) {
  const auto prompts = [](const std::string& prompt) {
    auto r = ParseCompletion("{\"prompt\":" + prompt + "}", Limits());
    EXPECT_TRUE(r) << prompt;
    return r ? r->prompts : std::vector<Prompt>{};
  };
  using Tokens = std::vector<TokenId>;
  EXPECT_THAT(prompts("\"\""), ElementsAre(Prompt("")));
  EXPECT_THAT(prompts("[\"a\",\"b\"]"), ElementsAre(Prompt("a"), Prompt("b")));
  EXPECT_THAT(prompts("[0,1,99]"), ElementsAre(Prompt(Tokens{0, 1, 99})));
  EXPECT_THAT(prompts("[[1],[2,3]]"), ElementsAre(Prompt(Tokens{1}), Prompt(Tokens{2, 3})));
}

struct Refused {
  std::string fields;
  std::string param;
  std::string message;  // a part of the error message
};

class RefusedField : public ::testing::TestWithParam<Refused> {};

TEST_P(RefusedField, IsNamedWithItsValueAndTheLimit) {
  const Refused& refused = GetParam();
  for (const bool chat : {false, true}) {
    const std::string body = chat ? Chat(refused.fields) : Completion(refused.fields);
    ApiError error;
    if (chat) {
      const auto r = ParseChat(body, Limits());
      ASSERT_FALSE(r) << body;
      error = r.error();
    } else {
      const auto r = ParseCompletion(body, Limits());
      ASSERT_FALSE(r) << body;
      error = r.error();
    }
    EXPECT_EQ(error.code, Code::kInvalidArgument);
    EXPECT_EQ(error.param, refused.param) << body;
    EXPECT_THAT(error.message, HasSubstr(refused.message)) << body;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Common, RefusedField,
    ::testing::Values(
        Refused{"\"model\":3", "model", "model must be a string, but is 3"},
        Refused{"\"stream\":\"yes\"", "stream", "stream must be true or false, but is \"yes\""},
        Refused{"\"stream\":true,\"stream_options\":[]", "stream_options", "must be an object"},
        Refused{"\"stream\":true,\"stream_options\":{\"include_usage\":1}",
                "stream_options.include_usage", "must be true or false, but is 1"},
        Refused{"\"stream_options\":{}", "stream_options", "needs \"stream\": true"},
        Refused{"\"max_tokens\":0", "max_tokens", "1"},
        Refused{"\"max_tokens\":1.5", "max_tokens", "but is 1.5"},
        Refused{"\"max_tokens\":\"5\"", "max_tokens", "but is \"5\""},
        Refused{"\"max_completion_tokens\":-1", "max_completion_tokens", "but is -1"},
        Refused{"\"max_tokens\":99999999999", "max_tokens", "but is 99999999999"},
        Refused{"\"min_tokens\":-1", "min_tokens", "from 0 to"},
        Refused{"\"min_tokens\":9,\"max_tokens\":8", "min_tokens", "8, but is 9"},
        Refused{"\"temperature\":2.1", "temperature", "a number from 0 to 2, but is 2.1"},
        Refused{"\"temperature\":-0.1", "temperature", "but is -0.1"},
        Refused{"\"temperature\":\"hot\"", "temperature", "but is \"hot\""},
        Refused{"\"temperature\":true", "temperature", "but is true"},
        Refused{"\"top_p\":0", "top_p", "a number above 0 and at most 1, but is 0"},
        Refused{"\"top_p\":1.01", "top_p", "but is 1.01"},
        Refused{"\"top_k\":-2", "top_k", "from -1 to"},
        Refused{"\"top_k\":1.5", "top_k", "but is 1.5"},
        Refused{"\"min_p\":2", "min_p", "from 0 to 1, but is 2"},
        Refused{"\"seed\":0.5", "seed", "an integer"},
        Refused{"\"speculation\":\"on\"", "speculation", "\"off\" or"},
        Refused{"\"speculation\":{}", "speculation", "but is an object"},
        Refused{"\"speculation\":{\"method\":\"ngram\"}", "speculation",
                "has no member \"method\""},
        Refused{"\"speculation\":{\"num_speculative_tokens\":65}",
                "speculation.num_speculative_tokens", "from 0 to 64, but is 65"},
        Refused{"\"seed\":[1]", "seed", "but is a list of 1"},
        Refused{"\"n\":0", "n", "from 1 to 64, but is 0"}, Refused{"\"n\":65", "n", "but is 65"},
        Refused{"\"presence_penalty\":-2.5", "presence_penalty", "from -2 to 2"},
        Refused{"\"frequency_penalty\":{}", "frequency_penalty", "but is an object"},
        Refused{"\"repetition_penalty\":0", "repetition_penalty", "above 0"},
        Refused{"\"stop\":5", "stop", "a string or a list of strings, but is 5"},
        Refused{"\"stop\":\"\"", "stop", "a string of 1 to 1024 bytes"},
        Refused{"\"stop\":[\"a\",7]", "stop[1]", "but is 7"},
        Refused{"\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\",\"i\",\"j\",\"k\",\"l\","
                "\"m\",\"n\",\"o\",\"p\",\"q\"]",
                "stop", "at most 16 items, but is a list of 17"},
        Refused{"\"stop_token_ids\":[1,100]", "stop_token_ids[1]",
                "a token id from 0 to 99, but is 100"},
        Refused{"\"stop_token_ids\":7", "stop_token_ids", "a list, but is 7"},
        Refused{"\"ignore_eos\":1", "ignore_eos", "true or false"},
        Refused{"\"skip_special_tokens\":1", "skip_special_tokens", "true or false"},
        Refused{"\"include_stop_str_in_output\":1", "include_stop_str_in_output", "true or false"},
        Refused{"\"logit_bias\":[1]", "logit_bias", "an object, but is a list of 1"},
        Refused{"\"logit_bias\":{\"x\":1}", "logit_bias", "from 0 to 99, but is \"x\""},
        Refused{"\"logit_bias\":{\"100\":1}", "logit_bias", "but is \"100\""},
        Refused{"\"logit_bias\":{\"5\":101}", "logit_bias.5", "from -100 to 100, but is 101"},
        Refused{"\"logit_bias\":{\"5\":\"much\"}", "logit_bias.5", "but is \"much\""},
        Refused{"\"user\":5", "user", "a string"},
        Refused{"\"cache_salt\":5", "cache_salt", "a string"},
        Refused{"\"priority\":\"high\"", "priority", "an integer"},
        Refused{"\"timeout\":0", "timeout", "above 0 and at most 3600"},
        Refused{"\"timeout\":3601", "timeout", "but is 3601"},
        Refused{"\"response_format\":{\"type\":\"xml\"}", "response_format", "json_schema"},
        Refused{"\"response_format\":{\"type\":\"json_schema\"}", "response_format", "is missing"},
        Refused{"\"guided_choice\":[]", "guided_choice", "1 to 4096"},
        Refused{"\"guided_regex\":\"a\",\"guided_json\":{}", "guided_regex", "give one"},
        Refused{"\"guided_json\":{},\"min_tokens\":2", "min_tokens", "beside a constraint"},
        Refused{"\"structured_outputs\":{\"structural_tag\":\"x\"}",
                "structured_outputs.structural_tag", "not supported"},
        Refused{"\"response_format\":\"json\"", "response_format", "an object"},
        Refused{"\"guided_grammar\":1", "guided_grammar", "a grammar"},
        Refused{"\"best_of\":3", "best_of", "equal to n"},
        Refused{"\"prompt_embeds\":\"AAAA\"", "prompt_embeds", "not supported"},
        Refused{"\"guided_whitespace_pattern\":\" *\"", "guided_whitespace_pattern", "supported"},
        Refused{"\"use_beam_search\":true", "use_beam_search", "not supported"}));

TEST(ParseCompletion, SaysWhereMessagesAreTaken) {
  const auto r = ParseCompletion(R"({"prompt":"a","messages":[{}]})", Limits());
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().param, "messages");
  EXPECT_THAT(r.error().message, HasSubstr("use /v1/chat/completions"));
}

TEST(ParseCompletion, NamesTheFieldsThatItDoesNotKnow) {
  const auto r = ParseCompletion(
      R"({"prompt":"a","typical_p":1,"metadata":{"a":"b"},"nothing":null,"seed":3,"stop":[]})",
      Limits());
  ASSERT_TRUE(r);
  EXPECT_EQ(r->ignored, std::vector<std::string>{"typical_p"});
  EXPECT_TRUE(r->add_special_tokens);
  EXPECT_FALSE(ParseCompletion(R"({"prompt":"a","add_special_tokens":false})", Limits())
                   ->add_special_tokens);
  EXPECT_TRUE(ParsedChat(Chat("\"add_special_tokens\":true")).add_special_tokens);
  EXPECT_TRUE(ParsedChat(Chat("\"return_tokens_as_token_ids\":true")).tokens_as_ids);
}

TEST(ParseCompletion, RefusesWhatOnlyCompletionsHave) {
  const auto param = [](const std::string& body) {
    const auto r = ParseCompletion(body, Limits());
    return r ? "accepted" : r.error().param;
  };
  EXPECT_EQ(param("{}"), "prompt");
  EXPECT_EQ(param("{\"prompt\":null}"), "prompt");
  EXPECT_EQ(param("{\"prompt\":5}"), "prompt");
  EXPECT_EQ(param("{\"prompt\":[]}"), "prompt");
  EXPECT_EQ(param("{\"prompt\":[1,\"a\"]}"), "prompt[1]");
  EXPECT_EQ(param("{\"prompt\":[1,-1]}"), "prompt[1]");
  EXPECT_EQ(param("{\"prompt\":[1,100]}"), "prompt[1]");
  EXPECT_EQ(param("{\"prompt\":[[1],[]]}"), "prompt[1]");
  EXPECT_EQ(param("{\"prompt\":[[1],[1,2.5]]}"), "prompt[1][1]");
  EXPECT_EQ(param("{\"prompt\":[\"a\",{}]}"), "prompt[1]");
  EXPECT_EQ(param(Completion("\"echo\":1")), "echo");
  EXPECT_EQ(param(Completion("\"suffix\":3")), "suffix");
  EXPECT_EQ(param(Completion("\"suffix\":\"x\",\"echo\":true")), "suffix");
  EXPECT_EQ(param(Completion("\"max_tokens\":0")), "max_tokens");
  EXPECT_EQ(param(Completion("\"max_tokens\":0,\"logprobs\":2")), "max_tokens");
  EXPECT_EQ(param(Completion("\"prompt_logprobs\":21")), "prompt_logprobs");
  EXPECT_EQ(param(Completion("\"prompt_logprobs\":1,\"stream\":true")), "prompt_logprobs");
  EXPECT_EQ(param(Completion("\"prompt_logprobs\":1,\"echo\":true,\"logprobs\":1")),
            "prompt_logprobs");
  EXPECT_EQ(param(Completion("\"echo\":true,\"logprobs\":1,\"stream\":true,\"n\":2")), "n");
  EXPECT_EQ(param(Completion("\"logprobs\":21")), "logprobs");
  EXPECT_EQ(param(Completion("\"logprobs\":true")), "logprobs");
  EXPECT_EQ(param("{\"prompt\":[\"a\",\"b\",\"c\"],\"n\":22}"), "n");
  std::string many = "{\"prompt\":[\"x\"";
  for (int i = 0; i < 64; ++i) many += ",\"x\"";
  EXPECT_EQ(param(many + "]}"), "prompt");
}

TEST(ParseCompletion, RefusesWhatIsNoJsonObject) {
  for (const std::string body :
       {"", "hello", "[]", "\"x\"", "{\"prompt\":\"p\"", "{\"prompt\":\"p\"} x", "{\"prompt\":NaN}",
        "{\"prompt\":\"p\",\"temperature\":Infinity}", "{\"prompt\":\"p\",\"temperature\":1e999}",
        "{\"prompt\":\"\xff\"}", "{\"prompt\":\"\\ud800\"}", "{'prompt':'p'}", "{\"a\":01}"}) {
    const auto r = ParseCompletion(body, Limits());
    ASSERT_FALSE(r) << body;
    EXPECT_EQ(r.error().code, Code::kInvalidArgument);
    EXPECT_THAT(r.error().message, HasSubstr("JSON")) << body;
  }
}

TEST(ParseCompletion, RefusesDeepNestingAtOnce) {
  const std::string deep = "{\"prompt\":\"p\",\"x\":" + std::string(5'000'000, '[');
  const auto r = ParseCompletion(deep, Limits());
  ASSERT_FALSE(r);
  EXPECT_THAT(r.error().message, HasSubstr("nested deeper than 64 levels"));
}

TEST(ParseCompletion, IsLinearInTheNumberOfKeys) {
  std::string body = "{\"prompt\":\"p\"";
  for (int i = 0; i < 200'000; ++i) body += ",\"k" + std::to_string(i) + "\":0";
  EXPECT_TRUE(ParseCompletion(body + "}", Limits()));
}

TEST(ParseCompletion, TheLastOfRepeatedKeysCounts) { EXPECT_EQ(Parsed("\"n\":2,\"n\":3").n, 3u); }

const Value& Message(const ChatRequest& r, size_t i, std::string_view key) {
  return *r.messages.AsList().at(i).AsMap().Find(key);
}

TEST(ParseChat, KeepsMessagesForTheTemplate) {
  const ChatRequest r = ParsedChat(R"({"messages":[
      {"role":"system","content":"be brief"},
      {"role":"user","name":"Ann","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]},
      {"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function",
          "function":{"name":"f","arguments":"{\"b\":1,\"a\":[2]}"}}]},
      {"role":"tool","tool_call_id":"c1","content":"3"}]})");
  EXPECT_EQ(Message(r, 0, "content").AsString(), "be brief");
  EXPECT_EQ(Message(r, 1, "content").AsString(), "one\ntwo");
  EXPECT_EQ(Message(r, 1, "name").AsString(), "Ann");
  EXPECT_TRUE(Message(r, 2, "content").IsNone());
  const Value& call = Message(r, 2, "tool_calls").AsList().at(0);
  const Value& arguments = *call.AsMap().Find("function")->AsMap().Find("arguments");
  ASSERT_TRUE(arguments.IsMap());
  EXPECT_EQ(arguments.AsMap().begin()->first, "b");  // in the client's order
  EXPECT_EQ(Message(r, 3, "tool_call_id").AsString(), "c1");
  EXPECT_TRUE(r.add_generation_prompt);
  EXPECT_TRUE(r.tools.IsNone());
}

TEST(ParseChat, ReadsLogprobsAndTemplateVariables) {
  EXPECT_EQ(ParsedChat(Chat("")).sampling.num_logprobs(), -1);
  EXPECT_EQ(ParsedChat(Chat("\"logprobs\":true")).sampling.num_logprobs(), 0);
  EXPECT_EQ(ParsedChat(Chat("\"logprobs\":true,\"top_logprobs\":4")).sampling.num_logprobs(), 4);
  const ChatRequest r =
      ParsedChat(Chat("\"tools\":[],\"tool_choice\":\"auto\",\"chat_template_kwargs\":"
                      "{\"enable_thinking\":false}"));
  EXPECT_TRUE(r.tools.IsNone());
  EXPECT_FALSE(r.template_variables.AsMap().Find("enable_thinking")->AsBool());
  EXPECT_TRUE(ParsedChat(Chat("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
                              "\"tool_choice\":\"none\""))
                  .tools.IsNone());
  EXPECT_FALSE(ParsedChat(Chat("\"continue_final_message\":true")).add_generation_prompt);
}

TEST(ParseChat, RefusesWhatOnlyChatHas) {
  const auto param = [](const std::string& body) {
    const auto r = ParseChat(body, Limits());
    return r ? "accepted" : r.error().param;
  };
  EXPECT_EQ(param("{}"), "messages");
  EXPECT_EQ(param("{\"messages\":[]}"), "messages");
  EXPECT_EQ(param("{\"messages\":\"hi\"}"), "messages");
  EXPECT_EQ(param("{\"messages\":[5]}"), "messages[0]");
  EXPECT_EQ(param("{\"messages\":[{\"content\":\"x\"}]}"), "messages[0].role");
  EXPECT_EQ(param("{\"messages\":[{\"role\":5,\"content\":\"x\"}]}"), "messages[0].role");
  EXPECT_EQ(param("{\"messages\":[{\"role\":\"user\"}]}"), "messages[0].content");
  EXPECT_EQ(param("{\"messages\":[{\"role\":\"user\",\"content\":5}]}"), "messages[0].content");
  EXPECT_EQ(param("{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}"),
            "messages[0].content[0]");
  EXPECT_EQ(param("{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}"),
            "messages[0].content[0].text");
  EXPECT_EQ(param(Chat("\"logprobs\":5")), "logprobs");
  EXPECT_EQ(param(Chat("\"top_logprobs\":2")), "top_logprobs");
  EXPECT_EQ(param(Chat("\"logprobs\":true,\"top_logprobs\":21")), "top_logprobs");
  EXPECT_EQ(param(Chat("\"tools\":{}")), "tools");
  EXPECT_EQ(param(Chat("\"tools\":[{\"type\":\"function\"}]")), "tools");
  EXPECT_EQ(param(Chat("\"tool_choice\":\"required\"")), "tool_choice");
  EXPECT_EQ(param(Chat("\"tool_choice\":{\"type\":\"function\"}")), "tool_choice");
  EXPECT_EQ(param(Chat("\"chat_template_kwargs\":1")), "chat_template_kwargs");
  EXPECT_EQ(param(Chat("\"add_generation_prompt\":true,\"continue_final_message\":true")),
            "continue_final_message");
}

TEST(ParseCompletion, WhatChangesTheAnswerIsRefusedByNameUnlessItSaysTheDefault) {
  for (const char* name : {"audio", "reasoning_effort", "store", "documents"}) {
    const auto refused =
        ParseCompletion(Completion(std::string("\"") + name + "\":\"x\""), Limits());
    ASSERT_FALSE(refused) << name;
    EXPECT_EQ(refused.error().param, name);
  }
  for (const char* fields :
       {R"("suffix":"")", R"("store":false)", R"("modalities":["text"])", R"("length_penalty":1)",
        R"("spaces_between_special_tokens":true)", R"("bad_words":[])", R"("service_tier":"auto")",
        R"("verbosity":"medium")"}) {
    EXPECT_TRUE(ParseCompletion(Completion(fields), Limits())) << fields;
  }
}

TEST(ParseCompletion, ThePromptMayBeAllThatIsAskedFor) {
  for (const char* fields :
       {R"("max_tokens":0,"echo":true)", R"("max_tokens":0,"echo":true,"logprobs":3)",
        R"("max_tokens":0,"prompt_logprobs":0)"}) {
    const auto request = ParseCompletion(Completion(fields), Limits());
    ASSERT_TRUE(request) << request.error().message;
    EXPECT_EQ(request->max_tokens, 0u);
  }
  EXPECT_EQ(ParseCompletion(Completion(R"("suffix":"x")"), Limits())->suffix, "x");
}

constexpr char kTools[] =
    R"("tools":[{"type":"function","function":{"name":"get_weather","strict":true,"parameters":)"
    R"({"type":"object"}}},{"type":"function","function":{"name":"now"}}])";

TEST(ParseChat, ToolsAndTheirChoiceAreRead) {
  ChatRequest r = ParsedChat(Chat(kTools));
  ASSERT_EQ(r.tool_options.tools.size(), 2u);
  EXPECT_EQ(r.tool_options.tools[0].name, "get_weather");
  EXPECT_TRUE(r.tool_options.tools[0].strict);
  EXPECT_TRUE(r.tool_options.tools[1].parameters.IsNone());
  EXPECT_EQ(r.tool_options.choice, ToolChoice::kAuto);
  EXPECT_TRUE(r.tool_options.parallel);
  EXPECT_EQ(r.tools.AsList().size(), 2u);
  const std::string tools = kTools;
  r = ParsedChat(Chat(tools + R"(,"tool_choice":"required","parallel_tool_calls":false)"));
  EXPECT_EQ(r.tool_options.choice, ToolChoice::kRequired);
  EXPECT_FALSE(r.tool_options.parallel);
  r = ParsedChat(Chat(tools + R"(,"tool_choice":{"type":"function","function":{"name":"now"}})"));
  EXPECT_EQ(r.tool_options.choice, ToolChoice::kNamed);
  EXPECT_EQ(r.tool_options.named, "now");
  r = ParsedChat(Chat(R"("reasoning_effort":"low","thinking_token_budget":7,)"
                      R"("include_reasoning":false)"));
  EXPECT_EQ(r.thinking.effort, "low");
  EXPECT_EQ(r.thinking.budget, 7u);
  EXPECT_FALSE(r.thinking.include);
}

TEST(ParseChat, SomeOfTheToolsMayBeAllowed) {
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}],)";
  const auto parse = [&](const std::string& allowed) {
    return ParseChat(
        Chat(tools + R"("tool_choice":{"type":"allowed_tools","allowed_tools":)" + allowed + "}"),
        Limits());
  };
  const auto one =
      parse(R"({"mode":"required","tools":[{"type":"function","function":{"name":"g"}}]})");
  ASSERT_TRUE(one) << one.error().message;
  EXPECT_EQ(one->tool_options.choice, ToolChoice::kRequired);
  ASSERT_EQ(one->tool_options.tools.size(), 1u);
  EXPECT_EQ(one->tool_options.tools[0].name, "g");
  EXPECT_TRUE(one->tool_options.some);
  EXPECT_EQ(one->tools.AsList().size(), 2u);
  for (const char* bad :
       {R"({"mode":"any","tools":[{"function":{"name":"g"}}]})", R"({"tools":[]})", "{}",
        R"({"tools":[{"function":{"name":"h"}}]})", R"({"tools":["g"]})"}) {
    const auto refused = parse(bad);
    ASSERT_FALSE(refused) << bad;
    EXPECT_TRUE(refused.error().param.starts_with("tool_choice")) << refused.error().param;
  }
}

TEST(ParseChat, AnObjectMayHaveASchemaBesideItsType) {
  for (const char* name : {"schema", "response_schema"}) {
    const auto parsed =
        ParseChat(Chat(R"("response_format":{"type":"json_object",")" + std::string(name) +
                       R"(":{"type":"object","maxProperties":2}})"),
                  Limits());
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(parsed->sampling.constraint().kind(), v1::Constraint::JSON_SCHEMA);
    EXPECT_THAT(parsed->sampling.constraint().text(), testing::HasSubstr("maxProperties"));
  }
}

TEST(ParseChat, ToolsThatCannotBeHadAreRefusedByName) {
  const std::string tools = kTools;
  const auto refused = [](const std::string& fields) {
    const auto parsed = ParseChat(Chat(fields), Limits());
    return parsed ? std::string() : parsed.error().param + ": " + parsed.error().message;
  };
  EXPECT_THAT(refused(tools + R"(,"tool_choice":{"type":"function","function":{"name":"no"}})"),
              testing::HasSubstr("none of the tools"));
  EXPECT_THAT(refused(R"("tools":[{"type":"web_search"}])"), testing::HasSubstr("tools[0]"));
  EXPECT_THAT(refused(R"("tools":[{"type":"function","function":{"name":"a b"}}])"),
              testing::HasSubstr("64 letters"));
  EXPECT_EQ(refused(tools + R"(,"force_finish":true)"), "");
  EXPECT_THAT(refused(tools + R"(,"tool_choice":"none","force_finish":true)"),
              testing::HasSubstr("with a constraint, or with tools"));
  EXPECT_EQ(refused(tools + R"(,"guided_regex":"a")"), "");
  EXPECT_THAT(refused(R"("reasoning_effort":"huge")"), testing::HasSubstr("one of none"));
  EXPECT_THAT(refused(R"("tools":[{"type":"function","function":{"name":"f"}},)"
                      R"({"type":"function","function":{"name":"f"}}])"),
              testing::HasSubstr("twice"));
}

}  // namespace
}  // namespace aisp
