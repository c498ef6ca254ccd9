// Helpers of the end-to-end tests: requests for stories, and metrics.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "net/http_client.h"

namespace aisp::e2e {

using Json = nlohmann::json;

// "127.0.0.1:8080" -> a connected client, whose waits take at most `timeout`; aborts the test
// program when nobody listens.
HttpClient Connect(const std::string& address, Duration timeout = std::chrono::seconds(120));

// A recorded story of models/story-7m/expected.json: what the model says at temperature 0.
struct Recorded {
  Json messages;
  std::string text;
  int completion_tokens = 0;
  bool ends = false;  // with the end token; else it was cut
};
std::vector<Recorded> RecordedStories();

struct Reply {
  int status = 0;
  std::string text;
  std::string finish_reason;
  Json usage;
  std::string error;  // message of an error answer or of an error event
  std::string route;  // x-aisp-route
  bool done = false;  // the stream ended with [DONE]
};

// Greedy chat; `prefill`: "", "remote" or "local".
Reply Chat(const std::string& address, const Json& messages, int max_tokens,
           const std::string& prefill, bool stream);
// The same on a connection whose first events the caller reads: this reads the rest of the stream.
Reply ReadStream(HttpClient& client, const HttpAnswer& head);
// Opens a greedy chat stream.
Result<HttpAnswer> OpenChat(HttpClient& client, const Json& messages, int max_tokens,
                            const std::string& prefill);

// Greedy /v1/completions, not streamed, exactly `max_tokens` tokens.
Reply Complete(const std::string& address, const std::string& prompt, int max_tokens,
               const std::string& prefill);
// About `words` words of prose that the model can continue; a different text for every `which`.
std::string Prose(int words, int which);

// The sum over all label sets (those with `label` in their text) of a metric on host:port/metrics;
// 0 when it is missing.
double Metric(const std::string& address, const std::string& name, const std::string& label = "");

}  // namespace aisp::e2e
