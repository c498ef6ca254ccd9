// A client of one server for the API tests: whole answers and streams.
#pragma once

#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"
#include "tests/support/strict_sse.h"

namespace aisp::e2e {

inline constexpr const char* kCompletions = "/v1/completions";
inline constexpr const char* kChat = "/v1/chat/completions";
inline constexpr const char* kPrompt = "Once upon a time there was a fox";

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
  // Parses like the strictest client: an event is one line of data.
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
  // With the token ids that the request asks for.
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

inline std::string TextOf(const std::vector<SseEvent>& events) {
  std::string text;
  for (const SseEvent& event : events) {
    if (event.data == "[DONE]") continue;
    const Json parsed = Json::parse(event.data);
    for (const Json& choice : parsed["choices"]) text += choice["text"];
  }
  return text;
}

}  // namespace aisp::e2e
