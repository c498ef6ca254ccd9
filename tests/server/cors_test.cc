#include "server/cors.h"

#include <gmock/gmock.h>

#include <map>

namespace aisp {
namespace {

using ::testing::HasSubstr;

// Records the answer.
class FakeExchange final : public HttpExchange {
 public:
  FakeExchange(const std::string& method, const std::string& path, const std::string& origin) {
    request_.method = method;
    request_.path = path;
    if (!origin.empty()) request_.headers.emplace_back("Origin", origin);
    if (method == "OPTIONS") request_.headers.emplace_back("Access-Control-Request-Method", "POST");
  }
  const HttpRequest& request() const override { return request_; }
  void Respond(int answered, HttpHeaders headers, std::string /*body*/) override {
    status = answered;
    for (auto& [name, value] : headers) answer[name] = value;
  }
  void BeginStream(int answered, HttpHeaders headers) override { Respond(answered, headers, ""); }
  void Write(std::string_view /*bytes*/) override {}
  void End() override {}
  size_t unsent_bytes() const override { return 0; }
  bool alive() const override { return true; }
  void OnDisconnect(std::function<void(Gone)> /*handler*/) override {}

  int status = 0;
  std::map<std::string, std::string> answer;

 private:
  HttpRequest request_;
};

constexpr const char* kAllow = "access-control-allow-origin";

std::shared_ptr<FakeExchange> Ask(const Cors& cors, const std::string& method,
                                  const std::string& path, const std::string& origin) {
  auto exchange = std::make_shared<FakeExchange>(method, path, origin);
  if (const auto admitted = cors.Admit(exchange)) admitted->Respond(200, {}, "");
  return exchange;
}

TEST(Cors, IsOffUnlessOriginsAreNamed) {
  const Cors cors = *Cors::Create({});
  EXPECT_EQ(Ask(cors, "POST", "/v1/completions", "https://a.org")->answer.count(kAllow), 0u);
  EXPECT_EQ(Ask(cors, "OPTIONS", "/v1/completions", "https://a.org")->status, 200);
}

TEST(Cors, ANamedOriginSeesAnswersAndOthersDoNot) {
  const Cors cors = *Cors::Create({"https://a.org", "http://localhost:3000"});
  EXPECT_EQ(Ask(cors, "POST", "/v1/completions", "https://a.org")->answer[kAllow], "https://a.org");
  EXPECT_EQ(Ask(cors, "POST", "/v1/completions", "https://b.org")->answer.count(kAllow), 0u);
  EXPECT_EQ(Ask(cors, "POST", "/v1/completions", "")->answer.count(kAllow), 0u);
  EXPECT_EQ(Ask(cors, "GET", "/admin/workers", "https://a.org")->answer.count(kAllow), 0u);
  EXPECT_EQ(Ask(*Cors::Create({"*"}), "GET", "/v1/models", "https://b.org")->answer[kAllow], "*");
}

TEST(Cors, APreflightIsAnsweredAtOnce) {
  const Cors cors = *Cors::Create({"https://a.org"});
  const auto exchange = Ask(cors, "OPTIONS", "/v1/chat/completions", "https://a.org");
  EXPECT_EQ(exchange->status, 204);
  // The headers that OpenAI's and Anthropic's clients send from web pages.
  for (const char* name : {"authorization", "x-api-key", "anthropic-version", "x-stainless-lang",
                           "x-stainless-retry-count", "x-stainless-timeout", "x-aisp-event-ids"})
    EXPECT_THAT(exchange->answer["access-control-allow-headers"], HasSubstr(name));
  EXPECT_EQ(exchange->answer[kAllow], "https://a.org");
}

TEST(Cors, WhatIsNoOriginIsRefusedByName) {
  for (const char* bad : {"a.org", "https://", "https://a.org/path", ""})
    EXPECT_THAT(Cors::Create({bad}).error().message, HasSubstr("http.cors_origins")) << bad;
}

}  // namespace
}  // namespace aisp
