#include "answer/parser.h"

#include <algorithm>
#include <array>

#include "answer/call_reader.h"
#include "common/hash.h"
#include "common/strings.h"

namespace aisp {
namespace {

using Kind = AnswerPart::Kind;

void Emit(Kind kind, std::string_view text, uint32_t call, std::vector<AnswerPart>* out) {
  if (text.empty()) return;
  if (!out->empty() && out->back().kind == kind && out->back().call == call) {
    out->back().text += text;
  } else {
    out->push_back({kind, std::string(text), call});
  }
}

// Thinking between two markers, then content, then calls.
class MarkedParser final : public AnswerParser {
 public:
  explicit MarkedParser(const AnswerParserOptions& options)
      : o_(options),
        stage_(options.think == nullptr ? Stage::kContent
               : options.in_thinking    ? Stage::kThinking
                                        : Stage::kStart) {}

  void Push(std::string_view text, std::vector<AnswerPart>* out) override {
    buffer_ += text;
    while (Step(out)) {
    }
  }

  void Finish(std::vector<AnswerPart>* out) override {
    while (Step(out)) {
    }
    if (stage_ == Stage::kStart) stage_ = Stage::kContent;
    if (stage_ == Stage::kThinking) return Emit(Kind::kReasoning, Taken(), 0, out);
    if (stage_ == Stage::kCalls) {
      // What turned out not to be a call is text.
      reader_->Finish(&buffer_, out);
    }
    const std::string rest = Taken();
    if (calls_ > 0 && IsBegunCall(Trim(rest))) return;
    if (said_ || rest.find_first_not_of(kBlanks) != std::string::npos || calls_ == 0)
      Emit(Kind::kContent, blanks_ + rest, 0, out);
  }

 private:
  enum class Stage : uint8_t { kStart, kThinking, kContent, kCalls };

  // The beginning of another call of a constrained answer, cut off before its arguments.
  bool IsBegunCall(std::string_view text) const {
    const std::string_view before = o_.calls->before;
    return !before.empty() && (before.starts_with(text) || text.starts_with(before));
  }

  std::string Taken() { return std::exchange(buffer_, {}); }

  // Returns true when it should be called again.
  bool Step(std::vector<AnswerPart>* out) {
    switch (stage_) {
      case Stage::kStart:
        return Start();
      case Stage::kThinking:
        return Think(out);
      case Stage::kContent:
        return Content(out);
      case Stage::kCalls: {
        const CallReader::State state = reader_->Read(&buffer_, out);
        if (state == CallReader::State::kMore) return false;
        reader_ = nullptr;
        stage_ = Stage::kContent;
        if (state == CallReader::State::kOver) return !buffer_.empty();
        // The trigger itself is text; what follows it may hold another trigger.
        const size_t size = std::min(buffer_.size(), std::max<size_t>(1, o_.calls->trigger.size()));
        Say(std::string_view(buffer_).substr(0, size), out);
        buffer_.erase(0, size);
        return !buffer_.empty();
      }
    }
    return false;
  }

  bool Start() {
    const size_t at = buffer_.find_first_not_of(kBlanks);
    if (at == std::string::npos) return false;
    const std::string_view text = std::string_view(buffer_).substr(at);
    const std::string_view open = o_.think->open;
    if (text.starts_with(open)) {
      buffer_.erase(0, at + open.size());
      stage_ = Stage::kThinking;
      return true;
    }
    if (open.starts_with(text)) return false;
    stage_ = Stage::kContent;
    return true;
  }

  bool Think(std::vector<AnswerPart>* out) {
    const std::string_view close = o_.think->close;
    const size_t end = buffer_.find(close);
    if (end == std::string::npos) {
      const size_t sure = buffer_.size() - PartialEnd(buffer_, close);
      Reason(std::string_view(buffer_).substr(0, sure), out);
      buffer_.erase(0, sure);
      return false;
    }
    Reason(std::string_view(buffer_).substr(0, end), out);
    buffer_.erase(0, end + close.size());
    stage_ = Stage::kContent;
    after_thinking_ = true;
    return true;
  }

  void Reason(std::string_view text, std::vector<AnswerPart>* out) {
    if (!reasoned_) {
      const size_t at = text.find_first_not_of(kBlanks);
      if (at == std::string_view::npos) return;
      text.remove_prefix(at);
      reasoned_ = true;
    }
    Emit(Kind::kReasoning, text, 0, out);
  }

  bool Content(std::vector<AnswerPart>* out) {
    if (o_.calls == nullptr) {
      Say(Taken(), out);
      return false;
    }
    if (o_.calls_or_content) return Decide(out);
    const std::string_view trigger = o_.calls->trigger;
    if (trigger.empty()) return AtStart(out);
    const size_t at = buffer_.find(trigger);
    if (at != std::string::npos) {
      Say(std::string_view(buffer_).substr(0, at), out);
      buffer_.erase(0, at);
      return Open();
    }
    const size_t sure = buffer_.size() - PartialEnd(buffer_, trigger);
    Say(std::string_view(buffer_).substr(0, sure), out);
    buffer_.erase(0, sure);
    return false;
  }

  // A call must start the answer and match an opening up to the arguments. Anything else, or a call
  // that comes later, is content.
  bool Decide(std::vector<AnswerPart>* out) {
    bool open = !decided_;
    if (open) {
      std::string_view text = buffer_;
      const std::string_view blanks = after_thinking_ ? o_.think->after : "";
      if (text.size() < blanks.size() && blanks.starts_with(text)) return false;
      if (text.starts_with(blanks)) text.remove_prefix(blanks.size());
      open = false;
      for (const auto& [name, schema] : *o_.parameters) {
        const std::string opening = OpeningOf(*o_.calls, name);
        if (text.starts_with(opening)) {
          decided_ = true;
          return Open();
        }
        open = open || opening.starts_with(text);
      }
    }
    if (open) return false;
    decided_ = true;
    Say(Taken(), out);
    return false;
  }

  // Calls without a marker must start the answer.
  bool AtStart(std::vector<AnswerPart>* out) {
    if (said_ || calls_ > 0) {
      Say(Taken(), out);
      return false;
    }
    const size_t at = buffer_.find_first_not_of(kBlanks);
    if (at == std::string::npos) return false;
    const std::string_view text = std::string_view(buffer_).substr(at);
    constexpr std::string_view kTag = "<|python_tag|>";
    if (text[0] == (o_.calls->body == CallFormat::Body::kPythonic ? '[' : '{') ||
        text.starts_with(kTag)) {
      return Open();
    }
    if (kTag.starts_with(text)) return false;
    Say(Taken(), out);
    return false;
  }

  bool Open() {
    stage_ = Stage::kCalls;
    switch (o_.calls->body) {
      case CallFormat::Body::kNamed:
        reader_ = MakeNamedCalls(*o_.calls, &calls_);
        break;
      case CallFormat::Body::kMarked:
        reader_ = MakeMarkedCalls(*o_.calls, &calls_);
        break;
      case CallFormat::Body::kPythonic:
        reader_ = MakePythonicCalls(&calls_, o_.parameters);
        break;
      case CallFormat::Body::kXml:
        reader_ = MakeXmlCalls(&calls_, o_.parameters);
        break;
      default:
        reader_ = MakeObjectCalls(*o_.calls, &calls_);
    }
    return true;
  }

  // Blanks before and between calls and after thinking are not content.
  void Say(std::string_view text, std::vector<AnswerPart>* out) {
    if (!said_) {
      const size_t at = text.find_first_not_of(kBlanks);
      if (at == std::string_view::npos) {
        if (!after_thinking_ && calls_ == 0) blanks_ += text;
        return;
      }
      if (after_thinking_ || calls_ > 0) text.remove_prefix(at);
      said_ = true;
      Emit(Kind::kContent, std::exchange(blanks_, {}), 0, out);
    }
    Emit(Kind::kContent, text, 0, out);
  }

  const AnswerParserOptions o_;
  Stage stage_;
  std::string buffer_, blanks_;
  bool reasoned_ = false, said_ = false, after_thinking_ = false, decided_ = false;
  uint32_t calls_ = 0;
  std::unique_ptr<CallReader> reader_;
};

// Harmony: messages with a header each, <|channel|>analysis<|message|>...<|end|>.
class HarmonyParser final : public AnswerParser {
 public:
  void Push(std::string_view text, std::vector<AnswerPart>* out) override {
    buffer_ += text;
    while (Step(out)) {
    }
  }
  void Finish(std::vector<AnswerPart>* out) override {
    while (Step(out)) {
    }
    if (in_body_ || (!any_ && !buffer_.starts_with("<|")))
      Emit(kind_, std::exchange(buffer_, {}), call_, out);
    buffer_.clear();
  }

 private:
  static constexpr std::string_view kMessage = "<|message|>";
  static constexpr std::array<std::string_view, 4> kEnds = {"<|end|>", "<|call|>", "<|return|>",
                                                            "<|start|>"};

  bool Step(std::vector<AnswerPart>* out) {
    if (in_body_) return Body(out);
    // An answer that does not begin with a header is plain text.
    if (!any_ && !buffer_.empty()) {
      const std::string_view begin = std::string_view("<|").substr(0, buffer_.size());
      if (!buffer_.starts_with(begin) && !buffer_.starts_with(' ')) {
        in_body_ = any_ = true;
        return true;
      }
    }
    const size_t at = buffer_.find(kMessage);
    if (at == std::string::npos) return false;
    Open(std::string_view(buffer_).substr(0, at), out);
    buffer_.erase(0, at + kMessage.size());
    return true;
  }

  static std::string_view Word(std::string_view header, std::string_view behind) {
    const size_t at = header.rfind(behind);
    if (at == std::string_view::npos) return "";
    header.remove_prefix(at + behind.size());
    return header.substr(0, header.find_first_of(" <\t\n"));
  }

  void Open(std::string_view header, std::vector<AnswerPart>* out) {
    in_body_ = any_ = true;
    constexpr std::string_view kFunctions = "functions.";
    const std::string_view to = Word(header, "to=");
    if (to.starts_with(kFunctions)) {
      kind_ = Kind::kArguments;
      call_ = calls_++;
      out->push_back({Kind::kCall, std::string(to.substr(kFunctions.size())), call_});
      return;
    }
    kind_ = Word(header, "<|channel|>") == "analysis" ? Kind::kReasoning : Kind::kContent;
    call_ = 0;
  }

  bool Body(std::vector<AnswerPart>* out) {
    size_t at = std::string::npos, size = 0, held = 0;
    for (const std::string_view end : kEnds) {
      const size_t found = buffer_.find(end);
      if (found < at) {
        at = found;
        size = end.size();
      }
      held = std::max(held, PartialEnd(buffer_, end));
    }
    const size_t sure = at == std::string::npos ? buffer_.size() - held : at;
    Emit(kind_, std::string_view(buffer_).substr(0, sure), call_, out);
    buffer_.erase(0, sure + size);
    in_body_ = at == std::string::npos;
    return !in_body_;
  }

  std::string buffer_;
  bool in_body_ = false, any_ = false;
  Kind kind_ = Kind::kContent;
  uint32_t call_ = 0, calls_ = 0;
};

}  // namespace

std::string MakeCallId(std::string_view request, uint32_t choice, uint32_t call,
                       const CallFormat* format) {
  const std::string key =
      std::string(request) + "/" + std::to_string(choice) + "/" + std::to_string(call);
  const std::string digits = HashBytes(key).ToHex();
  const bool bare = format != nullptr && format->short_id;
  const auto count = static_cast<size_t>(format == nullptr ? 24 : format->id_digits);
  return (bare ? "" : "call_") + digits.substr(0, count);
}

std::unique_ptr<AnswerParser> MakeAnswerParser(const AnswerParserOptions& options) {
  const bool harmony =
      (options.calls != nullptr && options.calls->body == CallFormat::Body::kHarmony) ||
      (options.think != nullptr && options.think->name == "openai");
  if (harmony) return std::make_unique<HarmonyParser>();
  return std::make_unique<MarkedParser>(options);
}

}  // namespace aisp
