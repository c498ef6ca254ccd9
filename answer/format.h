// How models write tool calls and thinking: formats as data. A format says which texts stand around
// a call; the parser (answer/parser.h) reads them, and a server that constrains an answer has the
// model write the same. Which format a model knows is seen from its chat template. Plain data.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace aisp {

struct CallFormat {
  // What stands between the texts.
  enum class Body : uint8_t {
    kObject,    // {"name": NAME, "arguments": {...}}, the members in any order
    kNamed,     // NAME, a text, {...}
    kPythonic,  // [name(a=1, b="x"), other()]
    kXml,       // <function=NAME><parameter=KEY>VALUE</parameter></function>
    kHarmony,   // messages with channels
  };
  std::string_view name;
  Body body = Body::kObject;
  // The first text that tells that a call begins; from there on there is no content. "": a call
  // begins with the first brace or bracket, where that is the first text of the answer.
  std::string_view trigger{};
  // As a constrained answer writes it: open, then `before` NAME `middle` ARGUMENTS `after` for each
  // call with `separator` between, then close. Empty `before`: such calls cannot be forced.
  std::string_view open{}, before{}, middle{}, after{}, separator{}, close{};
  std::string_view call_end{};  // behind a call's JSON, where a text stands there
  bool parallel = true;
  int id_digits = 24;     // of a call's id
  bool short_id = false;  // nothing but digits and letters
};

struct ThinkFormat {
  std::string_view name;
  std::string_view open, close;
  std::string_view after;  // what most models write between thinking and a call
};

// Known formats: hermes, llama3_json, mistral, deepseek_v3, phi4_mini_json, pythonic, qwen3_coder,
// openai.
std::span<const CallFormat> CallFormats();
// Null when there is no such name.
const CallFormat* FindCallFormat(std::string_view name);
// What a chat template teaches its model; null: no calls, or in a way that is not known here.
const CallFormat* DetectCallFormat(std::string_view chat_template);

// think (<think>), mistral ([THINK]), openai (channels).
std::span<const ThinkFormat> ThinkFormats();
const ThinkFormat* FindThinkFormat(std::string_view name);
const ThinkFormat* DetectThinkFormat(std::string_view chat_template);

// A prompt that ends inside of thinking: the answer goes on there.
bool EndsInThinking(std::string_view prompt, const ThinkFormat& format);

// The control tokens that either format may write, for who has to spell them out.
std::vector<std::string> MarkersOf(const CallFormat* calls, const ThinkFormat* think);

}  // namespace aisp
