#include "frontend/answer_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "answer/text_parameters.h"

namespace aisp {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const Value& value) {
  if (value.IsBool()) return value.AsBool();
  if (value.IsInt()) return value.AsInt();
  if (value.IsFloat()) return value.AsFloat();
  if (value.IsString()) return value.AsString();
  if (value.IsList()) {
    Json out = Json::array();
    for (const Value& item : value.AsList()) out.push_back(ToJson(item));
    return out;
  }
  if (!value.IsMap()) return nullptr;
  Json out = Json::object();
  for (const auto& [key, item] : value.AsMap()) out[key] = ToJson(item);
  return out;
}

// The JSON Schema of a tool's arguments, always of type object. A tool without a schema takes no
// arguments, as OpenAI specifies.
Result<std::string> ArgumentsSchema(const ToolSpec& tool) {
  if (!tool.parameters.IsMap()) return R"({"type":"object","additionalProperties":false})";
  Json schema = ToJson(tool.parameters);
  const auto type = schema.find("type");
  if (type == schema.end()) {
    schema["type"] = "object";
  } else if (*type != "object") {
    return InvalidArgument("the parameters of the tool " + tool.name +
                           " must have the type \"object\"");
  }
  return schema.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string Bytes(const v1::Constraint& constraint) {
  // Serialized protobuf is not UTF-8, so JSON carries it as hexadecimal.
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const char c : constraint.SerializeAsString()) {
    out.push_back(kDigits[static_cast<uint8_t>(c) >> 4]);
    out.push_back(kDigits[static_cast<uint8_t>(c) & 15]);
  }
  return out;
}

bool FromBytes(const std::string& hex, v1::Constraint* out) {
  std::string bytes;
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(digit(hex[i]) * 16 + digit(hex[i + 1])));
  return out->ParseFromString(bytes);
}

Result<Json> ToolsOf(const PlanRequest& request) {
  Json out = Json::array();
  const ToolOptions& options = *request.tools;
  for (const ToolSpec& tool : options.tools) {
    if (options.choice == ToolChoice::kNamed && tool.name != options.named) continue;
    AISP_ASSIGN_OR_RETURN(std::string schema, ArgumentsSchema(tool));
    out.push_back({{"name", tool.name}, {"schema", std::move(schema)}, {"strict", tool.strict}});
    if (request.calls->body == CallFormat::Body::kXml)
      out.back()["texts"] = TextParameters(tool.parameters);
  }
  return out;
}

}  // namespace

Result<v1::Constraint> WritePlan(const PlanRequest& request) {
  const bool calls = request.calls != nullptr && request.tools != nullptr;
  const bool forced = calls && (request.tools->choice == ToolChoice::kRequired ||
                                request.tools->choice == ToolChoice::kNamed);
  // Forced calls are the whole answer, so there is no body.
  const bool body =
      !forced && request.body != nullptr && request.body->kind() != v1::Constraint::NONE;
  const bool harmony = (calls && request.calls->body == CallFormat::Body::kHarmony) ||
                       (request.think != nullptr && request.think->name == "openai");
  v1::Constraint out;
  Json plan = Json::object();
  if (calls) {
    plan["format"] = request.calls->name;
    plan["forced"] = forced;
    plan["parallel"] = request.tools->parallel && request.tools->choice != ToolChoice::kNamed;
    AISP_ASSIGN_OR_RETURN(plan["tools"], ToolsOf(request));
  }
  if (body) plan["body"] = Bytes(*request.body);
  const bool free_harmony = harmony && !body && !forced;
  const bool thinks = request.think != nullptr && (!free_harmony || request.think_budget);
  if (thinks && (!plan.empty() || request.think_budget)) {
    plan["think"] = request.think->name;
    plan["in_thinking"] = request.in_thinking;
    if (request.think_budget) plan["budget"] = *request.think_budget;
    if (request.close_ends) plan["close_ends"] = true;
  }
  if (plan.empty()) return out;
  out.set_kind(v1::Constraint::CALLS);
  out.set_force_finish(request.body != nullptr && request.body->force_finish());
  out.set_text(plan.dump(-1, ' ', false, Json::error_handler_t::replace));
  return out;
}

namespace {

// Refuses a required parameter whose name the format cannot write.
Status CheckNames(const std::string& tool, const CallFormat& format, const Json& schema) {
  const auto required = schema.find("required");
  if (!SpellsArguments(format.body) || required == schema.end() || !required->is_array()) return {};
  for (const Json& name : *required) {
    if (!name.is_string() || CanName(format.body, name.get<std::string>())) continue;
    return InvalidArgument("the tool " + tool + " needs the parameter " + name.dump() +
                           ", which calls in the format " + std::string(format.name) +
                           " cannot name");
  }
  return {};
}

// Restricts the schema to names that the format can write, so that a call never reaches a state
// without continuation.
void KeepToNames(const CallFormat& format, Json* schema) {
  if (!SpellsArguments(format.body)) return;
  Json all =
      Json::array({{{"propertyNames", {{"pattern", std::string(NamePattern(format.body))}}}}});
  if (schema->contains("$ref")) {
    // In draft 7 a $ref hides its sibling keywords.
    all.push_back({{"$ref", (*schema)["$ref"]}});
    schema->erase("$ref");
  }
  if (const auto before = schema->find("allOf"); before != schema->end() && before->is_array())
    all.insert(all.end(), before->begin(), before->end());
  (*schema)["allOf"] = std::move(all);
}

// The constraint for a tool's arguments in the spelling of the format.
Result<std::shared_ptr<Constraint>> CompileArguments(const Json& tool, const CallFormat& format,
                                                     const PlanParts& parts) {
  const std::string name = tool.at("name").get<std::string>();
  const bool strict = tool.value("strict", false);
  const auto compile = [&](Json schema) -> Result<std::shared_ptr<Constraint>> {
    KeepToNames(format, &schema);
    v1::Constraint constraint;
    constraint.set_kind(v1::Constraint::JSON_SCHEMA);
    constraint.set_text(schema.dump(-1, ' ', false, Json::error_handler_t::replace));
    // Compact, so that a model that does not know the format cannot write blanks forever.
    constraint.set_compact(true);
    if (!strict) constraint.add_relaxed("*");
    return parts.compile(constraint);
  };
  const Json schema = Json::parse(tool.at("schema").get<std::string>());
  AISP_RETURN_IF_ERROR(CheckNames(name, format, schema));
  auto compiled = compile(schema);
  // As OpenAI without `strict`: fall back to any object.
  if (!compiled && !strict) compiled = compile(Json{{"type", "object"}});
  if (!compiled) return tl::unexpected(compiled.error().WithContext("the tool " + name));
  if (!SpellsArguments(format.body)) return compiled;
  std::vector<std::string> texts;
  if (tool.contains("texts")) texts = tool.at("texts").get<std::vector<std::string>>();
  return SpellArguments(format.body, std::move(*compiled), parts.spelled(), texts);
}

Status ReadTools(const Json& json, const CallFormat& format, const PlanParts& parts,
                 AnswerPlan* plan) {
  plan->open = format.open;
  plan->before = format.before;
  plan->middle = format.middle;
  plan->after = format.after;
  plan->separator = format.separator;
  plan->close = format.close;
  plan->parallel = json.value("parallel", true) && format.parallel;
  plan->free_markers = format.body == CallFormat::Body::kHarmony;
  const bool pythonic = format.body == CallFormat::Body::kPythonic;
  if (pythonic) plan->arguments_end = ')';
  if (format.body == CallFormat::Body::kXml) plan->arguments_end = '>';
  const bool forced = json.value("forced", false);
  plan->then = forced ? AnswerPlan::Then::kCalls : AnswerPlan::Then::kFree;
  if (!forced && pythonic) {
    // These calls have no marker that distinguishes them from a list, so any other text is allowed.
    v1::Constraint any;
    any.set_kind(v1::Constraint::REGEX);
    any.set_text("[\\s\\S]*");
    AISP_ASSIGN_OR_RETURN(plan->body, parts.compile(any));
    plan->then = AnswerPlan::Then::kBody;
  } else if (!forced) {
    plan->trigger_at_start = format.trigger.empty() && !plan->free_markers;
    plan->trigger = format.trigger.empty() ? format.before : format.trigger;
  }
  for (const Json& tool : json.at("tools")) {
    AISP_ASSIGN_OR_RETURN(auto arguments, CompileArguments(tool, format, parts));
    plan->tools.push_back({tool.at("name").get<std::string>(), std::move(arguments)});
  }
  return {};
}

}  // namespace

Result<AnswerPlan> ReadPlan(const std::string& text, const Tokenizer& tokenizer,
                            const PlanParts& parts) {
  AnswerPlan plan;
  bool close_ends = false;
  const CallFormat* calls = nullptr;
  const ThinkFormat* think = nullptr;
  try {
    const Json json = Json::parse(text);
    if (json.contains("format")) {
      calls = FindCallFormat(json.at("format").get<std::string>());
      if (calls == nullptr) return InvalidArgument("a plan with an unknown format of calls");
      AISP_RETURN_IF_ERROR(ReadTools(json, *calls, parts, &plan));
    }
    if (json.contains("think")) {
      think = FindThinkFormat(json.at("think").get<std::string>());
      if (think == nullptr) return InvalidArgument("a plan with an unknown format of thinking");
      plan.think_open = think->open;
      plan.think_close = think->close;
      plan.after_thinking = think->after;
      plan.think_is_open = json.value("in_thinking", false);
      plan.think_budget = json.value("budget", int64_t{-1});
      if (think->name == "openai") plan.free_markers = true;
      close_ends = json.value("close_ends", false);
    }
    if (json.contains("body")) {
      v1::Constraint body;
      if (!FromBytes(json.at("body").get<std::string>(), &body) ||
          body.kind() == v1::Constraint::CALLS) {
        return InvalidArgument("a plan whose body is none");
      }
      AISP_ASSIGN_OR_RETURN(plan.body, parts.compile(body));
      plan.then = AnswerPlan::Then::kBody;
      plan.body_open = BodyOpening(calls, think);
      plan.trigger.clear();
    }
  } catch (const nlohmann::json::exception& error) {
    return InvalidArgument(std::string("not a plan: ") + error.what());
  }
  for (const std::string& marker : MarkersOf(calls, think)) {
    if (close_ends && marker == think->close) continue;
    const auto id = tokenizer.TokenToId(marker);
    if (id && tokenizer.IsSpecial(*id)) plan.markers.emplace_back(*id, marker);
  }
  std::sort(plan.markers.begin(), plan.markers.end());
  plan.markers.erase(std::unique(plan.markers.begin(), plan.markers.end()), plan.markers.end());
  return plan;
}

}  // namespace aisp
