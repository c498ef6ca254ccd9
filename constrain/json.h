// Json: a JSON text as a tree that keeps what a schema compiler needs: numbers as exact decimals
// and as spelled, and the order of members. Depth and size are bounded. Plain data: any thread may
// read.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "constrain/decimal.h"

namespace aisp {

struct Json {
  enum class Type : uint8_t { kNull, kBool, kNumber, kString, kArray, kObject };
  struct Member;

  Type type = Type::kNull;
  bool boolean = false;
  std::string text;  // a string's value, or a number as spelled
  std::vector<Json> items;
  std::vector<Member> members;

  bool Is(Type t) const { return type == t; }
  bool IsObject() const { return type == Type::kObject; }
  bool IsArray() const { return type == Type::kArray; }
  bool IsString() const { return type == Type::kString; }
  bool IsBool() const { return type == Type::kBool; }
  bool IsNumber() const { return type == Type::kNumber; }
  // The member `name` (the last one if repeated); null when absent.
  const Json* Find(std::string_view name) const;
};

struct Json::Member {
  std::string name;
  Json value;
};

// INVALID_ARGUMENT with the byte offset: not JSON, deeper than 200 levels, or a lone surrogate
// escape.
Result<Json> ParseJson(std::string_view text);
// Compact JSON text: for messages and cache keys.
std::string WriteJson(const Json& json);

}  // namespace aisp
