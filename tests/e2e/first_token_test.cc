// The first token that a prefill worker draws, with real processes and a real model: for every
// request the answer is exactly that of a single worker.
#include <gtest/gtest.h>

#include "common/random.h"
#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"

namespace aisp::e2e {
namespace {

Json RandomBody(SplitMix64& random) {
  const auto one_in = [&random](uint64_t n) { return random.Below(n) == 0; };
  Json body = {{"prompt", Prose(static_cast<int>(20 + random.Below(200)),
                                static_cast<int>(random.Below(1000)))},
               {"max_tokens", 1 + random.Below(6)},
               {"temperature", one_in(4) ? 0.0 : 0.5 + 0.25 * static_cast<double>(random.Below(5))},
               {"seed", random.Below(1'000'000)}};
  if (one_in(2)) body["logprobs"] = random.Below(6);
  if (one_in(3)) body["top_p"] = 0.8;
  if (one_in(3)) body["top_k"] = 1 + random.Below(40);
  if (one_in(4)) body["min_p"] = 0.05;
  if (one_in(3)) body["repetition_penalty"] = 1.3;
  if (one_in(3)) body["presence_penalty"] = 1.5;
  if (one_in(4)) body["logit_bias"] = {{"300", 20}, {"301", 19}};
  if (one_in(3)) body["stop_token_ids"] = {300, 301, 302};
  if (one_in(3)) body["min_tokens"] = 1;
  if (one_in(4)) body["n"] = 2;
  return body;
}

TEST(FirstToken, ARemotePromptSaysWhatALocalOneSaysWhateverIsAskedFor) {
  Cluster cluster({.flags = {"--no-prefix-cache"}});
  ASSERT_TRUE(cluster.AwaitReady());
  SplitMix64 random(5);
  HttpClient client = Connect(cluster.http());
  for (int i = 0; i < 60; ++i) {
    const std::string body = RandomBody(random).dump();
    Json said[2];
    for (const bool remote : {false, true}) {
      const auto answer = client.Request(
          "POST", "/v1/completions", body,
          {{"content-type", "application/json"}, {"x-aisp-prefill", remote ? "remote" : "local"}});
      ASSERT_TRUE(answer);
      ASSERT_EQ(answer->status, 200) << answer->body << body;
      const Json json = Json::parse(answer->body);
      said[remote ? 1 : 0] = json["choices"];
      const Json& aisp = json["usage"]["aisp"];
      EXPECT_EQ(aisp["kv_transport"] != "", remote);
      EXPECT_EQ(aisp["first_decode_ms"], 0) << aisp;
    }
    EXPECT_EQ(said[0], said[1]) << body;
  }
}

TEST(FirstToken, AConstraintKeepsTheDrawOnTheDecodeWorker) {
  Cluster cluster({});
  ASSERT_TRUE(cluster.AwaitReady());
  const Json body = {{"prompt", Prose(100, 1)}, {"max_tokens", 8}, {"guided_regex", "[a-z ]+"}};
  const auto answer =
      Connect(cluster.http())
          .Request("POST", "/v1/completions", body.dump(),
                   {{"content-type", "application/json"}, {"x-aisp-prefill", "remote"}});
  ASSERT_TRUE(answer);
  ASSERT_EQ(answer->status, 200) << answer->body;
  const Json aisp = Json::parse(answer->body)["usage"]["aisp"];
  EXPECT_NE(aisp["kv_transport"], "");
  EXPECT_GT(aisp["first_decode_ms"].get<double>(), 0);
}

}  // namespace
}  // namespace aisp::e2e
