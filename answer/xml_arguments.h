// XmlArguments: converts the parameters of a call in tags to JSON, byte by byte, in the spelling
// that a constrained answer uses:
//
// <parameter=KEY>\nVALUE\n</parameter>\n ... </function>
//
// String values are verbatim, all others are JSON. A value, cheap to copy.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>

namespace aisp {

// Whether a parameter's name can be written in a tag.
bool IsXmlName(std::string_view name);

class XmlArguments {
 public:
  using Names = std::shared_ptr<const std::set<std::string, std::less<>>>;
  // `texts`: names of the parameters whose values are verbatim strings.
  explicit XmlArguments(Names texts) : texts_(std::move(texts)) {}

  // What the caller must check before it accepts the byte.
  enum class Ask : uint8_t {
    kNothing,
    kWhole,   // reject the byte unless the JSON value is complete
    kMayEnd,  // if the string must not end here, call SayHeld
  };
  // Consumes the next byte after the line with the function's name; false when `c` is not allowed.
  bool Step(char c, std::string* json, Ask* ask);
  void SayHeld(std::string* json);
  bool done() const { return place_ == Place::kDone; }

  bool in_key() const { return place_ == Place::kKey; }
  bool in_text() const { return place_ == Place::kText; }
  bool in_json_text() const { return place_ == Place::kJson && in_string_; }
  // The part of kEnd that was read and not yet emitted; it may turn out to be text.
  std::string_view held() const { return said_ ? "" : kEnd.substr(0, matched_); }
  // The rest of kEnd, which would end the string.
  std::string_view rest() const { return kEnd.substr(matched_); }

  static constexpr std::string_view kEnd = "\n</parameter>";

 private:
  enum class Place : uint8_t { kBetween, kLiteral, kKey, kKeyEnd, kText, kJson, kDone };
  bool StepBetween(char c, std::string* json);
  bool StepKey(char c, std::string* json);
  bool StepText(char c, std::string* json, Ask* ask);
  bool StepJson(char c, std::string* json, Ask* ask);
  void Expect(std::string_view literal, Place then);

  Names texts_;
  std::string key_;
  std::string_view literal_;  // the text that must follow, after which `then_` holds
  Place place_ = Place::kBetween, then_ = Place::kDone;
  bool first_ = true, open_ = false;
  uint8_t matched_ = 0;  // bytes of kEnd that matched
  bool said_ = false;    // the matched bytes were emitted as text
  bool in_string_ = false, escaped_ = false, blank_ = false, begun_ = false;
  uint32_t depth_ = 0;
};

}  // namespace aisp
