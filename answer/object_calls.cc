// Calls as JSON objects {"name": ..., "arguments": ...} (or "parameters"), members in any order,
// one after another or in a list.
#include <array>

#include "answer/call_reader.h"

namespace aisp {
namespace {

class ObjectCalls final : public CallReader {
 public:
  ObjectCalls(const CallFormat& format, uint32_t* calls)
      : format_(format),
        calls_(*calls),
        skipped_{format.trigger, format.call_end, "<|python_tag|>", "[TOOL_CALLS]"} {}

  State Read(std::string* buffer, std::vector<AnswerPart>* out) override {
    while (true) {
      const State state = in_object_ ? ReadObject(buffer, out) : ReadBetween(buffer);
      if (state != State::kMore || !again_) return state;
    }
  }

  State Finish(std::string* buffer, std::vector<AnswerPart>* out) override {
    const State state = Read(buffer, out);
    if (state != State::kMore) return state;
    if (!told_ && !any_) return State::kNoCall;
    if (in_object_ && !told_) return State::kOver;  // an object without a name is text
    // Cut off in the middle: what was emitted of the call remains.
    if (told_ || buffer->find_first_not_of(" \t\r\n,;[]") == std::string::npos) buffer->clear();
    return State::kOver;
  }

 private:
  // Skips what may stand around the objects.
  State ReadBetween(std::string* buffer) {
    again_ = false;
    size_t at = any_ ? 0 : start_;
    while (at < buffer->size()) {
      const std::string_view rest = std::string_view(*buffer).substr(at);
      bool skipped = false;
      for (const std::string_view marker : skipped_) {
        if (marker.empty()) continue;
        if (rest.starts_with(marker)) {
          at += marker.size();
          skipped = true;
          // Text may follow the end of a call.
          if (any_ && marker == format_.call_end) {
            buffer->erase(0, at);
            return State::kOver;
          }
          break;
        }
        if (marker.starts_with(rest)) return Wait(buffer, at);
      }
      if (skipped) continue;
      const char c = rest[0];
      if (c == '{') return Begin(buffer, at);
      const bool around = std::string_view(" \t\r\n,;[]").find(c) != std::string_view::npos;
      if (!around) {
        if (!any_) return State::kNoCall;
        buffer->erase(0, at);
        return State::kOver;
      }
      ++at;
    }
    return Wait(buffer, at);
  }

  // Until a call has been emitted, everything stays in the buffer.
  State Wait(std::string* buffer, size_t at) {
    if (any_) {
      buffer->erase(0, at);
    } else {
      start_ = at;
    }
    return State::kMore;
  }

  State Begin(std::string* buffer, size_t at) {
    if (any_) {
      buffer->erase(0, at);
      at = 0;
    }
    in_object_ = again_ = true;
    told_ = false;
    read_ = at;
    extent_ = {};
    key_.clear();
    token_.clear();
    name_.clear();
    arguments_.clear();
    has_arguments_ = in_value_ = false;
    return State::kMore;
  }

  State ReadObject(std::string* buffer, std::vector<AnswerPart>* out) {
    again_ = false;
    for (; read_ < buffer->size(); ++read_) {
      const char c = (*buffer)[read_];
      const bool was_in_string = extent_.in_string();
      const int depth = extent_.depth();
      const bool done = extent_.Push(c);
      if (depth >= 1 && !done) TakeByte(c, depth, was_in_string);
      if (done && in_value_) EndValue();
      Emit(out);
      if (!done) continue;
      ++read_;
      return EndObject(buffer, out);
    }
    if (told_) {
      buffer->clear();
      read_ = 0;
    }
    return State::kMore;
  }

  State EndObject(std::string* buffer, std::vector<AnswerPart>* out) {
    if (!told_) {
      if (!any_) return State::kNoCall;
      return State::kOver;  // an object without a name is text
    }
    if (!has_arguments_) out->push_back({AnswerPart::Kind::kArguments, "{}", calls_ - 1});
    buffer->erase(0, read_);
    in_object_ = false;
    any_ = again_ = true;
    return State::kMore;
  }

  // Handles one byte of the object: of a key, of a value or between them.
  void TakeByte(char c, int depth, bool was_in_string) {
    const bool blank = kBlanks.find(c) != std::string_view::npos;
    if (in_value_) {
      if (depth == 1 && !was_in_string && c == ',') return EndValue();
      if (value_.empty() && blank) return;
      value_.push_back(c);
      return;
    }
    if (depth != 1) return;
    if (!was_in_string && c == ':') {
      if (!UnquoteJson(token_, &key_)) key_.clear();
      token_.clear();
      value_.clear();
      in_value_ = true;
      given_ = 0;
      return;
    }
    if (was_in_string || c == '"') token_.push_back(c);
  }

  bool IsArguments() const { return key_ == "arguments" || key_ == "parameters"; }

  void EndValue() {
    in_value_ = false;
    while (!value_.empty() && kBlanks.find(value_.back()) != std::string_view::npos)
      value_.pop_back();
    if (key_ == "name") {
      UnquoteJson(value_, &name_);
    } else if (IsArguments() && !has_arguments_) {
      // Some models write the arguments as a string that holds JSON.
      std::string inner;
      if (value_.starts_with('"') && UnquoteJson(value_, &inner)) value_ = inner;
      if (value_.empty() || value_ == "null") value_ = "{}";
      arguments_.append(value_, given_);
      has_arguments_ = true;
    }
    token_.clear();
  }

  // Emits the call's name once it is known, then its arguments as they arrive.
  void Emit(std::vector<AnswerPart>* out) {
    // An object's text can be emitted while it grows. Trailing blanks are held back, since they may
    // be after the value's end.
    if (in_value_ && IsArguments() && !has_arguments_ && value_.starts_with('{')) {
      const size_t sure = value_.find_last_not_of(kBlanks) + 1;
      arguments_.append(value_, given_, sure - given_);
      given_ = sure;
    }
    if (!told_ && !name_.empty()) {
      told_ = true;
      out->push_back({AnswerPart::Kind::kCall, name_, calls_++});
    }
    if (!told_ || arguments_.empty()) return;
    if (!out->empty() && out->back().kind == AnswerPart::Kind::kArguments &&
        out->back().call == calls_ - 1) {
      out->back().text += arguments_;
    } else {
      out->push_back({AnswerPart::Kind::kArguments, arguments_, calls_ - 1});
    }
    arguments_.clear();
  }

  const CallFormat& format_;
  uint32_t& calls_;
  const std::array<std::string_view, 4> skipped_;
  bool in_object_ = false, told_ = false, any_ = false, again_ = false;
  size_t start_ = 0, read_ = 0;
  JsonExtent extent_;
  std::string key_, token_, value_, name_, arguments_;
  size_t given_ = 0;  // bytes of value_ already emitted
  bool in_value_ = false, has_arguments_ = false;
};

}  // namespace

std::unique_ptr<CallReader> MakeObjectCalls(const CallFormat& format, uint32_t* calls) {
  return std::make_unique<ObjectCalls>(format, calls);
}

}  // namespace aisp
