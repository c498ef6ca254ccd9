// Every invalid request gets an error that says what is wrong and what is allowed; keys, limits and
// paths.
#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <set>

#include "tests/e2e/conformance_api.h"
#include "tests/support/temp_files.h"

namespace aisp::e2e {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct Wrong {
  std::string path;
  std::string body;
  int status;
  std::string param;  // "": null
  std::string code;   // "": null
  std::string message;
};

std::string With(const std::string& field) {
  return "{\"prompt\":\"once\",\"max_tokens\":2," + field + "}";
}

// Long: a table of invalid requests, with the error for each.
std::vector<Wrong> WrongRequests() {
  std::vector<Wrong> all;
  const auto field = [&](const std::string& name, const std::vector<std::string>& values,
                         const std::string& message) {
    for (const std::string& value : values) {
      std::string pair = "\"" + name + "\":";
      pair += value;
      all.push_back({kCompletions, With(pair), 400, name, "", message});
    }
  };
  // Zero is allowed where the prompt is echoed.
  for (const char* most : {"max_tokens", "max_completion_tokens"}) {
    field(most, {"-1", "1.5", "\"4\"", "[]", "true", "1e30"}, "from 0 to");
    field(most, {"0"}, "at least 1 unless the prompt is asked for");
  }
  field("min_tokens", {"-1", "\"1\"", "10"}, "min_tokens");
  field("n", {"0", "-3", "100000", "0.5", "\"2\""}, "from 1 to 64");
  field("temperature", {"-0.1", "2.5", "\"hot\"", "[1]"}, "from 0 to 2");
  field("top_p", {"0", "1.1", "\"x\""}, "above 0 and at most 1");
  field("top_k", {"-2", "1.5", "\"x\""}, "from -1 to");
  field("min_p", {"-0.1", "1.1", "{}"}, "from 0 to 1");
  field("presence_penalty", {"-2.1", "2.1", "\"x\""}, "from -2 to 2");
  field("frequency_penalty", {"-2.1", "2.1", "false"}, "from -2 to 2");
  field("repetition_penalty", {"0", "-1", "11", "\"x\""}, "above 0 and at most 10");
  field("seed", {"1.5", "\"x\"", "1e40"}, "an integer");
  field("stop",
        {"5", "true", R"(["1","2","3","4","5","6","7","8","9","a","b","c","d","e","f","g","h"])"},
        "stop must be");
  field("stop_token_ids", {"5", "\"x\""}, "a list");
  field("logit_bias", {"[1]", R"({"5000":1})", R"({"-1":1})", R"({"x":1})"}, "logit_bias");
  field("logprobs", {"-1", "21", "true", "\"3\""}, "from 0 to 20");
  for (const char* flag : {"stream", "echo", "ignore_eos", "include_stop_str_in_output",
                           "skip_special_tokens", "return_token_ids"})
    field(flag, {"1", "\"true\"", "{}"}, "true or false");
  for (const char* text : {"user", "cache_salt", "model"}) field(text, {"5", "[]"}, "a string");
  field("priority", {"0.5", "\"high\"", "1e12"}, "an integer");
  field("timeout", {"0", "-1", "\"x\"", "1e9"}, "above 0 and at most 3600");
  field("stream_options", {"{\"include_usage\":true}"}, "stream");
  field("response_format", {R"({"type":"xml"})", R"({"type":"json_schema"})", "{}", "\"text\""},
        "response_format");
  field("guided_grammar", {"1", "\"root ::= (\""}, "grammar");
  field("best_of", {"3"}, "best_of is not supported");
  for (const char* unsupported : {"reasoning_effort", "chat_template"})
    field(unsupported, {"\"abc\""}, "is not supported by this server");
  field("suffix", {"\"abc\""}, "the tokenizer of 'story-7m' has none of the tokens");
  field("prompt_logprobs", {"\"abc\"", "-2", "21", "1.5"}, "prompt_logprobs must be");
  field("use_beam_search", {"true"}, "is not supported by this server");
  field("prompt", {"5", "{}", "[]", "null"}, "prompt");
  all.push_back({kCompletions, R"({"prompt":[[]]})", 400, "prompt[0]", "", "not empty"});
  all.push_back({kCompletions, R"({"prompt":[1,5000]})", 400, "prompt[1]", "", "from 0 to 4095"});
  all.push_back({kCompletions, R"({"prompt":[-1]})", 400, "prompt[0]", "", "from 0 to 4095"});
  all.push_back({kCompletions, R"({"prompt":["a",5]})", 400, "prompt[1]", "", "prompt[1]"});
  all.push_back({kCompletions, With("\"stop\":[\"\"]"), 400, "stop[0]", "", "1 to 1024 bytes"});
  all.push_back(
      {kCompletions, With("\"stop_token_ids\":[4096]"), 400, "stop_token_ids[0]", "", "4095"});
  all.push_back(
      {kCompletions, With("\"logit_bias\":{\"5\":101}"), 400, "logit_bias.5", "", "-100 to 100"});
  all.push_back(
      {kCompletions, With("\"model\":\"gpt-9\""), 404, "model", "model_not_found", "story-7m"});
  all.push_back({kCompletions, With("\"max_tokens\":5000"), 400, "max_tokens",
                 "context_length_exceeded", "lower max_tokens to"});

  const auto chat = [&](const std::string& body, const std::string& param,
                        const std::string& message) {
    all.push_back({kChat, body, 400, param, "", message});
  };
  const std::string hi = R"("messages":[{"role":"user","content":"hi"}])";
  chat("{}", "messages", "messages is missing");
  chat(R"({"messages":[]})", "messages", "must not be empty");
  chat(R"({"messages":"hi"})", "messages", "a list");
  chat(R"({"messages":["hi"]})", "messages[0]", "an object");
  chat(R"({"messages":[{"content":"hi"}]})", "messages[0].role", "role");
  chat(R"({"messages":[{"role":5,"content":"hi"}]})", "messages[0].role", "a string");
  chat(R"({"messages":[{"role":"user"}]})", "messages[0].content", "content");
  chat(R"({"messages":[{"role":"user","content":5}]})", "messages[0].content",
       "a string or a list");
  chat(R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]})",
       "messages[0].content[0]", "text only");
  chat("{" + hi + R"(,"top_logprobs":2})", "top_logprobs", "needs \"logprobs\": true");
  chat("{" + hi + R"(,"logprobs":2})", "logprobs", "true or false");
  chat("{" + hi + R"(,"tools":[{"type":"function"}]})", "tools", "tools[0] must be");
  chat("{" + hi + R"(,"tool_choice":"required"})", "tool_choice", "there are no tools");
  chat("{" + hi + R"(,"modalities":["audio"]})", "modalities", "not supported");
  chat("{" + hi + R"(,"echo":true})", "echo", "use /v1/completions");
  chat("{" + hi + R"(,"prompt":"once"})", "prompt", "use /v1/completions");
  chat("{" + hi + R"(,"regex":"a+"})", "regex", "not supported");
  chat("{" + hi + R"(,"return_tokens_as_token_ids":1})", "return_tokens_as_token_ids", "true or");
  chat("{" + hi +
           R"(,"response_format":{"type":"json_schema","json_schema":{"strict":1,"schema":{}}}})",
       "response_format.json_schema.strict", "true or false");

  const auto text = [&](const std::string& body, const std::string& message) {
    all.push_back({kCompletions, body, 400, "", "", message});
  };
  text("", "not valid JSON");
  text("[]", "must be a JSON object");
  text(R"({"prompt":)", "not valid JSON");
  text(R"({"prompt":"a"} x)", "not valid JSON");
  for (const char* number : {"NaN", "Infinity", "-Infinity", "1e999"})
    text(With(std::string("\"temperature\":") + number), "not valid JSON");
  text("{\"prompt\":\"\xff\xfe\"}", "ill-formed UTF-8");
  text(R"({"prompt":"\ud800"})", "surrogate");
  text(R"({"prompt":"\ud800A"})", "surrogate");
  text("{\"prompt\":" + std::string(100000, '[') + std::string(100000, ']') + "}",
       "deeper than 64");
  all.push_back({"/tokenize", "{}", 400, "prompt", "", "prompt is missing"});
  all.push_back({"/tokenize", R"({"prompt":"a","messages":[]})", 400, "prompt", "", "exclude"});
  all.push_back({"/detokenize", "{}", 400, "tokens", "", "tokens is missing"});
  all.push_back({"/detokenize", R"({"tokens":[9999]})", 400, "tokens[0]", "", "4095"});
  return all;
}

TEST(Conformance, EveryWrongRequestIsToldWhatIsWrongAndWhatIsAllowed) {
  Cluster cluster({.prefill = 0});
  ASSERT_TRUE(cluster.AwaitReady());
  const Api api(cluster.http());
  for (const Wrong& wrong : WrongRequests()) {
    SCOPED_TRACE(wrong.path + " " + wrong.body.substr(0, 120));
    const Answer answer = api.Send("POST", wrong.path, wrong.body);
    ASSERT_EQ(answer.status, wrong.status) << answer.body;
    const Json& error = answer.body["error"];
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_EQ(error["param"], wrong.param.empty() ? Json() : Json(wrong.param));
    EXPECT_EQ(error["code"], wrong.code.empty() ? Json() : Json(wrong.code));
    EXPECT_THAT(answer.message(), HasSubstr(wrong.message));
    EXPECT_LT(answer.message().size(), 400u);
  }
  // Unknown, empty or default values are no errors.
  for (const char* harmless :
       {R"("unknown":{"a":1})", R"("tools":[])", R"("response_format":{"type":"text"})",
        R"("best_of":1)", R"("suffix":"")", R"("guided_json":{})", R"("modalities":["text"])",
        R"("service_tier":"auto")", R"("use_beam_search":false)", R"("stream_options":null)",
        R"("length_penalty":1.0)"}) {
    EXPECT_EQ(api.Send("POST", kCompletions, With(harmless)).status, 200) << harmless;
  }
  // Fields that the server does not know are ignored, and the answer says so.
  const auto ignored = [](const Answer& answer) -> std::string {
    for (const auto& [name, value] : answer.headers) {
      if (name == "x-aisp-ignored") return value;
    }
    return "";
  };
  const std::string strange = R"("typical_p":0.5,"metadata":{"a":"b"},"x\n,y":1,"tools":[])";
  EXPECT_EQ(ignored(api.Send("POST", kCompletions, With(strange))), "typical_p, x??y");
  EXPECT_EQ(ignored(api.Send("POST", kCompletions, With("\"stream\":false"))), "");
  const std::string hi = R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":2,)";
  EXPECT_EQ(ignored(api.Send("POST", kChat, hi + R"("mirostat":2,"stream":true})")), "mirostat");
  EXPECT_EQ(ignored(api.Send("POST", "/v1/messages", hi + R"("inference_geo":"us","system":"x"})")),
            "inference_geo");
  EXPECT_EQ(ignored(api.Send("POST", "/v1/responses",
                             R"({"input":"hi","max_output_tokens":2,"tfs_z":1,"truncation":)"
                             R"("disabled","background":false,"safety_identifier":"u"})")),
            "tfs_z");
  EXPECT_EQ(ignored(api.Send("POST", "/v1/embeddings", R"({"input":"hi","color":"red"})")),
            "color");
}

TEST(Conformance, WhatIsTooLongIsRefusedSoonWithBothNumbers) {
  Cluster cluster({.prefill = 0});
  ASSERT_TRUE(cluster.AwaitReady());
  const Api api(cluster.http());
  std::string words = "once";
  for (int i = 0; i < 3000; ++i) words += " upon";
  for (const std::string& prompt : {words, std::string(1 << 20, 'a')}) {
    const auto begin = std::chrono::steady_clock::now();
    const Answer answer = api.Post(kCompletions, {{"prompt", prompt}});
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(answer.body["error"]["code"], "context_length_exceeded");
    EXPECT_THAT(answer.message(), HasSubstr("2048"));
  }
  EXPECT_THAT(api.Post(kCompletions, {{"prompt", words}}).message(), HasSubstr("3003 tokens"));

  HttpClient big = Connect(cluster.http());
  ASSERT_TRUE(big.SendRaw(
      "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 104857600\r\nX-Request-Id: "
      "big-1\r\n\r\nxxxx"));
  EXPECT_THAT(*big.ReceiveRaw(), AllOf(StartsWith("HTTP/1.1 413"), HasSubstr("x-request-id: big-1"),
                                       HasSubstr("16777216 bytes")));
  // In the error format of the path's API.
  HttpClient message = Connect(cluster.http());
  ASSERT_TRUE(message.SendRaw(
      "POST /v1/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 104857600\r\n\r\nxxxx"));
  EXPECT_THAT(*message.ReceiveRaw(),
              AllOf(StartsWith("HTTP/1.1 413"), HasSubstr("\"type\":\"request_too_large\""),
                    HasSubstr("\"request_id\":\"")));
  HttpClient wide = Connect(cluster.http());
  ASSERT_TRUE(wide.SendRaw("GET /health HTTP/1.1\r\nHost: h\r\nX: " + std::string(100000, 'a') +
                           "\r\n\r\n"));
  EXPECT_THAT(*wide.ReceiveRaw(), AllOf(StartsWith("HTTP/1.1 431"), HasSubstr("x-request-id: ")));
}

// A router refuses by predictions only after the workers' reports cover enough steps.
void AwaitPredictions(const Cluster& cluster, const Api& api) {
  constexpr int kSteps = 32;
  const std::string admin = cluster.router->Await("admin");
  const bool known = Eventually([&] {
    EXPECT_EQ(api.Send("POST", kCompletions, With(R"("max_tokens":64,"ignore_eos":true)")).status,
              200);
    const auto answer = Connect(admin).Request("GET", "/admin/workers");
    if (!answer) return false;
    const Json cost = Json::parse(answer->body, nullptr, false)["workers"][0]["cost"];
    return cost.is_object() && cost["steps"] >= kSteps;
  });
  ASSERT_TRUE(known);
}

TEST(Conformance, PathsAndMethodsAndTimeouts) {
  Cluster cluster({.prefill = 0});
  ASSERT_TRUE(cluster.AwaitReady());
  const Api api(cluster.http());
  const Answer lost = api.Send("POST", "/v1/images/generations", "{}");
  EXPECT_EQ(lost.status, 404);
  EXPECT_THAT(lost.message(), HasSubstr("/v1/chat/completions"));
  for (const char* path : {kCompletions, kChat, "/tokenize", "/detokenize"}) {
    EXPECT_EQ(api.Send("GET", path, "").status, 405) << path;
    EXPECT_EQ(api.Send("OPTIONS", path, "").status, 204) << path;
  }
  EXPECT_EQ(api.Send("OPTIONS", "*", "").status, 204);
  EXPECT_EQ(api.Send("POST", "*", "").status, 400);
  EXPECT_EQ(api.Send("POST", "/v1/models", "").status, 405);
  EXPECT_EQ(api.Send("HEAD", "/v1/models", "").status, 200);
  EXPECT_EQ(api.Send("GET", "/v1/models/story-7m", "").body["id"], "story-7m");
  EXPECT_EQ(api.Send("GET", "/v1/models/gpt-9", "").status, 404);
  EXPECT_EQ(api.Send("GET", "/version", "").status, 200);
  EXPECT_EQ(api.Send("GET", "/health", "", {{"x-request-id", "probe-1"}}).request_id, "probe-1");
  EXPECT_NE(api.Send("GET", "/health", "", {{"x-request-id", "two words"}}).request_id,
            "two words");

  const std::string long_one = With(R"("max_tokens":1900,"ignore_eos":true)");
  const Answer late = api.Send("POST", kCompletions, long_one, {{"x-request-timeout", "0.05"}});
  EXPECT_EQ(late.status, 504);
  EXPECT_EQ(late.body["error"]["code"], "deadline_exceeded");
  EXPECT_EQ(api.Send("POST", kCompletions, long_one, {{"x-request-timeout", "soon"}}).status, 400);
  AwaitPredictions(cluster, api);
  const Answer nobody = api.Send("POST", kCompletions, long_one, {{"x-slo-ttft-ms", "0.001"}});
  EXPECT_EQ(nobody.status, 429);
  EXPECT_EQ(api.Send("POST", kCompletions, long_one, {{"x-slo-tpot-ms", "-3"}}).status, 400);
  const Answer by_llm_d =
      api.Send("POST", kCompletions, long_one,
               {{"x-slo-ttft-ms", "86400000"}, {"x-llm-d-slo-ttft-ms", "0.001"}});
  EXPECT_EQ(by_llm_d.status, 429) << by_llm_d.body;
  EXPECT_EQ(api.Send("POST", kCompletions, long_one, {{"x-llm-d-slo-tpot-ms", "-3"}}).status, 400);
  EXPECT_EQ(
      api.Send("POST", kCompletions, With(R"("max_tokens":1900,"ignore_eos":true,"timeout":0.05)"))
          .status,
      504);
}

TEST(Conformance, ARequestThatIsSentAgainUnderItsKeyGetsTheSameAnswerFromAnyRouter) {
  const std::string body = With(R"("max_tokens":24,"temperature":1.2,"n":2,"ignore_eos":true)");
  const auto texts = [&](const Api& at, const std::string& key) {
    HttpHeaders headers;
    if (!key.empty()) headers.push_back({"idempotency-key", key});
    const Answer answer = at.Send("POST", kCompletions, body, headers);
    EXPECT_EQ(answer.status, 200) << answer.body.dump();
    std::vector<std::string> out;
    for (const auto& choice : answer.body["choices"]) out.push_back(choice["text"]);
    return out;
  };
  // Two clusters that do not know each other.
  Cluster first_cluster({.prefill = 0, .decode = 1}), second_cluster({.prefill = 0, .decode = 1});
  ASSERT_TRUE(first_cluster.AwaitReady());
  ASSERT_TRUE(second_cluster.AwaitReady());
  const Api one(first_cluster.http()), other(second_cluster.http());
  const auto first = texts(one, "order-66");
  EXPECT_NE(first[0], first[1]);
  EXPECT_EQ(texts(one, "order-66"), first);
  EXPECT_EQ(texts(other, "order-66"), first);
  EXPECT_NE(texts(one, "order-67"), first);
  EXPECT_NE(texts(one, ""), first);
  const Answer bad = one.Send("POST", kCompletions, body, {{"idempotency-key", "two words"}});
  EXPECT_EQ(bad.status, 400);
  EXPECT_EQ(bad.body["error"]["param"], "idempotency-key");
}

// One request at a time for each tenant.
void ExpectOneAtATime(const std::string& http) {
  HttpClient busy = Connect(http);
  const Json endless = {
      {"prompt", "Once"}, {"max_tokens", 1900}, {"ignore_eos", true}, {"stream", true}};
  ASSERT_EQ(busy.Open("POST", kCompletions, endless.dump(), {{"authorization", "Bearer sk-fox-1"}})
                ->status,
            200);
  ASSERT_TRUE(busy.NextEvent());
  const Answer refused = Api(http, "sk-fox-2").Send("POST", kCompletions, With("\"n\":1"));
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.body["error"]["code"], "rate_limit_exceeded");
  bool hinted = false;
  for (const auto& [name, value] : refused.headers) hinted |= name == "retry-after" && value == "1";
  EXPECT_TRUE(hinted);
  EXPECT_EQ(Api(http, "sk-unnamed").Send("POST", kCompletions, With("\"n\":1")).status, 200);
  busy.Close();
  EXPECT_TRUE(Eventually([&] {
    return Api(http, "sk-fox-2").Send("POST", kCompletions, With("\"n\":1")).status == 200;
  }));
}

TEST(Conformance, KeysSeparateTenantsAndNeverShow) {
  const TempFile log("keys.log");
  const TempFile keys("keys", "fox:sk-fox-1\nfox:sk-fox-2\nsk-unnamed\n");
  Process server({"serve", "--role=all", "--port=0", "--api-keys-file=" + keys.path(),
                  "--max-inflight-per-key=1"},
                 log.path());
  const std::string http = server.Await("http");
  ASSERT_NE(http, "");
  // The probes need no key.
  ASSERT_TRUE(Eventually([&] { return Connect(http).Request("GET", "/ready")->status == 200; }));
  EXPECT_EQ(Connect(http).Request("GET", "/metrics")->status, 200);
  for (const char* path : {kChat, kCompletions, "/tokenize", "/detokenize"}) {
    const Answer stranger = Api(http).Send("POST", path, "{}");
    EXPECT_EQ(stranger.status, 401) << path;
    EXPECT_EQ(stranger.body["error"]["code"], "invalid_api_key");
    EXPECT_EQ(stranger.body["error"]["type"], "authentication_error");
  }
  const Answer wrong = Api(http, "sk-fox-3").Send("GET", "/v1/models", "");
  EXPECT_EQ(wrong.status, 401);
  EXPECT_THAT(wrong.message(), Not(HasSubstr("sk-fox")));

  // Two keys of one tenant share its prefixes; another tenant, or a salt that imitates one, does
  // not.
  const Json prompt = {{"prompt", Prose(120, 8)}, {"max_tokens", 2}};
  Json salted = prompt;
  salted["cache_salt"] = "3:fox";
  EXPECT_EQ(Api(http, "sk-fox-1").Complete(prompt).cached(), 0);
  EXPECT_GT(Api(http, "sk-fox-2").Complete(prompt).cached(), 100);
  EXPECT_EQ(Api(http, "sk-unnamed").Complete(salted).cached(), 0);
  EXPECT_EQ(Api(http, "sk-unnamed").Complete(prompt).cached(), 0);
  EXPECT_GT(Api(http, "sk-unnamed").Complete(prompt).cached(), 100);

  ExpectOneAtATime(http);

  Api(http, "sk-fox-1").Send("POST", kCompletions, With("\"n\":1"), {{"x-request-id", "find-me"}});
  server.Signal(SIGTERM);
  EXPECT_EQ(server.AwaitExit(std::chrono::seconds(10)), 0);
  const std::string text = log.Read();
  EXPECT_THAT(text, Not(HasSubstr("sk-")));
  const size_t line = text.find("request answered request=find-me");
  ASSERT_NE(line, std::string::npos);
  EXPECT_THAT(
      text.substr(line, text.find('\n', line) - line),
      AllOf(HasSubstr("method=POST"), HasSubstr("path=/v1/completions"), HasSubstr("status=200"),
            HasSubstr("tenant=fox"), HasSubstr("completion_tokens=2"), HasSubstr("ttft_ms="),
            HasSubstr("duration_ms=")));
}

TEST(Conformance, AFullRouterSaysWhenToComeBack) {
  Cluster cluster({.prefill = 0, .router_flags = {"--max-inflight=1"}});
  ASSERT_TRUE(cluster.AwaitReady());
  HttpClient busy = Connect(cluster.http());
  const Json endless = {
      {"prompt", "Once"}, {"max_tokens", 1900}, {"ignore_eos", true}, {"stream", true}};
  ASSERT_EQ(busy.Open("POST", kCompletions, endless.dump())->status, 200);
  ASSERT_TRUE(busy.NextEvent());
  HttpClient other = Connect(cluster.http());
  const auto refused = other.Request("POST", kCompletions, With("\"n\":1"));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 429);
  EXPECT_EQ(refused->Header("retry-after"), "1");
}

}  // namespace
}  // namespace aisp::e2e
