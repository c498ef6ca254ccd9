// OpenAI's API with real processes: every parameter has its documented effect.
#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <set>

#include "tests/e2e/conformance_api.h"
#include "tests/support/temp_files.h"

namespace aisp::e2e {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

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
  const Json unseeded = {{"temperature", 1.5}, {"ignore_eos", true}};
  EXPECT_NE(api.Complete(unseeded).text(), api.Complete(unseeded).text())
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

// Logprobs are those of the model, before penalties, so the test can compute the effect of
// penalties.
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

  // The end token is forced: it ends the answer at once unless something forbids it.
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

  // Stop strings of every length at every position: across token borders, whole and streamed, no
  // part of one is emitted.
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

  // A last message of the assistant is continued.
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
    // The event's id is choice:position, and the position never decreases.
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

// An invalid request and its error message.

}  // namespace
}  // namespace aisp::e2e
