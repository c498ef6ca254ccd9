// A list of Python calls: [f(a=1, b="x"), g()].
#include <cctype>

#include "answer/call_reader.h"
#include "answer/python_arguments.h"

namespace aisp {
namespace {

class PythonicCalls final : public CallReader {
 public:
  PythonicCalls(uint32_t* calls, std::shared_ptr<const Value::Map> tools)
      : calls_(*calls), tools_(std::move(tools)) {}

  State Read(std::string* buffer, std::vector<AnswerPart>* out) override {
    State state = State::kMore;
    while (in_arguments_ ? Arguments(buffer, out, &state) : Header(buffer, out, &state)) {
    }
    return state;
  }

  State Finish(std::string* buffer, std::vector<AnswerPart>* out) override {
    const State state = Read(buffer, out);
    if (state != State::kMore) return state;
    if (!any_) return State::kNoCall;
    buffer->clear();  // the beginning of another call
    return State::kOver;
  }

 private:
  static constexpr size_t kMaxName = 256;

  static size_t SkipBlanks(std::string_view text, size_t at) {
    return std::min(text.size(), text.find_first_not_of(kBlanks, at));
  }
  static size_t SkipName(std::string_view text, size_t at) {
    while (at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) != 0 ||
                                std::string_view("_.-").find(text[at]) != std::string_view::npos))
      ++at;
    return at;
  }

  // Both return false when they need more text.
  //
  // "[f(" or ", f(", and enough of the arguments to distinguish a call from text: a name and an
  // equals sign, or the closing parenthesis.
  bool Header(std::string* buffer, std::vector<AnswerPart>* out, State* state) {
    const std::string_view text = *buffer;
    size_t at = any_ ? SkipBlanks(text, 0) : text.find('[');
    if (at >= text.size()) return false;
    if (text[at] == ']') {
      buffer->erase(0, at + 1);
      return Over(state);
    }
    if (any_ && text[at] != ',') return Over(state);
    at = SkipBlanks(text, at + 1);
    const size_t name_end = SkipName(text, at);
    if (name_end - at > kMaxName) return Over(state);
    if (name_end == text.size()) return false;
    const std::string name(text.substr(at, name_end - at));
    const bool known = tools_ == nullptr || tools_->Find(name) != nullptr;
    if (name.empty() || text[name_end] != '(' || !known) return Over(state);
    const size_t first = SkipBlanks(text, name_end + 1);
    if (first == text.size()) return false;
    const size_t key_end = SkipName(text, first);
    const size_t behind = SkipBlanks(text, key_end);
    if (key_end - first > kMaxName) return Over(state);
    if (behind == text.size()) return false;
    if (text[first] != ')' && (key_end == first || text[behind] != '=')) return Over(state);
    out->push_back({AnswerPart::Kind::kCall, name, calls_++});
    buffer->erase(0, first);
    any_ = in_arguments_ = true;
    arguments_ = PythonArguments(PythonArguments::Spelling::kAny);
    return true;
  }

  bool Arguments(std::string* buffer, std::vector<AnswerPart>* out, State* state) {
    std::string json;
    size_t size = 0;
    bool taken = true;
    while (taken && size < buffer->size() && !arguments_.done())
      taken = arguments_.Step((*buffer)[size++], &json);
    if (!json.empty()) out->push_back({AnswerPart::Kind::kArguments, json, calls_ - 1});
    buffer->erase(0, taken ? size : size - 1);
    if (!taken) return Over(state);
    in_arguments_ = !arguments_.done();
    return !in_arguments_;
  }

  bool Over(State* state) const {
    *state = any_ ? State::kOver : State::kNoCall;
    return false;
  }

  uint32_t& calls_;
  const std::shared_ptr<const Value::Map> tools_;  // by tool name; null: any name
  bool any_ = false, in_arguments_ = false;
  PythonArguments arguments_{PythonArguments::Spelling::kAny};
};

}  // namespace

std::unique_ptr<CallReader> MakePythonicCalls(uint32_t* calls,
                                              std::shared_ptr<const Value::Map> tools) {
  return std::make_unique<PythonicCalls>(calls, std::move(tools));
}

}  // namespace aisp
