#include "answer/xml_arguments.h"

#include <algorithm>

#include "answer/call_reader.h"

namespace aisp {

bool IsXmlName(std::string_view name) {
  return !name.empty() && std::none_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) <= ' ' ||
           std::string_view("<>\"\\").find(c) != std::string_view::npos;
  });
}

void XmlArguments::Expect(std::string_view literal, Place then) {
  literal_ = literal;
  place_ = Place::kLiteral;
  then_ = then;
}

bool XmlArguments::Step(char c, std::string* json, Ask* ask) {
  *ask = Ask::kNothing;
  switch (place_) {
    case Place::kBetween:
      return StepBetween(c, json);
    case Place::kLiteral:
      if (literal_.front() != c) return false;
      literal_.remove_prefix(1);
      if (literal_.empty()) place_ = then_;
      return true;
    case Place::kKey:
      return StepKey(c, json);
    case Place::kKeyEnd:
      if (c != '\n') return false;
      if (texts_->contains(key_)) json->push_back('"');
      place_ = texts_->contains(key_) ? Place::kText : Place::kJson;
      matched_ = 0;
      said_ = in_string_ = escaped_ = blank_ = begun_ = false;
      return true;
    case Place::kText:
      return StepText(c, json, ask);
    case Place::kJson:
      return StepJson(c, json, ask);
    case Place::kDone:
      break;
  }
  return false;
}

// "<p" starts another parameter, "</" ends the call.
bool XmlArguments::StepBetween(char c, std::string* json) {
  if (!open_) return open_ = c == '<';
  open_ = false;
  if (c == 'p') {
    *json += first_ ? "{\"" : ",\"";
    key_.clear();
    Expect("arameter=", Place::kKey);
  } else if (c == '/') {
    *json += first_ ? "{}" : "}";
    Expect("function>", Place::kDone);
  } else {
    return false;
  }
  first_ = false;
  return true;
}

bool XmlArguments::StepKey(char c, std::string* json) {
  if (c == '>') {
    *json += "\":";
    place_ = Place::kKeyEnd;
    return !key_.empty();
  }
  if (!IsXmlName({&c, 1})) return false;
  key_.push_back(c);
  json->push_back(c);
  return true;
}

void XmlArguments::SayHeld(std::string* json) {
  for (const char c : held()) AppendEscaped(c, json);
  said_ = true;
}

bool XmlArguments::StepText(char c, std::string* json, Ask* ask) {
  if (kEnd[matched_] == c) {
    if (said_) AppendEscaped(c, json);
    if (++matched_ == 1) *ask = Ask::kMayEnd;
    if (matched_ < kEnd.size()) return true;
    if (said_) return false;  // SayHeld ruled out that the text ends here
    json->push_back('"');
    Expect("\n", Place::kBetween);
    return true;
  }
  if (matched_ > 0) SayHeld(json);
  matched_ = 0;
  said_ = false;
  // A newline can only be the first byte of kEnd, so matching restarts here.
  if (c == '\n') return StepText(c, json, ask);
  AppendEscaped(c, json);
  return true;
}

bool XmlArguments::StepJson(char c, std::string* json, Ask* ask) {
  if (in_string_) {
    in_string_ = escaped_ || c != '"';
    escaped_ = !escaped_ && c == '\\';
    json->push_back(c);
    return true;
  }
  if (c == '\n' && depth_ == 0 && begun_) {
    *ask = Ask::kWhole;
    Expect("</parameter>\n", Place::kBetween);
    return true;
  }
  if (c == ' ') {
    const bool blank = blank_;
    blank_ = false;
    return blank;
  }
  if (c == ']' || c == '}') {
    if (depth_ == 0) return false;
    --depth_;
  }
  if (c == '[' || c == '{') ++depth_;
  if ((c == ',' || c == ':') && depth_ == 0) return false;
  blank_ = c == ',' || c == ':';
  in_string_ = c == '"';
  begun_ = true;
  json->push_back(c);
  return true;
}

}  // namespace aisp
