// SchemaDocument: a JSON Schema text with every subschema's place: base URI, draft, JSON pointer,
// and the targets of its references. Nothing is fetched: a reference to another document is an
// error. Immutable after Open except for lazily indexed places; one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "constrain/json.h"

namespace aisp {

enum class Draft : uint8_t { k4, k6, k7, k2019, k2020 };

struct SchemaPlace {
  const Json* json = nullptr;
  std::string base;     // URI without fragment
  std::string pointer;  // from the root of the document
  Draft draft = Draft::k2020;
};

class SchemaDocument {
 public:
  // INVALID_ARGUMENT / UNIMPLEMENTED name the place: not JSON, or an unknown $schema.
  static Result<std::unique_ptr<SchemaDocument>> Open(std::string_view text);

  const SchemaPlace& root() const { return places_.at(&root_); }
  // The place of a subschema, reached by `path` below `parent` (a keyword, or keyword/name).
  const SchemaPlace& Child(const SchemaPlace& parent, const Json& child, const std::string& path);
  // NOT_FOUND when the target is not in this document.
  Result<const SchemaPlace*> Resolve(const SchemaPlace& from, const std::string& reference);
  // For $dynamicRef: each $dynamicAnchor name with the first schema met on the way.
  using DynamicScope = std::map<std::string, const Json*>;
  // Adds the anchors of the resource that contains a place.
  void Enter(const SchemaPlace& place, DynamicScope* scope) const;
  // As Resolve, for $dynamicRef.
  Result<const SchemaPlace*> ResolveDynamic(const SchemaPlace& from, const std::string& reference,
                                            const DynamicScope& scope);
  // False: every name has a single meaning.
  bool ManyDynamicAnchors() const { return many_dynamic_anchors_; }
  // Whether the target of $recursiveRef depends on the path; never in a single-resource document.
  bool HasRecursiveScopes() const { return recursive_anchor_ && embedded_; }

 private:
  SchemaDocument() = default;
  Status Index(const Json& json, const std::string& base, const std::string& pointer, Draft draft,
               int depth);
  Status IndexChildren(const Json& json, const std::string& base, const std::string& pointer,
                       Draft draft, int depth);

  Json root_;
  std::unordered_map<const Json*, SchemaPlace> places_;
  std::map<std::string, const Json*> resources_;         // by URI
  std::map<std::string, const Json*> anchors_;           // by URI#name
  std::map<std::string, DynamicScope> dynamic_anchors_;  // by resource's URI
  std::map<std::string, int> dynamic_counts_;            // by name
  bool many_dynamic_anchors_ = false, recursive_anchor_ = false;
  bool embedded_ = false;  // subschemas with their own ids
};

// RFC 3986, section 5.2, without a fragment's part.
std::string ResolveUri(std::string_view base, std::string_view reference);
std::string EscapePointer(std::string_view token);

}  // namespace aisp
