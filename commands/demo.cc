#include "commands/demo.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/clock.h"
#include "common/strings.h"
#include "net/host_port.h"
#include "net/http_client.h"

namespace aisp {
namespace {

using Json = nlohmann::json;

constexpr const char* kPrompt = "Tell me a story about a fox, a bridge and a lantern.";
constexpr Duration kTimeout = std::chrono::seconds(60);
// The built-in model ends some of its answers after one token; this is a few sentences.
constexpr int kLeastTokens = 60;

// A short prompt would be prefilled on the decode worker; the demo shows the full path.
const HttpHeaders kHeaders = {{"content-type", "application/json"}, {"x-aisp-prefill", "remote"}};

struct Story {
  int tokens = 0;
  Instant first;
  Instant last;
  Json usage = Json::object();  // as long as the server has sent none
};

// Handles one event of the stream; an error event is returned as an error.
Status OnEvent(const std::string& data, Instant now, Story* story) {
  const Json event = Json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (event.is_discarded()) return Internal("the server sent an event that is no JSON");
  if (event.contains("error")) return Internal(event["error"].value("message", "unknown error"));
  if (event.contains("usage") && event["usage"].is_object()) story->usage = event["usage"];
  for (const Json& choice : event.value("choices", Json::array())) {
    const Json delta = choice.value("delta", Json::object());
    if (!delta.contains("content") || !delta["content"].is_string()) continue;
    const std::string text = delta["content"];
    if (text.empty()) continue;
    if (story->tokens++ == 0) story->first = now;
    story->last = now;
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }
  return {};
}

void PrintFigures(const Story& story) {
  const Json timing = story.usage.value("aisp", Json::object());
  const int tokens = story.usage.value("completion_tokens", story.tokens);
  const auto ms = [&](const char* key) { return timing.value(key, 0.0); };
  const double tpot = tokens > 1 ? ToMs(story.last - story.first) / (tokens - 1) : 0;
  fmt::print(
      "\n\n  TTFT {:.1f} ms = frontend {:.1f} + queue {:.1f} + prefill {:.1f} + transfer {:.1f} + "
      "first decode {:.1f}\n",
      ms("ttft_ms"), ms("frontend_ms"), ms("queue_ms"), ms("prefill_ms"), ms("transfer_ms"),
      ms("first_decode_ms"));
  fmt::print("  TPOT {:.2f} ms over {} tokens ({:.0f} tokens/s)\n", tpot, tokens,
             tpot > 0 ? 1000 / tpot : 0);
  const std::string transport = timing.value("kv_transport", "");
  if (transport.empty()) {
    fmt::print("  no KV blocks moved: the decode worker computed the prompt itself\n");
  } else {
    fmt::print("  {} KV blocks moved from the prefill to the decode worker over {}\n",
               timing.value("kv_blocks_moved", 0), transport);
  }
  if (const Json drafts = timing.value("speculation", Json()); drafts.is_object()) {
    fmt::print("  speculation: {} of {} draft tokens accepted\n", drafts.value("accepted", 0),
               drafts.value("drafted", 0));
  }
  fmt::print("  {}\n", timing.value("route", ""));
}

}  // namespace

Status StreamStory(const std::string& http_address) {
  const SplitAddress split = SplitHostPort(http_address);
  AISP_ASSIGN_OR_RETURN(const int64_t port, ParseIntInRange(split.port.value_or(""), 1, 65535));
  AISP_ASSIGN_OR_RETURN(
      HttpClient client,
      HttpClient::Connect(std::string(split.host), static_cast<uint16_t>(port), kTimeout));
  const Json body = {{"messages", {{{"role", "user"}, {"content", kPrompt}}}},
                     {"stream", true},
                     {"max_tokens", 300},
                     {"min_tokens", kLeastTokens},
                     {"stream_options", {{"include_usage", true}}}};
  fmt::print("\n> {}\n\n", kPrompt);
  AISP_ASSIGN_OR_RETURN(const HttpAnswer head,
                        client.Open("POST", "/v1/chat/completions", body.dump(), kHeaders));
  if (head.status != 200) {
    AISP_ASSIGN_OR_RETURN(const std::string text, client.ReadRest());
    return Internal(fmt::format("the server answered {}: {}", head.status, text));
  }
  const SteadyClock clock;
  Story story;
  for (;;) {
    AISP_ASSIGN_OR_RETURN(const std::optional<SseEvent> event, client.NextEvent());
    if (!event || event->data == "[DONE]") break;
    AISP_RETURN_IF_ERROR(OnEvent(event->data, clock.Now(), &story));
  }
  PrintFigures(story);
  return {};
}

}  // namespace aisp
