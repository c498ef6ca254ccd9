// Random schemas, for tests of properties that must hold under any.
#pragma once

#include <random>
#include <string>
#include <vector>

namespace aisp {

// Small schemas with many collisions: few names, few texts, overlapping languages and limits.
class RandomSchema {
 public:
  explicit RandomSchema(uint32_t seed) : random_(seed) {}

  std::string Any(int depth) {
    switch (Below(depth > 0 ? 10 : 5)) {
      case 0:
        return R"({"type":")" + Of({"null", "boolean", "string", "integer", "number"}) + "\"}";
      case 1:
        return String();
      case 2:
      case 3:
        return Number();
      case 4:
        return R"({"enum":[)" + Texts() + ",1,null]}";
      case 5:
      case 6:
        return Array(depth);
      case 7:
      case 8:
        return Object(depth);
      default:
        return R"({")" + Of({"anyOf", "oneOf", "allOf"}) + "\":[" + Any(depth - 1) + "," +
               Any(depth - 1) + "]}";
    }
  }

 private:
  size_t Below(size_t n) { return random_() % n; }
  std::string Of(const std::vector<std::string>& all) { return all[Below(all.size())]; }
  std::string Name() { return Of({"a", "b", "na", "name", "ab", "\xC3\xA9", "x\\\"", "aa"}); }
  std::string Pattern() {
    return Of({"^[ab]$", "^a", "^(a|q)?$", "^[ab]*$", "a$", "^(na|aa|x)$", "^[\\\\u00e8\\\\u00e9]$",
               "^(\\\\u00e9|a)$", "^\\\\d+$", "^.{1,2}$"});
  }
  std::string Texts() { return "\"" + Name() + "\",\"" + Name() + "\""; }
  std::string Limits(const std::string& of) {
    const size_t min = Below(3), max = min + Below(3);
    std::string out;
    if (Below(2) == 0) out += ",\"min" + of + "\":" + std::to_string(min);
    if (Below(2) == 0) out += ",\"max" + of + "\":" + std::to_string(max);
    return out;
  }
  std::string String() {
    std::string out = R"({"type":"string")" + Limits("Length");
    if (Below(2) == 0) out += ",\"pattern\":\"" + Pattern() + "\"";
    return out + "}";
  }
  std::string Number() {
    std::string out = R"({"type":")" + Of({"integer", "number"}) + "\"";
    if (Below(2) == 0)
      out += ",\"" + Of({"minimum", "exclusiveMinimum"}) +
             "\":" + Of({"-12.5", "0", "0.5", "3", "1e20", "1e308"});
    if (Below(2) == 0)
      out += ",\"" + Of({"maximum", "exclusiveMaximum"}) +
             "\":" + Of({"12", "0.75", "123", "1e-7", "1e30", "1.7e308"});
    if (Below(4) == 0) out += ",\"multipleOf\":" + Of({"5", "0.5", "0.01", "7"});
    return out + "}";
  }
  std::string Array(int depth) {
    std::string out = R"({"type":"array")" + Limits("Items");
    if (Below(2) == 0) {
      out += ",\"uniqueItems\":true,\"items\":" +
             (Below(2) == 0 ? String() : R"({"enum":[)" + Texts() + ",true,null]}");
    } else {
      out += ",\"items\":" + Any(depth - 1);
      if (Below(3) == 0) out += ",\"contains\":" + Any(0);
      if (Below(3) == 0) out += ",\"prefixItems\":[" + Any(depth - 1) + "]";
    }
    return out + "}";
  }
  std::string Object(int depth) {
    std::string out = R"({"type":"object")" + Limits("Properties");
    const std::string a = Name(), b = Name();
    if (Below(2) == 0) {
      out += ",\"properties\":{\"" + a + "\":" + Any(depth - 1);
      if (b != a) out += ",\"" + b + "\":" + Any(depth - 1);
      out += "}";
    }
    if (Below(3) == 0) out += ",\"required\":[\"" + a + "\"]";
    if (Below(3) == 0)
      out += ",\"patternProperties\":{\"" + Pattern() + "\":" + Any(depth - 1) + "}";
    if (Below(2) == 0) out += ",\"additionalProperties\":" + Of({"false", "true", Any(0)});
    if (Below(3) == 0) out += ",\"propertyNames\":" + String();
    return out + "}";
  }

  std::mt19937 random_;
};

}  // namespace aisp
