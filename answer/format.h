// How models write tool calls and thinking, as data. A format lists the markers around a call. The
// parser (answer/parser.h) reads them, and a constraint makes the model write the same ones. The
// format of a model is detected from its chat template. Plain data.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace aisp {

struct CallFormat {
  // What a call looks like between its markers.
  enum class Body : uint8_t {
    kObject,    // {"name": NAME, "arguments": {...}}, the members in any order
    kNamed,     // NAME, a marker, {...}
    kPythonic,  // [name(a=1, b="x"), other()]
    kXml,       // <function=NAME><parameter=KEY>VALUE</parameter></function>
    kHarmony,   // messages with channels
    kMarked,    // marker NAME marker {...}
  };
  std::string_view name;
  Body body = Body::kObject;
  // The first text that shows that a call begins; no content follows it. "": a call begins with the
  // first brace or bracket, if that is the first text of the answer.
  std::string_view trigger{};
  // What a constrained answer writes: open, then for each call `before` NAME `middle` ARGUMENTS
  // `after`, with `separator` between calls, then close.
  std::string_view open{}, before{}, middle{}, after{}, separator{}, close{};
  std::string_view call_end{};  // marker after a call's JSON, if any
  bool parallel = true;
  int id_digits = 24;     // length of a call's id
  bool short_id = false;  // ids consist of digits and letters only
};

struct ThinkFormat {
  std::string_view name;
  std::string_view open, close;
  std::string_view after;  // what most models write between thinking and a call
};

// Known formats: hermes, llama3_json, mistral, mistral_args, deepseek_v3, phi4_mini_json, pythonic,
// qwen3_coder, openai.
std::span<const CallFormat> CallFormats();
// Null when the name is unknown.
const CallFormat* FindCallFormat(std::string_view name);
// The format that a chat template teaches; null: no calls, or an unknown format. `args_token`: the
// tokenizer has the control token [ARGS], which newer Mistral models write even when their template
// is older.
const CallFormat* DetectCallFormat(std::string_view chat_template, bool args_token = false);

// Known formats: think (<think>), mistral ([THINK]), openai (channels).
std::span<const ThinkFormat> ThinkFormats();
const ThinkFormat* FindThinkFormat(std::string_view name);
const ThinkFormat* DetectThinkFormat(std::string_view chat_template);

// The text of an answer's first call of `tool`, up to its arguments.
std::string OpeningOf(const CallFormat& format, std::string_view tool);

// The text before an answer that is neither thinking nor a call: a header, or "".
std::string_view BodyOpening(const CallFormat* calls, const ThinkFormat* think);

// True when the prompt ends inside thinking, so that the answer continues it.
bool EndsInThinking(std::string_view prompt, const ThinkFormat& format);
// True when the prompt ends with closed thinking, as templates write to turn thinking off.
bool EndsBehindThinking(std::string_view prompt, const ThinkFormat& format);

// The control tokens that either format may write, for code that must detokenize them as text.
std::vector<std::string> MarkersOf(const CallFormat* calls, const ThinkFormat* think);

}  // namespace aisp
