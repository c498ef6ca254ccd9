// Calls that are no JSON objects: a name and then its arguments (DeepSeek), tags (Qwen3-Coder), and
// a list of Python calls.
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>

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
            buffer->erase(0, over + format_.close.size());
            return any_ ? State::kOver : State::kNoCall;
          }
          if (begin == std::string::npos) return State::kMore;
          const size_t brace = buffer->find('{', begin);
          if (brace == std::string::npos) {
            return buffer->size() - begin > 2 * kMaxName ? Give() : State::kMore;
          }
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
    buffer->clear();  // markers that were cut off
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

// Mistral's: [TOOL_CALLS]NAME[ARGS]{...}, one after another; some versions have [CALL_ID] and an id
// behind the name. Older ones have a list of objects behind the marker, which is read as well.
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

  // Both: false when there is nothing more to do now.
  bool Header(std::string* buffer, std::vector<AnswerPart>* out, State* state) {
    const size_t begin = std::min(buffer->size(), buffer->find_first_not_of(kBlanks));
    const std::string_view text = std::string_view(*buffer).substr(begin);
    if (!text.starts_with(kBegin)) return kBegin.starts_with(text) ? false : Over(state);
    const size_t args = text.find(kArgs);
    const std::string_view header = Trim(text.substr(kBegin.size(), args - kBegin.size()));
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

class XmlCalls final : public CallReader {
 public:
  XmlCalls(uint32_t* calls, std::shared_ptr<const Value::Map> parameters)
      : calls_(*calls), parameters_(std::move(parameters)) {}

  State Read(std::string* buffer, std::vector<AnswerPart>* out) override {
    if (!in_call_) {
      const size_t begin = buffer->find("<function=");
      if (begin == std::string::npos)
        return buffer->size() > 2 * kMaxName ? State::kNoCall : State::kMore;
      const size_t end = buffer->find('>', begin);
      if (end == std::string::npos)
        return buffer->size() - begin > 2 * kMaxName ? State::kNoCall : State::kMore;
      name_ = buffer->substr(begin + 10, end - begin - 10);
      out->push_back({AnswerPart::Kind::kCall, name_, calls_++});
      buffer->erase(0, end + 1);
      in_call_ = true;
    }
    while (!closed_) {
      const size_t parameter = buffer->find("<parameter=");
      const size_t over = buffer->find("</function>");
      if (over != std::string::npos && (parameter == std::string::npos || over < parameter)) {
        buffer->erase(0, over + 11);
        out->push_back({AnswerPart::Kind::kArguments, fields_ == 0 ? "{}" : "}", calls_ - 1});
        closed_ = true;
        break;
      }
      const size_t end = buffer->find("</parameter>", parameter);
      const size_t named = buffer->find('>', parameter);
      if (parameter == std::string::npos || end == std::string::npos || named > end)
        return State::kMore;
      TellParameter(buffer->substr(parameter + 11, named - parameter - 11),
                    buffer->substr(named + 1, end - named - 1), out);
      buffer->erase(0, end + 12);
    }
    const size_t end = buffer->find("</tool_call>");
    if (end == std::string::npos) return State::kMore;
    buffer->erase(0, end + 12);
    return State::kOver;
  }

  State Finish(std::string* buffer, std::vector<AnswerPart>* out) override {
    const State state = Read(buffer, out);
    if (state != State::kMore) return state;
    if (!in_call_) return State::kNoCall;
    buffer->clear();
    return State::kOver;
  }

 private:
  void TellParameter(const std::string& key, std::string value, std::vector<AnswerPart>* out) {
    if (value.starts_with('\n')) value.erase(0, 1);
    if (value.ends_with('\n')) value.pop_back();
    const std::string json = !IsText(key) && IsJson(value) ? value : QuoteJson(value);
    const std::string text = (fields_++ == 0 ? "{" : ", ") + QuoteJson(key) + ": " + json;
    out->push_back({AnswerPart::Kind::kArguments, text, calls_ - 1});
  }

  // The schema says that the value is a string.
  bool IsText(const std::string& key) const {
    const Value* at = parameters_ == nullptr ? nullptr : parameters_->Find(name_);
    for (const std::string& step : {std::string("properties"), key, std::string("type")}) {
      if (at == nullptr || !at->IsMap()) return false;
      at = at->AsMap().Find(step);
    }
    return at != nullptr && at->IsString() && at->AsString() == "string";
  }

  uint32_t& calls_;
  const std::shared_ptr<const Value::Map> parameters_;
  std::string name_;
  size_t fields_ = 0;
  bool in_call_ = false, closed_ = false;
};

// Python's literals, as far as calls have them.
class PythonReader {
 public:
  explicit PythonReader(std::string_view text) : text_(text) {}

  struct Call {
    std::string name;
    nlohmann::ordered_json arguments = nlohmann::ordered_json::object();
  };
  std::optional<std::vector<Call>> Calls() {
    std::vector<Call> out;
    if (!Take('[')) return std::nullopt;
    while (!Take(']')) {
      if (!out.empty() && !Take(',')) return std::nullopt;
      if (!out.empty() && Take(']')) break;
      Call call;
      call.name = Word();
      if (call.name.empty() || !Take('(')) return std::nullopt;
      while (!Take(')')) {
        if (!call.arguments.empty() && !Take(',')) return std::nullopt;
        const std::string key = Word();
        nlohmann::ordered_json value;
        if (key.empty() || !Take('=') || !Read(0, &value)) return std::nullopt;
        call.arguments[key] = std::move(value);
      }
      out.push_back(std::move(call));
    }
    Blanks();
    if (at_ != text_.size() || out.empty()) return std::nullopt;
    return out;
  }

 private:
  static constexpr int kMaxDepth = 64;

  void Blanks() {
    while (at_ < text_.size() && kBlanks.find(text_[at_]) != std::string_view::npos) ++at_;
  }
  bool Take(char c) {
    Blanks();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::string Word() {
    Blanks();
    const size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 ||
                                  text_[at_] == '_' || text_[at_] == '.' || text_[at_] == '-'))
      ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  bool Read(int depth, nlohmann::ordered_json* out) {
    if (depth > kMaxDepth) return false;
    Blanks();
    if (at_ >= text_.size()) return false;
    const char c = text_[at_];
    if (c == '"' || c == '\'') return ReadText(out);
    if (Take('[')) {
      *out = nlohmann::ordered_json::array();
      while (!Take(']')) {
        if (!out->empty() && !Take(',')) return false;
        nlohmann::ordered_json item;
        if (!Read(depth + 1, &item)) return false;
        out->push_back(std::move(item));
      }
      return true;
    }
    if (Take('{')) {
      *out = nlohmann::ordered_json::object();
      while (!Take('}')) {
        if (!out->empty() && !Take(',')) return false;
        nlohmann::ordered_json key, value;
        if (!Read(depth + 1, &key) || !key.is_string() || !Take(':') || !Read(depth + 1, &value))
          return false;
        (*out)[key.get<std::string>()] = std::move(value);
      }
      return true;
    }
    return ReadWord(out);
  }

  bool ReadWord(nlohmann::ordered_json* out) {
    const size_t begin = at_;
    while (at_ < text_.size() &&
           std::string_view(",)]}: \t\r\n").find(text_[at_]) == std::string_view::npos)
      ++at_;
    const std::string word(text_.substr(begin, at_ - begin));
    if (word == "True" || word == "true") {
      *out = true;
    } else if (word == "False" || word == "false") {
      *out = false;
    } else if (word == "None" || word == "null") {
      *out = nullptr;
    } else {
      *out = nlohmann::ordered_json::parse(word, nullptr, false);
      return out->is_number();
    }
    return true;
  }

  bool ReadText(nlohmann::ordered_json* out) {
    const char quote = text_[at_++];
    std::string text;
    for (; at_ < text_.size(); ++at_) {
      char c = text_[at_];
      if (c == quote) {
        ++at_;
        *out = std::move(text);
        return true;
      }
      if (c == '\\' && at_ + 1 < text_.size()) {
        c = text_[++at_];
        c = c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
      }
      text.push_back(c);
    }
    return false;
  }

  std::string_view text_;
  size_t at_ = 0;
};

// A list ends a call, so calls are told when the list is whole.
class PythonicCalls final : public CallReader {
 public:
  explicit PythonicCalls(uint32_t* calls) : calls_(*calls) {}
  State Read(std::string* buffer, std::vector<AnswerPart>*) override {
    // "[" and then a name, else it is text.
    const size_t at = buffer->find_first_not_of(kBlanks, buffer->find('[') + 1);
    if (at == std::string::npos) return State::kMore;
    const auto c = static_cast<unsigned char>((*buffer)[at]);
    return std::isalpha(c) != 0 || c == '_' ? State::kMore : State::kNoCall;
  }
  State Finish(std::string* buffer, std::vector<AnswerPart>* out) override {
    const auto calls = PythonReader(*buffer).Calls();
    if (!calls) return State::kNoCall;
    for (const PythonReader::Call& call : *calls) {
      out->push_back({AnswerPart::Kind::kCall, call.name, calls_});
      const std::string text =
          call.arguments.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      out->push_back({AnswerPart::Kind::kArguments, text, calls_++});
    }
    buffer->clear();
    return State::kOver;
  }

 private:
  uint32_t& calls_;
};

}  // namespace

std::unique_ptr<CallReader> MakeNamedCalls(const CallFormat& format, uint32_t* calls) {
  return std::make_unique<NamedCalls>(format, calls);
}
std::unique_ptr<CallReader> MakeMarkedCalls(const CallFormat& format, uint32_t* calls) {
  return std::make_unique<MarkedCalls>(format, calls);
}

std::unique_ptr<CallReader> MakePythonicCalls(uint32_t* calls) {
  return std::make_unique<PythonicCalls>(calls);
}
std::unique_ptr<CallReader> MakeXmlCalls(uint32_t* calls,
                                         std::shared_ptr<const Value::Map> parameters) {
  return std::make_unique<XmlCalls>(calls, std::move(parameters));
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

bool IsJson(std::string_view text) { return nlohmann::json::accept(text); }

size_t PartialEnd(std::string_view text, std::string_view marker) {
  for (size_t size = std::min(text.size(), marker.size() - 1); size > 0; --size) {
    if (text.ends_with(marker.substr(0, size))) return size;
  }
  return 0;
}

}  // namespace aisp
