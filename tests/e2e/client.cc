#include "tests/e2e/client.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "common/check.h"
#include "common/strings.h"

namespace aisp::e2e {
namespace {

Json Body(const Json& messages, int max_tokens, bool stream) {
  Json body = {
      {"messages", messages}, {"temperature", 0}, {"max_tokens", max_tokens}, {"stream", stream}};
  if (stream) body["stream_options"] = {{"include_usage", true}};
  return body;
}

HttpHeaders Headers(const std::string& prefill) {
  HttpHeaders headers = {{"content-type", "application/json"}};
  if (!prefill.empty()) headers.emplace_back("x-aisp-prefill", prefill);
  return headers;
}

void ReadEvent(const Json& event, Reply* reply) {
  if (event.contains("error")) reply->error = event["error"].value("message", "");
  if (event.contains("usage") && event["usage"].is_object()) reply->usage = event["usage"];
  for (const Json& choice : event.value("choices", Json::array())) {
    const Json delta = choice.value("delta", Json::object());
    if (delta.contains("content") && delta["content"].is_string()) reply->text += delta["content"];
    if (choice.contains("finish_reason") && choice["finish_reason"].is_string()) {
      reply->finish_reason = choice["finish_reason"];
    }
  }
}

}  // namespace

HttpClient Connect(const std::string& address, Duration timeout) {
  const size_t colon = address.rfind(':');
  auto port = ParseIntInRange(address.substr(colon + 1), 1, 65535);
  AISP_CHECK_MSG(port.has_value(), "no port in '" + address + "'");
  auto client =
      HttpClient::Connect(address.substr(0, colon), static_cast<uint16_t>(*port), timeout);
  AISP_CHECK_MSG(client.has_value(), client ? "" : client.error().message);
  return std::move(*client);
}

std::vector<Recorded> RecordedStories() {
  std::ifstream in(AISP_SOURCE_DIR "/models/story-7m/expected.json");
  const Json file = Json::parse(in);
  std::vector<Recorded> out;
  for (const Json& recorded : file["cases"]) {
    if (!recorded["input"].is_array()) continue;
    Recorded r;
    r.messages = recorded["input"];
    r.text = recorded["greedy_text"];
    r.completion_tokens = static_cast<int>(recorded["greedy_ids"].size());
    const int last = recorded["greedy_ids"].back();
    r.ends = last == 5 || last == 2;
    out.push_back(std::move(r));
  }
  return out;
}

Result<HttpAnswer> OpenChat(HttpClient& client, const Json& messages, int max_tokens,
                            const std::string& prefill) {
  return client.Open("POST", "/v1/chat/completions", Body(messages, max_tokens, true).dump(),
                     Headers(prefill));
}

Reply ReadStream(HttpClient& client, const HttpAnswer& head) {
  Reply reply;
  reply.status = head.status;
  reply.route = std::string(head.Header("x-aisp-route"));
  if (head.status != 200) {
    const auto text = client.ReadRest();
    const Json body = Json::parse(text ? *text : "", nullptr, false);
    if (body.is_object() && body.contains("error"))
      reply.error = body["error"].value("message", "");
    return reply;
  }
  for (;;) {
    const auto event = client.NextEvent();
    if (!event) {
      reply.error = "connection: " + event.error().message;
      return reply;
    }
    if (!*event) return reply;
    if ((*event)->data == "[DONE]") {
      reply.done = true;
      continue;
    }
    ReadEvent(Json::parse((*event)->data), &reply);
  }
}

Reply Chat(const std::string& address, const Json& messages, int max_tokens,
           const std::string& prefill, bool stream) {
  HttpClient client = Connect(address);
  if (stream) {
    auto head = OpenChat(client, messages, max_tokens, prefill);
    if (!head) return Reply{0, "", "", {}, head.error().message, "", false};
    return ReadStream(client, *head);
  }
  auto answer = client.Request("POST", "/v1/chat/completions",
                               Body(messages, max_tokens, false).dump(), Headers(prefill));
  Reply reply;
  if (!answer) {
    reply.error = answer.error().message;
    return reply;
  }
  reply.status = answer->status;
  reply.route = std::string(answer->Header("x-aisp-route"));
  const Json body = Json::parse(answer->body, nullptr, false);
  if (body.is_discarded()) {
    reply.error = "no JSON: " + answer->body;
    return reply;
  }
  if (body.contains("error")) reply.error = body["error"].value("message", "");
  if (body.contains("usage")) reply.usage = body["usage"];
  if (body.contains("choices")) {
    reply.text = body["choices"][0]["message"]["content"];
    reply.finish_reason = body["choices"][0]["finish_reason"];
  }
  return reply;
}

Reply Complete(const std::string& address, const std::string& prompt, int max_tokens,
               const std::string& prefill) {
  HttpClient client = Connect(address);
  const Json body = {
      {"prompt", prompt}, {"temperature", 0}, {"max_tokens", max_tokens}, {"ignore_eos", true}};
  const auto answer = client.Request("POST", "/v1/completions", body.dump(), Headers(prefill));
  Reply reply;
  if (!answer) {
    reply.error = answer.error().message;
    return reply;
  }
  reply.status = answer->status;
  reply.route = std::string(answer->Header("x-aisp-route"));
  const Json json = Json::parse(answer->body, nullptr, false);
  if (json.is_object() && json.contains("error")) reply.error = json["error"].value("message", "");
  if (json.is_object() && json.contains("choices")) {
    reply.text = json["choices"][0]["text"];
    reply.finish_reason = json["choices"][0]["finish_reason"];
    reply.usage = json["usage"];
  }
  return reply;
}

std::string Prose(int words, int which) {
  static const char* const kWords[] = {"the", "fox", "and",  "river",  "met", "an",
                                       "old", "owl", "near", "bridge", "who"};
  std::string out = "Once upon a time number " + std::to_string(which);
  for (int i = 0; i < words; ++i)
    out += std::string(" ") + kWords[(i * 7 + which * 3 + i / 11) % 11];
  return out;
}

double Metric(const std::string& address, const std::string& name, const std::string& label) {
  HttpClient client = Connect(address);
  const auto answer = client.Request("GET", "/metrics");
  if (!answer) return 0;
  double sum = 0;
  std::istringstream lines(answer->body);
  for (std::string line; std::getline(lines, line);) {
    const bool match = line.starts_with(name) && line.size() > name.size() &&
                       (line[name.size()] == ' ' || line[name.size()] == '{') &&
                       line.find(label) != std::string::npos;
    if (match) sum += std::strtod(line.c_str() + line.rfind(' '), nullptr);
  }
  return sum;
}

}  // namespace aisp::e2e
