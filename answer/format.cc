#include "answer/format.h"

#include <array>

#include "common/strings.h"

namespace aisp {
namespace {

using Body = CallFormat::Body;

constexpr std::array kCallFormats = {
    CallFormat{.name = "hermes",
               .trigger = "<tool_call>",
               .before = "<tool_call>\n{\"name\": \"",
               .middle = "\", \"arguments\": ",
               .after = "}\n</tool_call>",
               .separator = "\n",
               .call_end = "</tool_call>"},
    CallFormat{.name = "llama3_json",
               .trigger = "",
               .before = "{\"name\": \"",
               .middle = "\", \"parameters\": ",
               .after = "}",
               .separator = "; "},
    CallFormat{.name = "mistral",
               .trigger = "[TOOL_CALLS]",
               .open = "[TOOL_CALLS][",
               .before = "{\"name\": \"",
               .middle = "\", \"arguments\": ",
               .after = "}",
               .separator = ", ",
               .close = "]",
               .id_digits = 9,
               .short_id = true},
    CallFormat{.name = "mistral_args",
               .body = Body::kMarked,
               .trigger = "[TOOL_CALLS]",
               .before = "[TOOL_CALLS]",
               .middle = "[ARGS]",
               .id_digits = 9,
               .short_id = true},
    CallFormat{.name = "deepseek_v3",
               .body = Body::kNamed,
               .trigger = "<｜tool▁calls▁begin｜>",
               .open = "<｜tool▁calls▁begin｜>",
               .before = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
               .middle = "\n```json\n",
               .after = "\n```<｜tool▁call▁end｜>",
               .separator = "\n",
               .close = "<｜tool▁calls▁end｜>",
               .call_end = "<｜tool▁call▁end｜>"},
    CallFormat{.name = "phi4_mini_json",
               .trigger = "<|tool_call|>",
               .open = "<|tool_call|>[",
               .before = "{\"name\": \"",
               .middle = "\", \"arguments\": ",
               .after = "}",
               .separator = ", ",
               .close = "]<|/tool_call|>",
               .call_end = "<|/tool_call|>"},
    CallFormat{.name = "pythonic",
               .body = Body::kPythonic,
               .trigger = "",
               .open = "[",
               .middle = "(",
               .separator = ", ",
               .close = "]"},
    CallFormat{.name = "qwen3_coder",
               .body = Body::kXml,
               .trigger = "<tool_call>",
               .before = "<tool_call>\n<function=",
               .middle = ">\n",
               .after = "\n</tool_call>",
               .separator = "\n",
               .call_end = "</tool_call>"},
    CallFormat{.name = "openai",
               .body = Body::kHarmony,
               .trigger = "",
               .before = "<|channel|>commentary to=functions.",
               .middle = " <|constrain|>json<|message|>",
               .parallel = false},
};

constexpr std::array kThinkFormats = {
    ThinkFormat{"think", "<think>", "</think>", "\n\n"},
    ThinkFormat{"mistral", "[THINK]", "[/THINK]", ""},
    ThinkFormat{"openai", "<|channel|>analysis<|message|>", "<|end|>", "<|start|>assistant"},
};

bool Has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool IsHarmony(std::string_view text) {
  return Has(text, "<|channel|>") && Has(text, "<|message|>");
}

// Strings like "<|a|>" and "[A]", which tokenizers have as single tokens.
void AddMarkers(std::string_view text, std::vector<std::string>* out) {
  for (size_t at = 0; at < text.size(); ++at) {
    const char close = text[at] == '<' ? '>' : text[at] == '[' ? ']' : '\0';
    if (close == '\0') continue;
    const size_t end = text.find(close, at);
    if (end == std::string_view::npos || end == at + 1) continue;
    out->emplace_back(text.substr(at, end - at + 1));
  }
}

}  // namespace

std::span<const CallFormat> CallFormats() { return kCallFormats; }
std::span<const ThinkFormat> ThinkFormats() { return kThinkFormats; }

const CallFormat* FindCallFormat(std::string_view name) {
  for (const CallFormat& each : kCallFormats) {
    if (each.name == name) return &each;
  }
  return nullptr;
}

const ThinkFormat* FindThinkFormat(std::string_view name) {
  for (const ThinkFormat& each : kThinkFormats) {
    if (each.name == name) return &each;
  }
  return nullptr;
}

const CallFormat* DetectCallFormat(std::string_view t, bool args_token) {
  if (!Has(t, "tools") && !Has(t, "tool_calls")) return nullptr;
  if (IsHarmony(t)) return FindCallFormat("openai");
  if (Has(t, "<tool_call>") && Has(t, "<function=")) return FindCallFormat("qwen3_coder");
  if (Has(t, "<tool_call>")) return FindCallFormat("hermes");
  if (Has(t, "<|tool_call|>")) return FindCallFormat("phi4_mini_json");
  if (Has(t, "[TOOL_CALLS]"))
    return FindCallFormat(args_token || Has(t, "[ARGS]") ? "mistral_args" : "mistral");
  if (Has(t, "<｜tool▁calls▁begin｜>")) return FindCallFormat("deepseek_v3");
  if (Has(t, "func_name1(params_name1=")) return FindCallFormat("pythonic");
  const bool llama = Has(t, "\"parameters\": ") &&
                     (Has(t, "{\"name\": function name") || Has(t, "<|python_tag|>"));
  return llama ? FindCallFormat("llama3_json") : nullptr;
}

const ThinkFormat* DetectThinkFormat(std::string_view t) {
  if (IsHarmony(t)) return FindThinkFormat("openai");
  if (Has(t, "<think>") || Has(t, "</think>")) return FindThinkFormat("think");
  return Has(t, "[THINK]") ? FindThinkFormat("mistral") : nullptr;
}

std::string OpeningOf(const CallFormat& format, std::string_view tool) {
  std::string out(format.open);
  for (const std::string_view part : {format.before, tool, format.middle}) out += part;
  return out;
}

std::string_view BodyOpening(const CallFormat* calls, const ThinkFormat* think) {
  const bool channels = (calls != nullptr && calls->body == Body::kHarmony) ||
                        (think != nullptr && think->name == "openai");
  return channels ? "<|channel|>final<|message|>" : "";
}

bool EndsInThinking(std::string_view prompt, const ThinkFormat& format) {
  return Trim(prompt).ends_with(format.open);
}

bool EndsBehindThinking(std::string_view prompt, const ThinkFormat& format) {
  // With Harmony's channels the close marker ends any message, not only thinking.
  return format.name != "openai" && Trim(prompt).ends_with(format.close);
}

std::vector<std::string> MarkersOf(const CallFormat* calls, const ThinkFormat* think) {
  std::vector<std::string> out;
  if (calls != nullptr) {
    for (const std::string_view text : {calls->trigger, calls->open, calls->before, calls->middle,
                                        calls->after, calls->close, calls->call_end}) {
      AddMarkers(text, &out);
    }
    if (calls->body == Body::kHarmony) {
      for (const char* each : {"<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|call|>",
                               "<|constrain|>", "<|return|>"}) {
        out.emplace_back(each);
      }
    }
    if (calls->name == "llama3_json") out.emplace_back("<|python_tag|>");
  }
  if (think != nullptr) {
    for (const std::string_view text : {think->open, think->close, think->after})
      AddMarkers(text, &out);
  }
  if (!BodyOpening(calls, think).empty()) AddMarkers(BodyOpening(calls, think), &out);
  return out;
}

}  // namespace aisp
