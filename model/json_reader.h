// Reads numbers from untrusted JSON, with errors that name the key. Include in .cc files only
// (nlohmann).
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>

#include "common/result.h"

namespace aisp {

using Json = nlohmann::json;

inline Result<Json> ParseJsonObject(std::string_view text, std::string_view what) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return InvalidArgument(fmt::format("{}: not valid JSON", what));
  if (!json.is_object()) return InvalidArgument(fmt::format("{}: a JSON object is expected", what));
  return json;
}

// Reads keys of one object; the first error is kept.
class JsonReader {
 public:
  JsonReader(const Json& json, std::string name) : json_(json), name_(std::move(name)) {}

  bool Has(const char* key) const { return json_.contains(key) && !json_.at(key).is_null(); }

  int32_t Int(const char* key, int32_t min, int32_t max) {
    if (!Has(key)) return Missing<int32_t>(key);
    const Json& v = json_.at(key);
    const bool whole =
        v.is_number_integer() ||
        (v.is_number_float() && v.get<double>() == static_cast<int64_t>(v.get<double>()));
    const double number = v.is_number() ? v.get<double>() : 0.0;
    if (!whole || number < min || number > max) {
      Refuse(fmt::format("{}: \"{}\" is {}; a whole number from {} to {} is expected", name_, key,
                         v.dump().substr(0, 60), min, max));
      return min;
    }
    return static_cast<int32_t>(number);
  }
  int32_t IntOr(const char* key, int32_t otherwise, int32_t min, int32_t max) {
    return Has(key) ? Int(key, min, max) : otherwise;
  }

  double Number(const char* key, double min, double max) {
    if (!Has(key)) return Missing<double>(key);
    const Json& v = json_.at(key);
    const double number =
        v.is_number() ? v.get<double>() : std::numeric_limits<double>::quiet_NaN();
    if (!(number >= min && number <= max)) {
      Refuse(fmt::format("{}: \"{}\" is {}; a number from {} to {} is expected", name_, key,
                         v.dump().substr(0, 60), min, max));
      return min;
    }
    return number;
  }
  double NumberOr(const char* key, double otherwise, double min, double max) {
    return Has(key) ? Number(key, min, max) : otherwise;
  }

  bool BoolOr(const char* key, bool otherwise) {
    if (!Has(key)) return otherwise;
    if (!json_.at(key).is_boolean()) {
      Refuse(fmt::format("{}: \"{}\" has to be true or false", name_, key));
      return otherwise;
    }
    return json_.at(key).get<bool>();
  }

  std::string TextOr(const char* key, std::string otherwise) {
    if (!Has(key)) return otherwise;
    if (!json_.at(key).is_string()) {
      Refuse(fmt::format("{}: \"{}\" has to be a string", name_, key));
      return otherwise;
    }
    return json_.at(key).get<std::string>();
  }

  const Json& json() const { return json_; }
  const std::string& name() const { return name_; }
  void Refuse(std::string message) {
    if (status_) status_ = InvalidArgument(std::move(message));
  }
  const Status& status() const { return status_; }

 private:
  template <typename T>
  T Missing(const char* key) {
    Refuse(fmt::format("{}: \"{}\" is missing", name_, key));
    return T{};
  }
  const Json& json_;
  const std::string name_;
  Status status_;
};

}  // namespace aisp
