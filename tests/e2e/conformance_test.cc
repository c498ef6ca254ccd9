// OpenAI's API against real processes: every parameter has the effect that its name promises, and
// every wrong request is told what is wrong with it.
#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <set>

#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"
#include "tests/support/strict_sse.h"
#include "tests/support/temp_files.h"

namespace aisp::e2e {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kCompletions = "/v1/completions";
constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kPrompt = "Once upon a time there was a fox";

struct Answer {
  int status = 0;
  Json body;
  std::string request_id;
  HttpHeaders headers;

  std::string message() const { return body.contains("error") ? body["error"]["message"] : ""; }
  const Json& choice(size_t i = 0) const { return body["choices"][i]; }
  std::string text(size_t i = 0) const {
    const Json& c = choice(i);
    return c.contains("text") ? c["text"] : c["message"]["content"];
  }
  int tokens() const { return body["usage"]["completion_tokens"]; }
  int cached() const { return body["usage"]["prompt_tokens_details"]["cached_tokens"]; }
};

// A client of one server, for whole answers and for streams.
class Api {
 public:
  explicit Api(std::string address, std::string key = "")
      : address_(std::move(address)), key_(std::move(key)) {}

  Answer Send(const std::string& method, const std::string& path, const std::string& body,
              HttpHeaders headers = {}) const {
    HttpClient client = Connect(address_);
    if (!key_.empty()) headers.emplace_back("authorization", "Bearer " + key_);
    const auto got = client.Request(method, path, body, headers);
    Answer out;
    EXPECT_TRUE(got) << method << " " << path << ": " << got.error().message;
    if (!got) return out;
    out.status = got->status;
    out.body = Json::parse(got->body, nullptr, false);
    out.request_id = std::string(got->Header("x-request-id"));
    out.headers = got->headers;
    EXPECT_NE(out.request_id, "") << path << " is answered without an x-request-id";
    return out;
  }
  Answer Post(const std::string& path, const Json& body) const {
    return Send("POST", path, body.dump());
  }
  // Greedy completion of kPrompt with `changes`.
  Answer Complete(const Json& changes = Json::object()) const {
    Json body = {{"prompt", kPrompt}, {"temperature", 0}, {"max_tokens", 24}};
    body.update(changes);
    Answer out = Post(kCompletions, body);
    EXPECT_EQ(out.status, 200) << changes << " " << out.message();
    return out;
  }
  // As the strictest client reads it: an event is one line of data.
  std::vector<SseEvent> Stream(const std::string& path, const Json& body) const {
    HttpClient client = Connect(address_);
    const auto head = OpenStream(client, path, body, {});
    EXPECT_TRUE(head && head->status == 200);
    std::vector<SseEvent> events;
    const auto raw = client.ReadRest();
    const auto read = ReadStrictSse(raw ? *raw : "");
    EXPECT_TRUE(raw && read) << (read ? "" : read.error().message);
    for (const std::string& data : read ? *read : std::vector<std::string>())
      events.push_back({"", "", data});
    return events;
  }
  // With the ids that a client has asked for.
  std::vector<SseEvent> StreamWithIds(const std::string& path, const Json& body) const {
    HttpClient client = Connect(address_);
    const auto head = OpenStream(client, path, body, {{"x-aisp-event-ids", "true"}});
    EXPECT_TRUE(head && head->status == 200);
    std::vector<SseEvent> events;
    for (auto event = client.NextEvent(); event && *event; event = client.NextEvent())
      events.push_back(**event);
    return events;
  }

 private:
  Result<HttpAnswer> OpenStream(HttpClient& client, const std::string& path, Json body,
                                HttpHeaders headers) const {
    body["stream"] = true;
    if (!key_.empty()) headers.emplace_back("authorization", "Bearer " + key_);
    return client.Open("POST", path, body.dump(), headers);
  }

  const std::string address_;
  const std::string key_;
};

std::string TextOf(const std::vector<SseEvent>& events) {
  std::string text;
  for (const SseEvent& event : events) {
    if (event.data == "[DONE]") continue;
    const Json parsed = Json::parse(event.data);
    for (const Json& choice : parsed["choices"]) text += choice["text"];
  }
  return text;
}

TEST(Conformance, SamplingParametersDoWhatTheirNamesPromise) {
  Cluster cluster({.prefill = 0});
  ASSERT_TRUE(cluster.AwaitReady());
  const Api api(cluster.http());
  const std::string greedy = api.Complete().text();
  EXPECT_EQ(api.Complete().text(), greedy);

  const Json hot = {{"temperature", 1.5}, {"seed", 11}};
  const std::string drawn = api.Complete(hot).text();
  EXPECT_EQ(api.Complete(hot).text(), drawn) << "a seed is repeatable";
  EXPECT_NE(api.Complete({{"temperature", 1.5}, {"seed", 12}}).text(), drawn);
  EXPECT_NE(api.Complete({{"temperature", 1.5}}).text(),
            api.Complete({{"temperature", 1.5}}).text())
      << "without a seed every answer is another";
  EXPECT_EQ(api.Complete({{"temperature", 1.5}, {"seed", 0}}).text(),
            api.Complete({{"temperature", 1.5}, {"seed", 0}}).text())
      << "0 is a seed";
  EXPECT_NE(drawn, greedy);

  // Each of these leaves only the likeliest token.
  for (const Json& only : {Json{{"top_k", 1}}, Json{{"top_p", 1e-6}}, Json{{"min_p", 1.0}}}) {
    Json body = hot;
    body.update(only);
    EXPECT_EQ(api.Complete(body).text(), greedy) << only;
  }
  // And these change nothing.
  EXPECT_EQ(
      api.Complete({{"temperature", 1.5}, {"seed", 11}, {"top_k", -1}, {"top_p", 1}, {"min_p", 0}})
          .text(),
      drawn);
}

TEST(Conformance, BiasesForceAndBanTokens) {
  Cluster cluster({.prefill = 0});
  ASSERT_TRUE(cluster.AwaitReady());
  const Api api(cluster.http());
  const Json ids = api.Complete({{"return_token_ids", true}}).choice()["token_ids"];
  ASSERT_EQ(ids.size(), 24u);
  const std::string first = std::to_string(ids[0].get<int>());
  const Json forced =
      api.Complete({{"logit_bias", {{"300", 100}}}, {"return_token_ids", true}}).choice();
  EXPECT_EQ(std::set<int>(forced["token_ids"].begin(), forced["token_ids"].end()),
            std::set<int>{300});
  const Json banned =
      api.Complete({{"logit_bias", {{first, -100}}}, {"return_token_ids", true}}).choice();
  for (const Json& id : banned["token_ids"]) EXPECT_NE(id, ids[0]);
}

// Logprobs are those of the model, before penalties: so what the penalties make of them can be
// computed here.
TEST(Conformance, PenaltiesChangeOutputsAsComputed) {
  Cluster cluster({.prefill = 0});
  ASSERT_TRUE(cluster.AwaitReady());
  const Api api(cluster.http());
  const std::string plain = api.Complete({{"max_tokens", 120}}).text();
  struct Case {
    double presence, frequency;
  };
  for (const Case& c : {Case{2, 0}, Case{0, 2}, Case{1, 0.5}, Case{-2, 0}}) {
    const Answer answer = api.Complete({{"max_tokens", 120},
                                        {"presence_penalty", c.presence},
                                        {"frequency_penalty", c.frequency},
                                        {"logprobs", 20}});
    EXPECT_NE(answer.text(), plain);
    std::map<std::string, int> count;
    const Json& logprobs = answer.choice()["logprobs"];
    for (size_t i = 0; i < logprobs["tokens"].size(); ++i) {
      const std::string chosen = logprobs["tokens"][i];
      const Json& top = logprobs["top_logprobs"][i];
      const auto score = [&](const std::string& token) {
        const int n = count.count(token) != 0 ? count[token] : 0;
        return top[token].get<double>() - (n > 0 ? c.presence : 0) - c.frequency * n;
      };
      if (top.contains(chosen)) {
        for (const auto& [token, value] : top.items())
          EXPECT_LE(score(token), score(chosen) + 1e-4) << "position " << i << " " << token;
      }
      ++count[chosen];
    }
  }
  const auto distinct = [](const Answer& answer) {
    const Json& ids = answer.choice()["token_ids"];
    return std::set<int>(ids.begin(), ids.end()).size();
  };
  const Json wide = {{"max_tokens", 120}, {"ignore_eos", true}, {"return_token_ids", true}};
  Json penalised = wide;
  penalised["repetition_penalty"] = 3.0;
  EXPECT_GT(distinct(api.Complete(penalised)), distinct(api.Complete(wide)));
}

TEST(Conformance, LengthsAndStopsEndAnAnswerWhereTheySay) {
  Cluster cluster({.prefill = 0});
  ASSERT_TRUE(cluster.AwaitReady());
  const Api api(cluster.http());
  const Answer plain = api.Complete({{"return_token_ids", true}});
  EXPECT_EQ(plain.tokens(), 24);
  EXPECT_EQ(plain.choice()["finish_reason"], "length");
  EXPECT_EQ(api.Complete({{"max_tokens", nullptr}}).tokens(), 16) << "OpenAI's default";
  EXPECT_EQ(api.Complete({{"max_tokens", 24}, {"max_completion_tokens", 3}}).tokens(), 3);

  // The end token is forced: it ends the answer at once, unless something forbids it.
  const Json end = {{"5", 100}};
  const Answer ended = api.Complete({{"logit_bias", end}});
  EXPECT_EQ(ended.choice()["finish_reason"], "stop");
  EXPECT_EQ(ended.tokens(), 1);
  const Answer later = api.Complete({{"logit_bias", end}, {"min_tokens", 10}});
  EXPECT_EQ(later.choice()["finish_reason"], "stop");
  EXPECT_EQ(later.tokens(), 11);
  const Answer never = api.Complete({{"logit_bias", end}, {"ignore_eos", true}});
  EXPECT_EQ(never.choice()["finish_reason"], "length");
  EXPECT_EQ(never.tokens(), 24);

  const Json ids = plain.choice()["token_ids"];
  const Answer by_id = api.Complete({{"stop_token_ids", {ids[4]}}});
  EXPECT_EQ(by_id.choice()["finish_reason"], "stop");
  EXPECT_LE(by_id.tokens(), 5);

  // Stop strings of every length at every place: across the borders of tokens, whole and streamed,
  // nothing leaks.
  const std::string text = plain.text();
  for (size_t at = 3; at + 12 < text.size(); at += 7) {
    const std::string stop = text.substr(at, 2 + at % 9);
    const size_t found = text.find(stop);
    const Json body = {
        {"prompt", kPrompt}, {"temperature", 0}, {"max_tokens", 24}, {"stop", {"\x01never", stop}}};
    const Answer cut = api.Post(kCompletions, body);
    EXPECT_EQ(cut.text(), text.substr(0, found)) << "stop '" << stop << "'";
    EXPECT_EQ(cut.choice()["finish_reason"], "stop");
    EXPECT_EQ(TextOf(api.Stream(kCompletions, body)), text.substr(0, found));
  }
  const std::string stop = text.substr(10, 5);
  EXPECT_EQ(api.Complete({{"stop", stop}, {"include_stop_str_in_output", true}}).text(),
            text.substr(0, text.find(stop) + stop.size()));
  EXPECT_EQ(api.Complete({{"stop", stop}, {"min_tokens", 24}}).text(), text)
      << "before min_tokens nothing ends an answer";
}

TEST(Conformance, PromptsOfEveryKindAndChoicesInOrder) {
  Cluster cluster({.prefill = 0});
  ASSERT_TRUE(cluster.AwaitReady());
  const Api api(cluster.http());
  const std::string greedy = api.Complete().text();
  const Answer tokenized = api.Post(
      "/tokenize", {{"prompt", kPrompt}, {"model", "story-7m"}, {"return_token_strs", true}});
  EXPECT_EQ(tokenized.body["count"], tokenized.body["tokens"].size());
  EXPECT_EQ(tokenized.body["token_strs"].size(), tokenized.body["tokens"].size());
  EXPECT_EQ(tokenized.body["max_model_len"], 2048);
  const Json ids = tokenized.body["tokens"];
  EXPECT_EQ(api.Complete({{"prompt", ids}}).text(), greedy);
  EXPECT_THAT(api.Post("/detokenize", {{"tokens", ids}}).body["prompt"].get<std::string>(),
              EndsWith(kPrompt));

  const Answer many =
      api.Complete({{"prompt", {ids, Json::array({1, 300})}}, {"n", 2}, {"echo", true}});
  ASSERT_EQ(many.body["choices"].size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(many.choice(i)["index"], i);
  EXPECT_THAT(many.text(1), AllOf(StartsWith(kPrompt), EndsWith(greedy)));
  EXPECT_NE(many.text(2), many.text(0));
  EXPECT_EQ(many.tokens(), 96);

  const Answer drawn = api.Complete({{"n", 3}, {"temperature", 1.2}, {"seed", 3}});
  EXPECT_NE(drawn.text(0), drawn.text(1));
  EXPECT_NE(drawn.text(1), drawn.text(2));

  const Json parts = {{{"type", "text"}, {"text", "Tell me a story"}},
                      {{"type", "text"}, {"text", "about a duck."}}};
  const auto chat = [&](const Json& content) {
    return api.Post(kChat, {{"messages", {{{"role", "user"}, {"content", content}}}},
                            {"temperature", 0},
                            {"max_tokens", 12}});
  };
  EXPECT_EQ(chat(parts).text(), chat("Tell me a story\nabout a duck.").text());
  const Answer counted =
      api.Post("/tokenize",
               {{"messages", {{{"role", "user"}, {"content", "Tell me a story\nabout a duck."}}}}});
  EXPECT_EQ(counted.body["count"], chat(parts).body["usage"]["prompt_tokens"]);

  // A last message of the assistant's is gone on with.
  const Answer continued =
      api.Post(kChat, {{"messages",
                        {{{"role", "user"}, {"content", "Tell me a story about a duck."}},
                         {{"role", "assistant"}, {"content", "There once lived"}}}},
                       {"continue_final_message", true},
                       {"add_generation_prompt", false},
                       {"temperature", 0},
                       {"max_tokens", 8}});
  EXPECT_THAT(continued.text(), StartsWith(" a")) << continued.body;
}

TEST(Conformance, LogprobsHaveTheShapesOfBothEndpoints) {
  Cluster cluster({.prefill = 0});
  ASSERT_TRUE(cluster.AwaitReady());
  const Api api(cluster.http());
  const Answer text = api.Complete({{"logprobs", 3}});
  const Json& flat = text.choice()["logprobs"];
  for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
    EXPECT_EQ(flat[list].size(), 24u) << list;
  std::string joined;
  for (size_t i = 0; i < 24; ++i) {
    EXPECT_EQ(flat["text_offset"][i], joined.size());
    joined += flat["tokens"][i];
    EXPECT_EQ(flat["top_logprobs"][i].size(), 3u);
    EXPECT_EQ(flat["top_logprobs"][i][flat["tokens"][i].get<std::string>()],
              flat["token_logprobs"][i]);
  }
  EXPECT_EQ(joined, text.text());
  EXPECT_EQ(api.Complete({{"logprobs", 0}}).choice()["logprobs"]["tokens"].size(), 24u);
  EXPECT_TRUE(api.Complete().choice()["logprobs"].is_null());

  const Json chat = {
      {"messages", {{{"role", "user"}, {"content", "Tell me a story about a duck."}}}},
      {"temperature", 0},
      {"max_tokens", 12},
      {"logprobs", true},
      {"top_logprobs", 2}};
  const Answer said = api.Post(kChat, chat);
  const Json& content = said.choice()["logprobs"]["content"];
  ASSERT_EQ(content.size(), 12u);
  for (const Json& token : content) {
    EXPECT_EQ(token["top_logprobs"].size(), 2u);
    EXPECT_EQ(token["top_logprobs"][0]["token"], token["token"]) << "greedy takes the likeliest";
    EXPECT_LE(token["logprob"].get<double>(), 0);
  }
  Json streamed = Json::array();
  for (const SseEvent& event : api.Stream(kChat, chat)) {
    if (event.data == "[DONE]") continue;
    const Json parsed = Json::parse(event.data);
    for (const Json& choice : parsed["choices"]) {
      if (choice["logprobs"].is_null()) continue;
      for (const Json& token : choice["logprobs"]["content"]) streamed.push_back(token);
    }
  }
  EXPECT_EQ(streamed, content);
}

TEST(Conformance, AStreamHasOneShape) {
  Cluster cluster({.prefill = 0});
  ASSERT_TRUE(cluster.AwaitReady());
  const Api api(cluster.http());
  const Json body = {
      {"messages", {{{"role", "user"}, {"content", "Tell me a story about a duck."}}}},
      {"n", 2},
      {"seed", 4},
      {"max_tokens", 20},
      {"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}}};
  const auto events = api.StreamWithIds(kChat, body);
  ASSERT_GT(events.size(), 4u);
  const auto plain = api.Stream(kChat, body);
  EXPECT_GT(plain.size(), 4u) << "without ids, as every client can read it";
  EXPECT_EQ(events.back().data, "[DONE]");
  std::map<int, int> events_of, finishes;
  std::map<int, uint64_t> position;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const Json event = Json::parse(events[i].data);
    ASSERT_TRUE(event["usage"].is_object()) << "continuous usage";
    if (i + 2 == events.size()) {
      EXPECT_TRUE(event["choices"].empty());
      EXPECT_EQ(event["usage"]["completion_tokens"], 40);
      continue;
    }
    const Json& choice = event["choices"][0];
    const int index = choice["index"];
    EXPECT_EQ(choice["delta"].contains("role"), events_of[index]++ == 0) << "the role comes first";
    EXPECT_EQ(finishes[index], 0) << "nothing comes after the finish";
    if (!choice["finish_reason"].is_null()) ++finishes[index];
    // The event's id is choice:position, and the position never falls.
    const size_t colon = events[i].id.find(':');
    ASSERT_NE(colon, std::string::npos) << events[i].id;
    EXPECT_EQ(events[i].id.substr(0, colon), std::to_string(index));
    const uint64_t now = std::stoull(events[i].id.substr(colon + 1));
    EXPECT_GE(now, position[index]);
    position[index] = now;
  }
  EXPECT_EQ(finishes, (std::map<int, int>{{0, 1}, {1, 1}}));
  EXPECT_EQ(position, (std::map<int, uint64_t>{{0, 20}, {1, 20}}));
}

TEST(Conformance, ASilentStreamIsKeptAliveAndAFaultIsAnErrorEvent) {
  Cluster cluster({.prefill = 0, .router_flags = {"--http.keepalive_comment=100ms"}});
  ASSERT_TRUE(cluster.AwaitReady());
  HttpClient client = Connect(cluster.http());
  const Json body = {{"prompt", kPrompt},  {"temperature", 0}, {"max_tokens", 1900},
                     {"ignore_eos", true}, {"stream", true},   {"timeout", 1.2}};
  ASSERT_EQ(client.Open("POST", kCompletions, body.dump())->status, 200);
  ASSERT_TRUE(client.ReadSome());
  cluster.decode[0]->Signal(SIGSTOP);
  const auto rest = client.ReadRest();
  ASSERT_TRUE(rest) << rest.error().message;
  EXPECT_THAT(*rest, HasSubstr(": keep-alive\n\n"));
  EXPECT_THAT(*rest, HasSubstr("\"code\":\"deadline_exceeded\""));
  EXPECT_THAT(*rest, EndsWith("data: [DONE]\n\n"));
  EXPECT_THAT(*rest, Not(HasSubstr("\"finish_reason\":\"length\"")));
  cluster.decode[0]->Signal(SIGCONT);
}

TEST(Conformance, APrefixIsCachedWithinItsSaltOnly) {
  Cluster cluster({.prefill = 0});
  ASSERT_TRUE(cluster.AwaitReady());
  const Api api(cluster.http());
  const Json prompt = {{"prompt", Prose(120, 3)}, {"max_tokens", 4}};
  EXPECT_EQ(api.Complete(prompt).cached(), 0);
  const Answer again = api.Complete(prompt);
  EXPECT_GT(again.cached(), 100);
  Json salted = prompt;
  salted["cache_salt"] = "mine";
  const Answer first = api.Complete(salted);
  EXPECT_EQ(first.cached(), 0);
  EXPECT_EQ(first.text(), again.text());
  EXPECT_GT(api.Complete(salted).cached(), 100);
}

// A wrong request: what is sent, and what is said about it.
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
  field("max_tokens", {"0", "-1", "1.5", "\"4\"", "[]", "1e30"}, "from 1 to");
  field("max_completion_tokens", {"0", "true"}, "from 1 to");
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
  for (const char* unsupported : {"suffix", "reasoning_effort", "prompt_logprobs", "chat_template"})
    field(unsupported, {"\"abc\""}, "is not supported by this server");
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
  // What is unknown, empty or as it is anyway is no error.
  for (const char* harmless :
       {R"("unknown":{"a":1})", R"("tools":[])", R"("response_format":{"type":"text"})",
        R"("best_of":1)", R"("suffix":"")", R"("guided_json":{})", R"("modalities":["text"])",
        R"("service_tier":"auto")", R"("use_beam_search":false)", R"("stream_options":null)",
        R"("length_penalty":1.0)"}) {
    EXPECT_EQ(api.Send("POST", kCompletions, With(harmless)).status, 200) << harmless;
  }
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
  HttpClient wide = Connect(cluster.http());
  ASSERT_TRUE(wide.SendRaw("GET /health HTTP/1.1\r\nHost: h\r\nX: " + std::string(100000, 'a') +
                           "\r\n\r\n"));
  EXPECT_THAT(*wide.ReceiveRaw(), AllOf(StartsWith("HTTP/1.1 431"), HasSubstr("x-request-id: ")));
}

TEST(Conformance, PathsAndMethodsAndTimeouts) {
  Cluster cluster({.prefill = 0});
  ASSERT_TRUE(cluster.AwaitReady());
  const Api api(cluster.http());
  const Answer lost = api.Send("POST", "/v1/embeddings", "{}");
  EXPECT_EQ(lost.status, 404);
  EXPECT_THAT(lost.message(), HasSubstr("/v1/chat/completions"));
  for (const char* path : {kCompletions, kChat, "/tokenize", "/detokenize"}) {
    EXPECT_EQ(api.Send("GET", path, "").status, 405) << path;
    EXPECT_EQ(api.Send("OPTIONS", path, "").status, 204) << path;
  }
  EXPECT_EQ(api.Send("POST", "/v1/models", "").status, 405);
  EXPECT_EQ(api.Send("HEAD", "/v1/models", "").status, 200);
  EXPECT_EQ(api.Send("GET", "/v1/models/story-7m", "").body["id"], "story-7m");
  EXPECT_EQ(api.Send("GET", "/v1/models/gpt-9", "").status, 404);
  EXPECT_EQ(api.Send("GET", "/version", "").status, 200);
  EXPECT_EQ(api.Send("GET", "/health", "", {{"x-request-id", "probe-1"}}).request_id, "probe-1");
  EXPECT_NE(api.Send("GET", "/health", "", {{"x-request-id", "two words"}}).request_id,
            "two words");

  const std::string long_one = With(R"("max_tokens":1900,"ignore_eos":true)");
  const Answer late = api.Send("POST", kCompletions, long_one, {{"x-request-timeout", "0.15"}});
  EXPECT_EQ(late.status, 504);
  EXPECT_EQ(late.body["error"]["code"], "deadline_exceeded");
  EXPECT_EQ(api.Send("POST", kCompletions, long_one, {{"x-request-timeout", "soon"}}).status, 400);
  EXPECT_EQ(
      api.Send("POST", kCompletions, With(R"("max_tokens":1900,"ignore_eos":true,"timeout":0.15)"))
          .status,
      504);
}

TEST(Conformance, KeysSeparateTenantsAndNeverShow) {
  const TempFile log("keys.log");
  const TempFile keys("keys", "fox:sk-fox-1\nfox:sk-fox-2\nsk-unnamed\n");
  Process server({"serve", "--role=all", "--port=0", "--api-keys-file=" + keys.path(),
                  "--max-inflight-per-key=1"},
                 log.path());
  const std::string http = server.Await("http");
  ASSERT_NE(http, "");
  // The probes are open.
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

  // Two keys of one tenant share its prefixes; another tenant, or a salt that looks like one, does
  // not.
  const Json prompt = {{"prompt", Prose(120, 8)}, {"max_tokens", 2}};
  Json salted = prompt;
  salted["cache_salt"] = "3:fox";
  EXPECT_EQ(Api(http, "sk-fox-1").Complete(prompt).cached(), 0);
  EXPECT_GT(Api(http, "sk-fox-2").Complete(prompt).cached(), 100);
  EXPECT_EQ(Api(http, "sk-unnamed").Complete(salted).cached(), 0);
  EXPECT_EQ(Api(http, "sk-unnamed").Complete(prompt).cached(), 0);
  EXPECT_GT(Api(http, "sk-unnamed").Complete(prompt).cached(), 100);

  // One request at a time for each tenant.
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
