// Calls in tags, as Qwen3-Coder writes them: <function=NAME><parameter=KEY>VALUE</parameter>
// </function>. String parameters are emitted as they arrive, others when they are complete.
#include <algorithm>

#include "answer/call_reader.h"
#include "answer/text_parameters.h"

namespace aisp {
namespace {

class XmlCalls final : public CallReader {
 public:
  XmlCalls(uint32_t* calls, std::shared_ptr<const Value::Map> parameters)
      : calls_(*calls), parameters_(std::move(parameters)) {}

  State Read(std::string* buffer, std::vector<AnswerPart>* out) override {
    State state = State::kMore;
    while (true) {
      const Stage before = stage_;
      switch (stage_) {
        case Stage::kOpen:
          if (!Open(buffer, out)) state = State::kNoCall;
          break;
        case Stage::kBetween:
          Between(buffer, out);
          break;
        case Stage::kText:
          Text(buffer, out);
          break;
        case Stage::kValue:
          EmitValue(buffer, out);
          break;
        case Stage::kClosed:
          if (buffer->find(kOver) == std::string::npos) return State::kMore;
          buffer->erase(0, buffer->find(kOver) + kOver.size());
          return State::kOver;
      }
      if (state != State::kMore || stage_ == before) return state;
    }
  }

  State Finish(std::string* buffer, std::vector<AnswerPart>* out) override {
    const State state = Read(buffer, out);
    if (state != State::kMore) return state;
    if (stage_ == Stage::kOpen) return State::kNoCall;
    buffer->clear();
    return State::kOver;
  }

 private:
  enum class Stage : uint8_t { kOpen, kBetween, kText, kValue, kClosed };
  static constexpr std::string_view kFunction = "<function=", kFunctionEnd = "</function>",
                                    kParameter = "<parameter=", kEnd = "\n</parameter>",
                                    kOver = "</tool_call>";
  static constexpr size_t kMaxName = 256;

  // All of these: the stage is unchanged when more text is needed. False: not a call.
  bool Open(std::string* buffer, std::vector<AnswerPart>* out) {
    const size_t found = buffer->find(kFunction);
    const bool is_there = found != std::string::npos;
    const size_t begin = is_there ? found : buffer->size() - PartialEnd(*buffer, kFunction);
    if (begin > 2 * kMaxName) return false;
    if (!is_there) return true;
    const size_t end = std::min(buffer->size(), buffer->find('>', begin));
    if (end - begin > 2 * kMaxName) return false;
    if (end == buffer->size()) return true;
    name_ = buffer->substr(begin + kFunction.size(), end - begin - kFunction.size());
    out->push_back({AnswerPart::Kind::kCall, name_, calls_++});
    buffer->erase(0, end + 1);
    stage_ = Stage::kBetween;
    return true;
  }

  void Between(std::string* buffer, std::vector<AnswerPart>* out) {
    const size_t parameter = buffer->find(kParameter);
    const size_t over = buffer->find(kFunctionEnd);
    if (over != std::string::npos && (parameter == std::string::npos || over < parameter)) {
      buffer->erase(0, over + kFunctionEnd.size());
      Emit(fields_ == 0 ? "{}" : "}", out);
      stage_ = Stage::kClosed;
      return;
    }
    const size_t named = buffer->find('>', parameter);
    if (parameter == std::string::npos || named == std::string::npos) return;
    const size_t begin = parameter + kParameter.size();
    const std::string key = buffer->substr(begin, named - begin);
    const Value* schema = parameters_ == nullptr ? nullptr : parameters_->Find(name_);
    const bool text = schema != nullptr && IsTextParameter(*schema, key);
    buffer->erase(0, named + 1);
    Emit((fields_++ == 0 ? "{" : ", ") + QuoteJson(key) + ": " + (text ? "\"" : ""), out);
    stage_ = text ? Stage::kText : Stage::kValue;
    begun_ = false;
  }

  // A possible prefix of the end marker is held back.
  void Text(std::string* buffer, std::vector<AnswerPart>* out) {
    if (buffer->empty()) return;
    if (!begun_ && buffer->front() == '\n') buffer->erase(0, 1);
    begun_ = true;
    const size_t end = buffer->find(kEnd);
    const size_t sure = end == std::string::npos ? buffer->size() - PartialEnd(*buffer, kEnd) : end;
    std::string text;
    for (const char c : std::string_view(*buffer).substr(0, sure)) AppendEscaped(c, &text);
    buffer->erase(0, sure);
    if (end != std::string::npos) {
      text += '"';
      buffer->erase(0, kEnd.size());
      stage_ = Stage::kBetween;
    }
    Emit(text, out);
  }

  // A JSON string may contain the end marker, but never a raw newline.
  void EmitValue(std::string* buffer, std::vector<AnswerPart>* out) {
    const size_t end = buffer->find(kEnd);
    if (end == std::string::npos) return;
    std::string value = buffer->substr(0, end);
    if (value.starts_with('\n')) value.erase(0, 1);
    Emit(IsJson(value) ? value : QuoteJson(value), out);
    buffer->erase(0, end + kEnd.size());
    stage_ = Stage::kBetween;
  }

  void Emit(const std::string& text, std::vector<AnswerPart>* out) const {
    if (!text.empty()) out->push_back({AnswerPart::Kind::kArguments, text, calls_ - 1});
  }

  uint32_t& calls_;
  const std::shared_ptr<const Value::Map> parameters_;
  std::string name_;
  size_t fields_ = 0;
  Stage stage_ = Stage::kOpen;
  bool begun_ = false;
};

}  // namespace

std::unique_ptr<CallReader> MakeXmlCalls(uint32_t* calls,
                                         std::shared_ptr<const Value::Map> parameters) {
  return std::make_unique<XmlCalls>(calls, std::move(parameters));
}

}  // namespace aisp
