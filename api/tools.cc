// Reads tools, tool_choice, parallel_tool_calls and the thinking options.
#include "api/tools.h"

#include <algorithm>
#include <array>

#include "api/json_value.h"
#include "api/read_options.h"

namespace aisp {
namespace {

constexpr size_t kMaxToolName = 64;

bool IsToolName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxToolName &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-' || c == '.';
         });
}

bool ReadTool(Fields* fields, const std::string& at, const Value& value, ToolSpec* out) {
  const Value* type = value.IsMap() ? value.AsMap().Find("type") : nullptr;
  const Value* function = value.IsMap() ? value.AsMap().Find("function") : nullptr;
  if (type == nullptr || !type->IsString() || type->AsString() != "function" ||
      function == nullptr || !function->IsMap()) {
    fields->Refuse("tools",
                   at + " must be {\"type\": \"function\", \"function\": {...}}: other kinds "
                        "of tools are not supported by this server");
    return false;
  }
  Fields each(&function->AsMap(), at + ".function.");
  each.String("name", kMaxToolName, &out->name);
  each.Bool("strict", &out->strict);
  if (each.Object("parameters") != nullptr) out->parameters = *each.Find("parameters");
  if (each.ok() && !IsToolName(out->name)) {
    each.Refuse("name", at +
                            ".function.name must be 1 to 64 letters, digits, '_', '-' or '.', "
                            "but is " +
                            Describe(Value(out->name)));
  }
  if (!each.ok()) fields->SetError(each.error().value());
  return each.ok();
}

// The name in {"type": "function", "function": {"name": ...}}.
const Value* NameIn(const Value& choice) {
  const Value* function = choice.IsMap() ? choice.AsMap().Find("function") : nullptr;
  const Value* name =
      function != nullptr && function->IsMap() ? function->AsMap().Find("name") : nullptr;
  return name != nullptr && name->IsString() ? name : nullptr;
}

// {"mode": "auto" or "required", "tools": [...]}: only these may be called.
void ReadAllowed(Fields* fields, const Value::Map& allowed, ToolOptions* out) {
  Fields each(&allowed, "tool_choice.allowed_tools.");
  std::string mode = "auto";
  each.String("mode", 64, &mode);
  if (each.ok() && mode != "auto" && mode != "required")
    each.Wrong("mode", Value(mode), "\"auto\" or \"required\"");
  std::vector<ToolSpec> kept;
  const Value::List* list = each.List("tools", kMaxTools);
  for (size_t i = 0; each.ok() && list != nullptr && i < list->size(); ++i) {
    const Value* name = NameIn((*list)[i]);
    const auto tool = std::find_if(
        out->tools.begin(), out->tools.end(),
        [name](const ToolSpec& spec) { return name != nullptr && spec.name == name->AsString(); });
    if (tool == out->tools.end()) {
      each.Wrong("tools", (*list)[i],
                 "a list of {\"type\": \"function\", \"function\": {\"name\": ...}} of the tools");
    } else if (std::none_of(kept.begin(), kept.end(),
                            [&tool](const ToolSpec& spec) { return spec.name == tool->name; })) {
      kept.push_back(*tool);
    }
  }
  if (each.ok() && kept.empty()) each.Refuse("tools", "tool_choice.allowed_tools has no tools");
  if (!each.ok()) return fields->SetError(each.error().value());
  out->choice = mode == "required" ? ToolChoice::kRequired : ToolChoice::kAuto;
  out->some = kept.size() < out->tools.size();
  out->tools = std::move(kept);
}

void ReadChoice(Fields* fields, ToolOptions* out) {
  const Value* choice = fields->Find("tool_choice");
  if (choice == nullptr) return;
  constexpr std::string_view kWords =
      "\"none\", \"auto\", \"required\", "
      "{\"type\": \"function\", \"function\": {\"name\": ...}} or "
      "{\"type\": \"allowed_tools\", \"allowed_tools\": {\"mode\": ..., \"tools\": [...]}}";
  if (choice->IsMap()) {
    const Value* allowed = choice->AsMap().Find("allowed_tools");
    if (allowed != nullptr && allowed->IsMap()) return ReadAllowed(fields, allowed->AsMap(), out);
  }
  if (choice->IsString()) {
    const std::string& word = choice->AsString();
    if (word == "none") {
      out->choice = ToolChoice::kNone;
    } else if (word == "required") {
      out->choice = ToolChoice::kRequired;
    } else if (word != "auto") {
      fields->Wrong("tool_choice", *choice, kWords);
    }
  } else {
    const Value* name = NameIn(*choice);
    if (name == nullptr) return fields->Wrong("tool_choice", *choice, kWords);
    out->choice = ToolChoice::kNamed;
    out->named = name->AsString();
  }
  const bool forced = out->choice == ToolChoice::kRequired || out->choice == ToolChoice::kNamed;
  if (forced && out->tools.empty()) {
    return fields->Refuse("tool_choice", "tool_choice asks for a call, and there are no tools");
  }
  const bool known = std::any_of(out->tools.begin(), out->tools.end(),
                                 [out](const ToolSpec& each) { return each.name == out->named; });
  if (out->choice == ToolChoice::kNamed && !known) {
    fields->Refuse("tool_choice", "tool_choice names " + Describe(Value(out->named)) +
                                      ", which is none of the tools");
  }
}

}  // namespace

void ReadTools(Fields* fields, ChatRequest* out) {
  ToolOptions& tools = out->tool_options;
  if (const Value::List* list = fields->List("tools", kMaxTools)) {
    for (size_t i = 0; i < list->size(); ++i) {
      ToolSpec tool;
      if (!ReadTool(fields, "tools[" + std::to_string(i) + "]", (*list)[i], &tool)) return;
      const bool twice =
          std::any_of(tools.tools.begin(), tools.tools.end(),
                      [&tool](const ToolSpec& each) { return each.name == tool.name; });
      if (twice) return fields->Refuse("tools", "tools has the name " + tool.name + " twice");
      tools.tools.push_back(std::move(tool));
    }
    if (!list->empty()) out->tools = *fields->Find("tools");
  }
  ReadChoice(fields, &tools);
  fields->Bool("parallel_tool_calls", &tools.parallel);
  // A model that must not call tools should not be shown any.
  if (tools.choice == ToolChoice::kNone) out->tools = Value();
  CheckForceFinish(fields, *out, tools.CallsPossible());
  if (!fields->ok() || !tools.CallsPossible()) return;
  if (out->min_tokens > 0) {
    fields->Refuse("min_tokens", "min_tokens cannot be promised beside tools");
  }
}

void ReadThinking(Fields* fields, ChatRequest* out) {
  ThinkingOptions& thinking = out->thinking;
  fields->String("reasoning_effort", 16, &thinking.effort);
  constexpr std::array kEfforts = {"none", "minimal", "low", "medium", "high", "xhigh"};
  if (!thinking.effort.empty() &&
      std::find(kEfforts.begin(), kEfforts.end(), thinking.effort) == kEfforts.end()) {
    return fields->Wrong("reasoning_effort", Value(thinking.effort),
                         "one of none, minimal, low, medium, high and xhigh");
  }
  if (fields->Find("thinking_token_budget") != nullptr) {
    uint32_t budget = 0;
    fields->IntInto("thinking_token_budget", 0, INT32_MAX, &budget);
    thinking.budget = budget;
  }
  fields->Bool("include_reasoning", &thinking.include);
}

}  // namespace aisp
