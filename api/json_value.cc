#include "api/json_value.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "api/plain_json.h"
#include "common/strings.h"

namespace aisp {
namespace {

using Json = nlohmann::json;

// Builds a Value from the parser's events; returning false stops the parser.
class ValueBuilder : public nlohmann::json_sax<Json> {
 public:
  explicit ValueBuilder(int max_depth) : max_depth_(max_depth) {}

  bool null() override { return Add(Value()); }
  bool boolean(bool b) override { return Add(Value(b)); }
  bool number_integer(int64_t i) override { return Add(Value(i)); }
  bool number_unsigned(uint64_t u) override {
    if (u > static_cast<uint64_t>(INT64_MAX)) return Add(Value(static_cast<double>(u)));
    return Add(Value(static_cast<int64_t>(u)));
  }
  bool number_float(double d, const std::string&) override { return Add(Value(d)); }
  bool string(std::string& s) override { return Add(Value(std::move(s))); }
  bool binary(Json::binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(/*is_map=*/true); }
  bool start_array(size_t) override { return Open(/*is_map=*/false); }
  bool key(std::string& key) override {
    open_.back().key = std::move(key);
    return true;
  }
  bool end_object() override {
    Value value(std::move(open_.back().map));
    open_.pop_back();
    return Add(std::move(value));
  }
  bool end_array() override {
    Value value(std::move(open_.back().list));
    open_.pop_back();
    return Add(std::move(value));
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) override {
    const std::string_view what(e.what());
    const size_t name_end = what.find("] ");
    error_ = "the body is not valid JSON: " +
             Excerpt(name_end == what.npos ? what : what.substr(name_end + 2), 200);
    return false;
  }

  const std::string& error() const { return error_; }
  Value Take() { return std::move(root_); }

 private:
  struct Container {
    bool is_map;
    Value::List list;
    Value::Map map;
    std::string key;
  };

  bool Open(bool is_map) {
    if (open_.size() >= static_cast<size_t>(max_depth_)) {
      error_ = "the JSON is nested deeper than " + std::to_string(max_depth_) + " levels";
      return false;
    }
    open_.push_back({is_map, {}, {}, {}});
    return true;
  }
  bool Add(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().is_map) {
      open_.back().map.Set(std::move(open_.back().key), std::move(value));
    } else {
      open_.back().list.push_back(std::move(value));
    }
    return true;
  }

  const int max_depth_;
  std::vector<Container> open_;
  Value root_;
  std::string error_;
};

}  // namespace

Result<Value> ParseJson(std::string_view text, int max_depth) {
  if (std::optional<Value> plain = ParsePlainJson(text, max_depth)) return std::move(*plain);
  return ParseAnyJson(text, max_depth);
}

Result<Value> ParseAnyJson(std::string_view text, int max_depth) {
  ValueBuilder builder(max_depth);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) return InvalidArgument(builder.error());
  return builder.Take();
}

std::string Describe(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kBool:
      return value.AsBool() ? "true" : "false";
    case Value::Kind::kInt:
      return std::to_string(value.AsInt());
    case Value::Kind::kFloat:
      return PythonFloat(value.AsFloat());
    case Value::Kind::kString:
      return '"' + Excerpt(value.AsString(), 60) + '"';
    case Value::Kind::kList:
      return "a list of " + std::to_string(value.AsList().size());
    case Value::Kind::kMap:
      return "an object";
    default:
      return "null";
  }
}

}  // namespace aisp
