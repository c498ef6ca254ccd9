// Calls written as a name followed by arguments: DeepSeek's and Mistral's.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "answer/call_reader.h"
#include "common/strings.h"

namespace aisp {
namespace {

constexpr size_t kMaxName = 256;

class NamedCalls final : public CallReader {
 public:
  NamedCalls(const CallFormat& format, uint32_t* calls) : format_(format), calls_(*calls) {}

  State Read(std::string* buffer, std::vector<AnswerPart>* out) override {
    while (true) {
      switch (stage_) {
        case Stage::kBetween: {
          const size_t begin = buffer->find(kBegin);
          const size_t over = buffer->find(format_.close);
          if (over != std::string::npos && (begin == std::string::npos || over < begin)) {
            if (!any_) return State::kNoCall;
            buffer->erase(0, over + format_.close.size());
            return State::kOver;
          }
          if (begin == std::string::npos) return State::kMore;
          const size_t brace = std::min(buffer->size(), buffer->find('{', begin));
          if (brace - begin > 2 * kMaxName) return Give();
          if (brace == buffer->size()) return State::kMore;
          const std::string name = NameIn(std::string_view(*buffer).substr(
              begin + kBegin.size(), brace - begin - kBegin.size()));
          if (name.empty() || name.size() > kMaxName) return Give();
          out->push_back({AnswerPart::Kind::kCall, name, calls_++});
          buffer->erase(0, brace);
          any_ = true;
          extent_ = {};
          stage_ = Stage::kArguments;
          break;
        }
        case Stage::kArguments: {
          size_t size = 0;
          bool done = false;
          while (size < buffer->size() && !done) done = extent_.Push((*buffer)[size++]);
          if (size > 0)
            out->push_back({AnswerPart::Kind::kArguments, buffer->substr(0, size), calls_ - 1});
          buffer->erase(0, size);
          if (!done) return State::kMore;
          stage_ = Stage::kTail;
          break;
        }
        case Stage::kTail: {
          const size_t end = buffer->find(format_.call_end);
          if (end == std::string::npos) return State::kMore;
          buffer->erase(0, end + format_.call_end.size());
          stage_ = Stage::kBetween;
          break;
        }
      }
    }
  }

  State Finish(std::string* buffer, std::vector<AnswerPart>* out) override {
    const State state = Read(buffer, out);
    if (state != State::kMore) return state;
    if (!any_) return State::kNoCall;
    buffer->clear();  // an incomplete marker
    return State::kOver;
  }

 private:
  static constexpr std::string_view kBegin = "<｜tool▁call▁begin｜>";
  static constexpr std::string_view kSep = "<｜tool▁sep｜>";
  enum class Stage : uint8_t { kBetween, kArguments, kTail };

  State Give() const { return any_ ? State::kOver : State::kNoCall; }

  // "function<sep>NAME\n```json\n" or, later, "NAME<sep>".
  static std::string NameIn(std::string_view header) {
    const size_t sep = header.find(kSep);
    if (sep == std::string_view::npos) return "";
    std::string_view behind = header.substr(sep + kSep.size());
    behind = Trim(behind.substr(0, behind.find("```")));
    return std::string(behind.empty() ? Trim(header.substr(0, sep)) : behind);
  }

  const CallFormat& format_;
  uint32_t& calls_;
  Stage stage_ = Stage::kBetween;
  bool any_ = false;
  JsonExtent extent_;
};

// Mistral's: [TOOL_CALLS]NAME[ARGS]{...}, one after another; some versions add [CALL_ID] and an id
// after the name. Older ones write a list of objects after the marker, which is read as well.
class MarkedCalls final : public CallReader {
 public:
  MarkedCalls(const CallFormat& format, uint32_t* calls) : format_(format), calls_(*calls) {}

  State Read(std::string* buffer, std::vector<AnswerPart>* out) override {
    State state = State::kMore;
    while (list_ == nullptr) {
      if (!(in_arguments_ ? Arguments(buffer, out) : Header(buffer, out, &state))) return state;
    }
    return list_->Read(buffer, out);
  }

  State Finish(std::string* buffer, std::vector<AnswerPart>* out) override {
    const State state = Read(buffer, out);
    if (state != State::kMore) return state;
    if (list_ != nullptr) return list_->Finish(buffer, out);
    if (!any_) return State::kNoCall;
    buffer->clear();  // the beginning of another call
    return State::kOver;
  }

 private:
  static constexpr std::string_view kBegin = "[TOOL_CALLS]", kId = "[CALL_ID]", kArgs = "[ARGS]";

  // Both return false when they need more text.
  bool Header(std::string* buffer, std::vector<AnswerPart>* out, State* state) {
    const size_t begin = std::min(buffer->size(), buffer->find_first_not_of(kBlanks));
    const std::string_view text = std::string_view(*buffer).substr(begin);
    if (!text.starts_with(kBegin)) return kBegin.starts_with(text) ? false : Over(state);
    const size_t args = text.find(kArgs);
    // A possible prefix of the marker is not part of the header.
    const size_t end = std::min(args, text.size() - PartialEnd(text, kArgs));
    const std::string_view header = Trim(text.substr(kBegin.size(), end - kBegin.size()));
    if (!any_ && (header.starts_with('[') || header.starts_with('{'))) {
      list_ = MakeObjectCalls(format_, &calls_);
      return true;
    }
    if (header.size() > 2 * kMaxName || header.find_first_of("{\n") != std::string_view::npos)
      return Over(state);
    if (args == std::string_view::npos) return false;
    const size_t brace = text.find_first_not_of(kBlanks, args + kArgs.size());
    if (brace == std::string_view::npos) return false;
    const std::string name(Trim(header.substr(0, header.find(kId))));
    if (name.empty() || text[brace] != '{') return Over(state);
    out->push_back({AnswerPart::Kind::kCall, name, calls_++});
    buffer->erase(0, begin + brace);
    any_ = in_arguments_ = true;
    extent_ = {};
    return true;
  }

  bool Arguments(std::string* buffer, std::vector<AnswerPart>* out) {
    size_t size = 0;
    while (size < buffer->size() && in_arguments_) in_arguments_ = !extent_.Push((*buffer)[size++]);
    if (size > 0)
      out->push_back({AnswerPart::Kind::kArguments, buffer->substr(0, size), calls_ - 1});
    buffer->erase(0, size);
    return !in_arguments_;
  }

  bool Over(State* state) const {
    *state = any_ ? State::kOver : State::kNoCall;
    return false;
  }

  const CallFormat& format_;
  uint32_t& calls_;
  bool any_ = false, in_arguments_ = false;
  JsonExtent extent_;
  std::unique_ptr<CallReader> list_;
};

}  // namespace

std::unique_ptr<CallReader> MakeNamedCalls(const CallFormat& format, uint32_t* calls) {
  return std::make_unique<NamedCalls>(format, calls);
}
std::unique_ptr<CallReader> MakeMarkedCalls(const CallFormat& format, uint32_t* calls) {
  return std::make_unique<MarkedCalls>(format, calls);
}

bool UnquoteJson(std::string_view quoted, std::string* out) {
  const auto json = nlohmann::json::parse(quoted, nullptr, false);
  if (!json.is_string()) return false;
  *out = json.get<std::string>();
  return true;
}

std::string QuoteJson(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void AppendEscaped(char c, std::string* out) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  if (c == '"' || c == '\\') {
    *out += '\\';
    out->push_back(c);
  } else if (c == '\n') {
    *out += "\\n";
  } else if (byte < 0x20) {
    *out += "\\u00";
    out->push_back(kDigits[byte >> 4]);
    out->push_back(kDigits[byte & 15]);
  } else {
    out->push_back(c);
  }
}

bool IsJson(std::string_view text) { return nlohmann::json::accept(text); }

size_t PartialEnd(std::string_view text, std::string_view marker) {
  for (size_t size = std::min(text.size(), marker.size() - 1); size > 0; --size) {
    if (text.ends_with(marker.substr(0, size))) return size;
  }
  return 0;
}

}  // namespace aisp
