#include "answer/text_parameters.h"

#include <algorithm>
#include <string_view>

namespace aisp {
namespace {

constexpr int kMaxDepth = 16;

const Value* Member(const Value* value, const std::string& name) {
  return value != nullptr && value->IsMap() ? value->AsMap().Find(name) : nullptr;
}

// What "#/$defs/a" points to; null for any other reference.
const Value* Resolve(const Value& root, std::string_view pointer) {
  if (!pointer.starts_with("#/") || pointer.find_first_of("~%") != std::string_view::npos)
    return nullptr;
  const Value* at = &root;
  for (pointer.remove_prefix(2); at != nullptr;) {
    const size_t end = pointer.find('/');
    at = Member(at, std::string(pointer.substr(0, end)));
    if (end == std::string_view::npos) break;
    pointer.remove_prefix(end + 1);
  }
  return at;
}

bool IsText(const Value& root, const Value& schema, int depth) {
  if (depth > kMaxDepth || !schema.IsMap()) return false;
  const auto text = [&](const Value& each) { return IsText(root, each, depth + 1); };
  if (const Value* type = Member(&schema, "type"); type != nullptr && !type->IsNone())
    return type->IsString() && type->AsString() == "string";
  if (const Value* only = Member(&schema, "const")) return only->IsString();
  if (const Value* list = Member(&schema, "enum"); list != nullptr && list->IsList()) {
    return !list->AsList().empty() &&
           std::all_of(list->AsList().begin(), list->AsList().end(),
                       [](const Value& each) { return each.IsString(); });
  }
  if (const Value* ref = Member(&schema, "$ref"); ref != nullptr && ref->IsString()) {
    const Value* target = Resolve(root, ref->AsString());
    return target != nullptr && text(*target);
  }
  for (const char* name : {"anyOf", "oneOf", "allOf"}) {
    const Value* list = Member(&schema, name);
    if (list == nullptr || !list->IsList() || list->AsList().empty()) continue;
    const Value::List& parts = list->AsList();
    const bool all = std::string_view(name) == "allOf";
    return all ? std::any_of(parts.begin(), parts.end(), text)
               : std::all_of(parts.begin(), parts.end(), text);
  }
  return false;
}

}  // namespace

bool IsTextParameter(const Value& schema, const std::string& key) {
  const Value* property = Member(Member(&schema, "properties"), key);
  return property != nullptr && IsText(schema, *property, 0);
}

std::vector<std::string> TextParameters(const Value& schema) {
  std::vector<std::string> out;
  const Value* properties = Member(&schema, "properties");
  if (properties == nullptr || !properties->IsMap()) return out;
  for (const auto& [key, property] : properties->AsMap()) {
    if (IsText(schema, property, 0)) out.push_back(key);
  }
  return out;
}

}  // namespace aisp
