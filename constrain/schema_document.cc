#include "constrain/schema_document.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

namespace aisp {
namespace {

constexpr std::array<std::string_view, 14> kSchemaKeywords = {"additionalProperties",
                                                              "additionalItems",
                                                              "items",
                                                              "contains",
                                                              "not",
                                                              "if",
                                                              "then",
                                                              "else",
                                                              "propertyNames",
                                                              "unevaluatedProperties",
                                                              "unevaluatedItems",
                                                              "contentSchema",
                                                              "extends",
                                                              "disallow"};
constexpr std::array<std::string_view, 6> kMapKeywords = {
    "properties", "patternProperties", "definitions", "$defs", "dependentSchemas", "dependencies"};
constexpr std::array<std::string_view, 5> kListKeywords = {"allOf", "anyOf", "oneOf", "prefixItems",
                                                           "items"};

// Third-party dialects that only add annotations, with the draft they are based on: OpenAPI 3.1 and
// later, Snowplow's self-describing schemas, CloudFormation resource types.
constexpr std::array<std::pair<std::string_view, Draft>, 4> kDialectsOfOthers = {{
    {"spec.openapis.org/oas/3.", Draft::k2020},
    {"iglucentral.com/schemas/com.snowplowanalytics.self-desc/", Draft::k4},
    {"cloudformation-resource-schema", Draft::k7},
    {"cloudformation.us-east-1.amazonaws.com/provider.definition.schema", Draft::k7},
}};

template <typename Array>
bool Has(const Array& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

Result<Draft> DraftOf(const Json& schema, Draft outer) {
  const Json* name = schema.IsObject() ? schema.Find("$schema") : nullptr;
  if (name == nullptr) return outer;
  if (!name->IsString()) return InvalidArgument("$schema at '': not a string");
  const std::string_view uri = name->text;
  for (const auto& [dialect, draft] : kDialectsOfOthers) {
    if (uri.find(dialect) != std::string_view::npos) return draft;
  }
  if (uri.find("json-schema.org") == std::string_view::npos) {
    return Unimplemented("$schema at '': unknown dialect '" + name->text +
                         "'; known are draft 4, 6, 7, 2019-09 and 2020-12 of json-schema.org");
  }
  for (const std::string_view old : {"draft-00", "draft-01", "draft-02", "draft-03"}) {
    if (uri.find(old) != std::string_view::npos) {
      return Unimplemented("$schema at '': '" + name->text + "' is older than draft 4");
    }
  }
  if (uri.find("draft-04") != std::string_view::npos) return Draft::k4;
  if (uri.find("draft-05") != std::string_view::npos) return Draft::k4;
  if (uri.find("draft-06") != std::string_view::npos) return Draft::k6;
  if (uri.find("draft-07") != std::string_view::npos) return Draft::k7;
  if (uri.find("2019-09") != std::string_view::npos) return Draft::k2019;
  return Draft::k2020;
}

// scheme:, //authority, path, ?query
struct Uri {
  std::string_view scheme, authority, path, query;
};

Uri Split(std::string_view text) {
  Uri out;
  text = text.substr(0, text.find('#'));
  const size_t colon = text.find_first_of(":/?");
  if (colon != std::string_view::npos && text[colon] == ':' && colon > 0) {
    out.scheme = text.substr(0, colon + 1);
    text.remove_prefix(colon + 1);
  }
  const size_t query = text.find('?');
  if (query != std::string_view::npos) {
    out.query = text.substr(query);
    text = text.substr(0, query);
  }
  if (text.starts_with("//")) {
    const size_t end = std::min(text.find('/', 2), text.size());
    out.authority = text.substr(0, end);
    text.remove_prefix(end);
  }
  out.path = text;
  return out;
}

std::string WithoutDots(std::string_view path) {
  std::vector<std::string_view> out;
  const bool rooted = path.starts_with('/');
  size_t at = rooted ? 1 : 0;
  while (at <= path.size()) {
    const size_t end = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, end - at);
    const bool last = end == path.size();
    if (part == "..") {
      if (!out.empty()) out.pop_back();
      if (last) out.emplace_back();
    } else if (part == ".") {
      if (last) out.emplace_back();
    } else {
      out.push_back(part);
    }
    at = end + 1;
  }
  std::string text = rooted ? "/" : "";
  for (size_t i = 0; i < out.size(); ++i) {
    if (i > 0) text += '/';
    text += out[i];
  }
  return text;
}

std::optional<std::string> DecodePercent(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    int value = 0;
    for (int k = 1; k <= 2; ++k) {
      const char c =
          i + static_cast<size_t>(k) < text.size() ? text[i + static_cast<size_t>(k)] : 'x';
      const char lower = static_cast<char>(c | 32);
      const int digit = c >= '0' && c <= '9'           ? c - '0'
                        : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10
                                                       : -1;
      if (digit < 0) return std::nullopt;
      value = value * 16 + digit;
    }
    out += static_cast<char>(value);
    i += 2;
  }
  return out;
}

// Follows an unescaped JSON pointer; null when it does not exist.
const Json* Follow(const Json* from, std::string_view pointer) {
  while (!pointer.empty() && from != nullptr) {
    pointer.remove_prefix(1);
    const size_t end = std::min(pointer.find('/'), pointer.size());
    std::string token;
    for (size_t i = 0; i < end; ++i) {
      if (pointer[i] == '~' && i + 1 < end) {
        token += pointer[++i] == '1' ? '/' : '~';
      } else {
        token += pointer[i];
      }
    }
    pointer.remove_prefix(end);
    if (from->IsObject()) {
      from = from->Find(token);
    } else if (from->IsArray() && !token.empty() && token.size() < 9 &&
               token.find_first_not_of("0123456789") == std::string::npos) {
      const auto index = static_cast<size_t>(std::stoul(token));
      from = index < from->items.size() ? &from->items[index] : nullptr;
    } else {
      from = nullptr;
    }
  }
  return from;
}

}  // namespace

std::string ResolveUri(std::string_view base, std::string_view reference) {
  const Uri r = Split(reference), b = Split(base);
  std::string out;
  if (!r.scheme.empty()) return std::string(reference.substr(0, reference.find('#')));
  out += b.scheme;
  if (!r.authority.empty()) {
    out += r.authority;
    out += WithoutDots(r.path);
    out += r.query;
    return out;
  }
  out += b.authority;
  if (r.path.empty()) {
    out += b.path;
    out += r.query.empty() ? b.query : r.query;
    return out;
  }
  if (r.path.starts_with('/')) {
    out += WithoutDots(r.path);
  } else {
    const size_t slash = b.path.rfind('/');
    std::string merged(slash == std::string_view::npos ? (b.authority.empty() ? "" : "/")
                                                       : b.path.substr(0, slash + 1));
    merged += r.path;
    out += WithoutDots(merged);
  }
  out += r.query;
  return out;
}

std::string EscapePointer(std::string_view token) {
  std::string out;
  for (const char c : token) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

Result<std::unique_ptr<SchemaDocument>> SchemaDocument::Open(std::string_view text) {
  std::unique_ptr<SchemaDocument> out(new SchemaDocument());
  auto json = ParseJson(text);
  if (!json) return tl::unexpected(json.error().WithContext("schema"));
  out->root_ = std::move(*json);
  out->resources_["schema:"] = &out->root_;
  AISP_RETURN_IF_ERROR(out->Index(out->root_, "schema:", "", Draft::k2020, 0));
  return out;
}

Status SchemaDocument::Index(const Json& json, const std::string& base, const std::string& pointer,
                             Draft draft, int depth) {
  if (places_.contains(&json)) return {};
  SchemaPlace place{&json, base, pointer, draft};
  if (json.IsObject()) {
    AISP_ASSIGN_OR_RETURN(place.draft, DraftOf(json, draft));
    const Json* id = json.Find(place.draft == Draft::k4 ? "id" : "$id");
    const bool ignored = place.draft <= Draft::k7 && json.Find("$ref") != nullptr;
    if (id != nullptr && id->IsString() && !ignored) {
      const size_t hash = id->text.find('#');
      if (hash != 0) {
        place.base = ResolveUri(base, id->text);
        resources_.try_emplace(place.base, &json);
        embedded_ = embedded_ || &json != &root_;
      }
      if (hash != std::string::npos && hash + 1 < id->text.size()) {
        anchors_.try_emplace(place.base + id->text.substr(hash), &json);
      }
    }
    for (const char* name : {"$anchor", "$dynamicAnchor"}) {
      const Json* anchor = json.Find(name);
      if (anchor == nullptr || !anchor->IsString()) continue;
      anchors_.try_emplace(place.base + "#" + anchor->text, &json);
      if (name[1] != 'd') continue;
      dynamic_anchors_[place.base].try_emplace(anchor->text, &json);
      many_dynamic_anchors_ = many_dynamic_anchors_ || ++dynamic_counts_[anchor->text] > 1;
    }
    const Json* recursive = json.Find("$recursiveAnchor");
    recursive_anchor_ = recursive_anchor_ || (recursive != nullptr && recursive->boolean);
  }
  const SchemaPlace copy = place;
  places_.emplace(&json, std::move(place));
  return IndexChildren(json, copy.base, pointer, copy.draft, depth + 1);
}

Status SchemaDocument::IndexChildren(const Json& json, const std::string& base,
                                     const std::string& pointer, Draft draft, int depth) {
  for (const auto& [name, value] : json.members) {
    const std::string path = pointer + "/" + EscapePointer(name);
    if (Has(kSchemaKeywords, name) && (value.IsObject() || value.IsBool())) {
      AISP_RETURN_IF_ERROR(Index(value, base, path, draft, depth));
    } else if (Has(kMapKeywords, name) && value.IsObject()) {
      for (const auto& [key, child] : value.members) {
        if (!child.IsObject() && !child.IsBool()) continue;
        AISP_RETURN_IF_ERROR(Index(child, base, path + "/" + EscapePointer(key), draft, depth));
      }
    } else if (Has(kListKeywords, name) && value.IsArray()) {
      for (size_t i = 0; i < value.items.size(); ++i) {
        AISP_RETURN_IF_ERROR(
            Index(value.items[i], base, path + "/" + std::to_string(i), draft, depth));
      }
    }
  }
  return {};
}

const SchemaPlace& SchemaDocument::Child(const SchemaPlace& parent, const Json& child,
                                         const std::string& path) {
  const auto it = places_.find(&child);
  if (it != places_.end()) return it->second;
  SchemaPlace place{&child, parent.base, parent.pointer + "/" + path, parent.draft};
  return places_.emplace(&child, std::move(place)).first->second;
}

Result<const SchemaPlace*> SchemaDocument::Resolve(const SchemaPlace& from,
                                                   const std::string& reference) {
  const std::string base = from.base;
  const Draft draft = from.draft;
  const std::string uri = ResolveUri(base, reference);
  const size_t hash = reference.find('#');
  const std::string raw = hash == std::string::npos ? "" : reference.substr(hash + 1);
  const auto fragment = DecodePercent(raw);
  if (!fragment) return NotFound("'" + reference + "' is not a reference");
  const auto resource = resources_.find(uri);
  const Json* target = nullptr;
  if (!fragment->empty() && fragment->front() != '/') {
    const auto anchor = anchors_.find(uri + "#" + *fragment);
    if (anchor != anchors_.end()) target = anchor->second;
  } else if (resource != resources_.end()) {
    target = Follow(resource->second, *fragment);
  }
  if (target == nullptr) return NotFound("'" + reference + "' is not in this document");
  if (const auto it = places_.find(target); it != places_.end()) return &it->second;
  // A place that becomes a schema only because something refers to it.
  const SchemaPlace owner = places_.at(resource->second);
  AISP_RETURN_IF_ERROR(Index(*target, owner.base, owner.pointer + *fragment, draft, 0));
  return &places_.at(target);
}

void SchemaDocument::Enter(const SchemaPlace& place, DynamicScope* scope) const {
  const auto own = dynamic_anchors_.find(place.base);
  if (own != dynamic_anchors_.end()) scope->insert(own->second.begin(), own->second.end());
}

Result<const SchemaPlace*> SchemaDocument::ResolveDynamic(const SchemaPlace& from,
                                                          const std::string& reference,
                                                          const DynamicScope& scope) {
  AISP_ASSIGN_OR_RETURN(const SchemaPlace* target, Resolve(from, reference));
  const Json* anchor = target->json->IsObject() ? target->json->Find("$dynamicAnchor") : nullptr;
  const size_t hash = reference.find('#');
  const bool dynamic =
      anchor != nullptr && hash != std::string::npos && anchor->text == reference.substr(hash + 1);
  const auto first = dynamic ? scope.find(anchor->text) : scope.end();
  return first == scope.end() ? target : &places_.at(first->second);
}

}  // namespace aisp
