#include "api/plain_json.h"

#include <simdjson.h>

#include <string>
#include <utility>

namespace aisp {
namespace {

// Beyond this the tape of simdjson, about 12 bytes for a byte of text, is too large.
constexpr size_t kMostBytes = size_t{1} << 20;

// `depth` containers are open around `element`.
std::optional<Value> Convert(const simdjson::dom::element& element, int depth, int max_depth) {
  using Type = simdjson::dom::element_type;
  switch (element.type()) {
    case Type::ARRAY: {
      if (depth >= max_depth) return std::nullopt;
      Value::List list;
      for (const simdjson::dom::element each : simdjson::dom::array(element)) {
        std::optional<Value> value = Convert(each, depth + 1, max_depth);
        if (!value) return std::nullopt;
        list.push_back(std::move(*value));
      }
      return Value(std::move(list));
    }
    case Type::OBJECT: {
      if (depth >= max_depth) return std::nullopt;
      Value::Map map;
      for (const auto& [key, each] : simdjson::dom::object(element)) {
        std::optional<Value> value = Convert(each, depth + 1, max_depth);
        if (!value) return std::nullopt;
        map.Set(std::string(key), std::move(*value));
      }
      return Value(std::move(map));
    }
    case Type::INT64:
      return Value(int64_t(element));
    case Type::DOUBLE:
      return Value(double(element));
    case Type::STRING:
      return Value(std::string(std::string_view(element)));
    case Type::BOOL:
      return Value(bool(element));
    case Type::NULL_VALUE:
      return Value();
    case Type::UINT64:  // beyond int64_t; the library decides what that is
      break;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Value> ParsePlainJson(std::string_view text, int max_depth) {
  // Some versions skip a byte order mark, which is no JSON.
  if (text.size() > kMostBytes || text.starts_with('\xef')) return std::nullopt;
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  if (parser.parse(text.data(), text.size()).get(root) != simdjson::SUCCESS) return std::nullopt;
  return Convert(root, 0, max_depth);
}

}  // namespace aisp
