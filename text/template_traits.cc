#include "text/template_traits.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace aisp {
namespace {

// Words that no template contains itself.
constexpr std::string_view kFirst = "zqfirst";
constexpr std::string_view kSecond = "zqsecond";
constexpr std::string_view kSpoken = "zqspoken";

bool Has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// JSON as templates print it (Python's json.dumps).
std::string JsonText(const Value& value) {
  static const auto kPrint = ChatTemplate::Parse("{{ value | tojson }}");
  auto text = kPrint->Render(Value::Map{{"value", value}}, {});
  return text ? std::move(*text) : "{}";
}

Value CallOf(std::string_view id, Value arguments) {
  Value::Map function{{"name", "probe"}};
  function.Set("arguments", std::move(arguments));
  return Value(
      Value::Map{{"id", id}, {"type", "function"}, {"function", Value(std::move(function))}});
}

Value ResultOf(std::string_view id) {
  return Value(
      Value::Map{{"role", "tool"}, {"tool_call_id", id}, {"name", "probe"}, {"content", "done"}});
}

Value Message(std::string_view role, std::string_view content) {
  return Value(Value::Map{{"role", role}, {"content", content}});
}

// Some templates write calls only if tools are given.
Value ProbeTools() {
  const Value parameters(Value::Map{
      {"type", "object"},
      {"properties", Value(Value::Map{{"word", Value(Value::Map{{"type", "string"},
                                                                {"description", "A word."}})}})},
      {"required", Value(Value::List{Value("word")})}});
  const Value function(
      Value::Map{{"name", "probe"}, {"description", "A probe."}, {"parameters", parameters}});
  return Value(Value::List{Value(Value::Map{{"type", "function"}, {"function", function}})});
}

Result<std::string> Render(const ChatTemplate& chat_template, Value::List messages, bool tools) {
  Value::Map context{{"messages", Value(std::move(messages))},
                     {"add_generation_prompt", true},
                     {"bos_token", "<s>"},
                     {"eos_token", "</s>"}};
  if (tools) context.Set("tools", ProbeTools());
  return chat_template.Render(context, {});
}

// Renders a question, an assistant message with calls of these names, and results.
Result<std::string> RenderCalls(const ChatTemplate& chat_template, const TemplateTraits& traits,
                                const Value& content, const std::vector<std::string_view>& words) {
  // Mistral's templates require ids of nine letters and digits.
  constexpr std::array<std::string_view, 2> kIds = {"abcdef123", "abcdef456"};
  Value::List calls, results;
  for (size_t i = 0; i < words.size(); ++i) {
    const Value arguments(Value::Map{{"word", words[i]}});
    calls.push_back(
        CallOf(kIds[i], traits.arguments_as_text ? Value(JsonText(arguments)) : arguments));
    results.push_back(ResultOf(kIds[i]));
  }
  Value::Map message{{"role", "assistant"}};
  message.Set("content", content);
  message.Set("tool_calls", Value(std::move(calls)));
  Value::List messages{Message("user", "Hello."), Value(std::move(message))};
  messages.insert(messages.end(), results.begin(), results.end());
  return Render(chat_template, std::move(messages), /*tools=*/true);
}

// 3: the call appears; 2: it appears, with "None" as content; 1: it does not appear; 0: rendering
// fails.
int RankOf(const Result<std::string>& text) {
  if (!text) return 0;
  if (!Has(*text, kFirst)) return 1;
  return Has(*text, "None") ? 2 : 3;
}

bool Shows(const ChatTemplate& chat_template, std::string_view role) {
  const auto text =
      Render(chat_template, {Message(role, kSpoken), Message("user", "Hello.")}, /*tools=*/false);
  return text && Has(*text, kSpoken);
}

Value EmptyContent(const TemplateTraits& traits) {
  return traits.content_as_text ? Value("") : Value();
}

}  // namespace

TemplateTraits ProbeTemplate(const ChatTemplate& chat_template) {
  TemplateTraits best;
  int best_rank = -1;
  for (const bool content_as_text : {false, true}) {
    for (const bool arguments_as_text : {false, true}) {
      TemplateTraits each;
      each.arguments_as_text = arguments_as_text;
      each.content_as_text = content_as_text;
      const int rank = RankOf(RenderCalls(chat_template, each, EmptyContent(each), {kFirst}));
      if (rank > best_rank) best = each;
      best_rank = std::max(best_rank, rank);
    }
  }
  // If the template writes no calls, there is nothing more to learn.
  if (best_rank >= 2) {
    const auto both = RenderCalls(chat_template, best, EmptyContent(best), {kFirst, kSecond});
    best.several_calls = both && Has(*both, kFirst) && Has(*both, kSecond);
    const auto spoken = RenderCalls(chat_template, best, Value(kSpoken), {kFirst});
    best.calls_beside_content = spoken && Has(*spoken, kFirst);
  }
  best.developer_as_system = !Shows(chat_template, "developer") && Shows(chat_template, "system");
  return best;
}

namespace {

const Value* Member(const Value& message, std::string_view name) {
  return message.IsMap() ? message.AsMap().Find(name) : nullptr;
}

bool IsRole(const Value& message, std::string_view role) {
  const Value* value = Member(message, "role");
  return value != nullptr && value->IsString() && value->AsString() == role;
}

Value WithMember(const Value& message, const std::string& name, Value value) {
  Value::Map out = message.AsMap();
  out.Set(name, std::move(value));
  return Value(std::move(out));
}

// Rewrites assistant messages with calls, each with the results that follow it.
class Shaper {
 public:
  Shaper(const Value::List& messages, const TemplateTraits& traits)
      : in_(messages), traits_(traits) {}

  Value::List Run() {
    for (size_t i = 0; i < in_.size(); ++i) {
      const Value* calls = Member(in_[i], "tool_calls");
      const bool called = calls != nullptr && calls->IsList() && !calls->AsList().empty();
      if (used_.contains(i)) continue;
      if (called && IsRole(in_[i], "assistant")) {
        Calls(i, calls->AsList());
      } else if (traits_.developer_as_system && IsRole(in_[i], "developer")) {
        out_.push_back(WithMember(in_[i], "role", "system"));
      } else {
        out_.push_back(in_[i]);
      }
    }
    return std::move(out_);
  }

 private:
  Value Shaped(const Value& call) const {
    const Value* function = Member(call, "function");
    const Value* arguments = function == nullptr ? nullptr : Member(*function, "arguments");
    if (!traits_.arguments_as_text || arguments == nullptr || !arguments->IsMap()) return call;
    return WithMember(call, "function",
                      WithMember(*function, "arguments", Value(JsonText(*arguments))));
  }

  void Calls(size_t at, const Value::List& calls) {
    Value message = in_[at];
    const Value* content = Member(message, "content");
    const bool spoken = content != nullptr && !content->IsNone() &&
                        !(content->IsString() && content->AsString().empty());
    if (spoken && !traits_.calls_beside_content) {
      Value::Map said = message.AsMap();
      said.Set("tool_calls", Value());
      out_.push_back(Value(std::move(said)));
    }
    if (!spoken || !traits_.calls_beside_content)
      message = WithMember(message, "content", EmptyContent(traits_));
    Value::List shaped;
    for (const Value& call : calls) shaped.push_back(Shaped(call));
    if (traits_.several_calls || shaped.size() == 1)
      return out_.push_back(WithMember(message, "tool_calls", Value(std::move(shaped))));
    for (size_t i = 0; i < shaped.size(); ++i) {
      out_.push_back(WithMember(message, "tool_calls", Value(Value::List{shaped[i]})));
      message = WithMember(message, "content", EmptyContent(traits_));
      TakeResult(at + 1, shaped[i]);
    }
  }

  // Moves the result of `call` here from the messages after its own.
  void TakeResult(size_t from, const Value& call) {
    const Value* id = Member(call, "id");
    for (size_t i = from; i < in_.size() && IsRole(in_[i], "tool"); ++i) {
      const Value* of = Member(in_[i], "tool_call_id");
      const bool same = id != nullptr && of != nullptr && id->IsString() && of->IsString() &&
                        id->AsString() == of->AsString();
      if (!same || !used_.insert(i).second) continue;
      out_.push_back(in_[i]);
      return;
    }
  }

  const Value::List& in_;
  const TemplateTraits& traits_;
  std::set<size_t> used_;  // results already placed after their calls
  Value::List out_;
};

}  // namespace

Value ShapeMessages(const Value& messages, const TemplateTraits& traits) {
  if (!messages.IsList()) return messages;
  return Value(Shaper(messages.AsList(), traits).Run());
}

namespace {

Value Described(const Value& value) {
  if (!value.IsMap()) return value;
  Value::Map out = value.AsMap();
  const Value* description = out.Find("description");
  if (description == nullptr || description->IsNone()) out.Set("description", Value(""));
  return Value(std::move(out));
}

}  // namespace

Value WithDescriptions(const Value& tools) {
  if (!tools.IsList()) return tools;
  Value::List out;
  for (const Value& tool : tools.AsList()) {
    const Value* function = tool.IsMap() ? tool.AsMap().Find("function") : nullptr;
    if (function == nullptr || !function->IsMap()) {
      out.push_back(tool);
      continue;
    }
    Value::Map described = Described(*function).AsMap();
    const Value* parameters = described.Find("parameters");
    const Value* properties = parameters != nullptr && parameters->IsMap()
                                  ? parameters->AsMap().Find("properties")
                                  : nullptr;
    if (properties != nullptr && properties->IsMap()) {
      Value::Map each;
      for (const auto& [name, schema] : properties->AsMap()) each.Set(name, Described(schema));
      Value::Map schema = parameters->AsMap();
      schema.Set("properties", Value(std::move(each)));
      described.Set("parameters", Value(std::move(schema)));
    }
    Value::Map whole = tool.AsMap();
    whole.Set("function", Value(std::move(described)));
    out.push_back(Value(std::move(whole)));
  }
  return Value(std::move(out));
}

}  // namespace aisp
