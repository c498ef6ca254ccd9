// XmlArguments: the parameters of a call in tags as a constrained answer writes them, read byte by
// byte and said again as JSON:
//
//   <parameter=KEY>\nVALUE\n</parameter>\n ... </function>
//
// Texts stand as they are, all other values as JSON. A value, cheap to copy.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>

namespace aisp {

// Names of parameters that can be written so.
bool IsXmlName(std::string_view name);

class XmlArguments {
 public:
  using Names = std::shared_ptr<const std::set<std::string, std::less<>>>;
  // `texts`: the parameters whose values are texts.
  explicit XmlArguments(Names texts) : texts_(std::move(texts)) {}

  // What has to be found out before a byte that was taken may stand.
  enum class Ask : uint8_t {
    kNothing,
    kWhole,   // the value that was read is whole, else the byte may not stand
    kMayEnd,  // the text may end before this byte, else SayHeld has to be called
  };
  // Takes what follows the line of the function's name; false when `c` may not follow.
  bool Step(char c, std::string* json, Ask* ask);
  void SayHeld(std::string* json);
  bool done() const { return place_ == Place::kDone; }

  bool in_key() const { return place_ == Place::kKey; }
  bool in_text() const { return place_ == Place::kText; }
  bool in_json_text() const { return place_ == Place::kJson && in_string_; }
  // What was read of the end of a text, and is not said: it may be text as well.
  std::string_view held() const { return said_ ? "" : kEnd.substr(0, matched_); }
  // What would end a text from here.
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
  std::string_view literal_;  // that must come, and what follows it
  Place place_ = Place::kBetween, then_ = Place::kDone;
  bool first_ = true, open_ = false;
  uint8_t matched_ = 0;  // of kEnd
  bool said_ = false;    // that was said already
  bool in_string_ = false, escaped_ = false, blank_ = false, begun_ = false;
  uint32_t depth_ = 0;
};

}  // namespace aisp
