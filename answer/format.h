// How models write tool calls and thinking: formats as data. A format says which texts stand around
// a call; the parser (answer/parser.h) reads them, and a server that constrains an answer has the
// model write the same. Which format a model knows is seen from its chat template. Plain data.
#pragma once

#include <cstdint>
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
    kMarked,    // marker NAME marker {...}
  };
  std::string_view name;
  Body body = Body::kObject;
  // The first text that tells that a call begins; from there on there is no content. "": a call
  // begins with the first brace or bracket, where that is the first text of the answer.
  std::string_view trigger{};
  // As a constrained answer writes it: open, then `before` NAME `middle` ARGUMENTS `after` for each
  // call with `separator` between, then close.
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

// Known formats: hermes, llama3_json, mistral, mistral_args, deepseek_v3, phi4_mini_json, pythonic,
// qwen3_coder, openai.
std::span<const CallFormat> CallFormats();
// Null when there is no such name.
const CallFormat* FindCallFormat(std::string_view name);
// What a chat template teaches its model; null: no calls, or in a way that is not known here.
// `args_token`: the tokenizer has [ARGS] as a control token, which Mistral's have since models
// write it, also where a template is older.
const CallFormat* DetectCallFormat(std::string_view chat_template, bool args_token = false);

// think (<think>), mistral ([THINK]), openai (channels).
std::span<const ThinkFormat> ThinkFormats();
const ThinkFormat* FindThinkFormat(std::string_view name);
const ThinkFormat* DetectThinkFormat(std::string_view chat_template);

// What a call of the tool begins with, up to its arguments, as the first of an answer.
std::string OpeningOf(const CallFormat& format, std::string_view tool);

// What stands before an answer that is neither thinking nor a call: a header, or nothing.
std::string_view BodyOpening(const CallFormat* calls, const ThinkFormat* think);

// A prompt that ends inside of thinking: the answer goes on there.
bool EndsInThinking(std::string_view prompt, const ThinkFormat& format);
// One that ends behind it, as templates write where thinking is turned off: none follows.
bool EndsBehindThinking(std::string_view prompt, const ThinkFormat& format);

// The control tokens that either format may write, for who has to spell them out.
std::vector<std::string> MarkersOf(const CallFormat* calls, const ThinkFormat* think);

}  // namespace aisp
