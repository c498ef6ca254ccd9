// Reads untrusted JSON field by field, with errors that name the field. For .cc files of text/ that
// read files: it includes nlohmann. Value types: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/result.h"

namespace aisp {

// A JSON value and its path from the root. Refers to a document that must outlive it.
class JsonField {
 public:
  JsonField(const nlohmann::json* value, std::string path)
      : value_(value), path_(std::move(path)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& path() const { return path_; }
  bool IsNull() const { return value_->is_null(); }
  bool IsObject() const { return value_->is_object(); }
  bool IsArray() const { return value_->is_array(); }
  bool IsString() const { return value_->is_string(); }

  // A member; null when absent or when this is not an object.
  JsonField At(const char* key) const {
    static const nlohmann::json kNull;
    const std::string path = path_.empty() ? key : path_ + "." + key;
    if (!value_->is_object()) return {&kNull, path};
    const auto it = value_->find(key);
    return {it == value_->end() ? &kNull : &*it, path};
  }
  // The elements of an array; empty for anything else.
  std::vector<JsonField> Elements() const {
    std::vector<JsonField> out;
    if (!value_->is_array()) return out;
    out.reserve(value_->size());
    for (size_t i = 0; i < value_->size(); ++i) {
      out.emplace_back(&(*value_)[i], path_ + "[" + std::to_string(i) + "]");
    }
    return out;
  }

  tl::unexpected<Error> Wrong(std::string_view what) const {
    return InvalidArgument("field \"" + path_ + "\" " + std::string(what));
  }
  tl::unexpected<Error> Unsupported(const std::string& what) const {
    return Unimplemented("field \"" + path_ + "\": " + what + " is not supported");
  }

  Result<std::string> String() const {
    if (!value_->is_string()) return Wrong("must be a string");
    return value_->get_ref<const std::string&>();
  }
  Result<std::string> StringOr(std::string_view absent) const {
    if (IsNull()) return std::string(absent);
    return String();
  }
  Result<bool> BoolOr(bool absent) const {
    if (IsNull()) return absent;
    if (!value_->is_boolean()) return Wrong("must be true or false");
    return value_->get<bool>();
  }
  // An integer within [low, high].
  Result<int64_t> Int(int64_t low, int64_t high) const {
    const bool fits = value_->is_number_integer() &&
                      !(value_->is_number_unsigned() &&
                        value_->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
    const int64_t v = fits ? value_->get<int64_t>() : 0;
    if (!fits || v < low || v > high) {
      return Wrong("must be an integer from " + std::to_string(low) + " to " +
                   std::to_string(high));
    }
    return v;
  }
  Result<int64_t> IntOr(int64_t absent, int64_t low, int64_t high) const {
    if (IsNull()) return absent;
    return Int(low, high);
  }

 private:
  const nlohmann::json* value_;
  std::string path_;
};

// Parses a document; INVALID_ARGUMENT when it is not a JSON object.
inline Result<nlohmann::json> ParseJsonObject(std::string_view text) {
  nlohmann::json document =
      nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) return InvalidArgument("not valid JSON");
  if (!document.is_object()) return InvalidArgument("must be a JSON object");
  return document;
}

}  // namespace aisp
