#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <string>

#include "common/strings.h"
#include "text/utf8.h"

namespace aisp {
namespace {

constexpr size_t kMaxPatternBytes = 64 * 1024;
constexpr uint32_t kMaxParenthesisDepth = 100;
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr size_t kJitStackBytes = 8 * 1024 * 1024;

std::string ErrorText(int code) {
  char buffer[256] = {};
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(buffer), sizeof(buffer));
  return buffer;
}

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
  ~Code() { pcre2_code_free(code); }
};

struct Regex::Matcher::State {
  const Code* code = nullptr;
  pcre2_match_data* match = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  ~State() {
    pcre2_match_data_free(match);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::Compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return InvalidArgument("pattern of " + std::to_string(pattern.size()) +
                           " bytes; the limit is " + std::to_string(kMaxPatternBytes));
  }
  if (!IsValidUtf8(pattern)) return InvalidArgument("pattern is not valid UTF-8");
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_unique<Code>();
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  pcre2_set_parens_nest_limit(context, kMaxParenthesisDepth);
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_NEVER_BACKSLASH_C,
                             &error, &offset, context);
  pcre2_compile_context_free(context);
  if (code->code == nullptr) {
    return InvalidArgument("pattern \"" + std::string(pattern.substr(0, 80)) + "\" at offset " +
                           std::to_string(offset) + ": " + ErrorText(error));
  }
  code->jit = pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE) == 0;
  return Regex(std::move(code));
}

Regex::Matcher::Matcher(const Regex& regex) : state_(std::make_unique<State>()) {
  state_->code = regex.code_.get();
  state_->match = pcre2_match_data_create(1, nullptr);
  state_->context = pcre2_match_context_create(nullptr);
  pcre2_set_match_limit(state_->context, kMatchLimit);
}

Regex::Matcher::~Matcher() = default;

Result<bool> Regex::Matcher::Find(std::string_view text, size_t from, size_t* begin, size_t* end) {
  State& s = *state_;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  while (from < text.size()) {
    int rc = s.code->jit
                 ? pcre2_jit_match(s.code->code, subject, text.size(), from, 0, s.match, s.context)
                 : pcre2_match(s.code->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                               s.match, s.context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && s.stack == nullptr) {
      // PCRE2's default 32 KiB of JIT stack was not enough: allocate a larger one and retry.
      s.stack = pcre2_jit_stack_create(32 * 1024, kJitStackBytes, nullptr);
      pcre2_jit_stack_assign(s.context, nullptr, s.stack);
      if (s.stack != nullptr) continue;
    }
    if (rc == PCRE2_ERROR_NOMATCH) return false;
    if (rc < 0) {
      return ResourceExhausted("the tokenizer's pattern fails on this text at byte " +
                               std::to_string(from) + ": " + ErrorText(rc));
    }
    const PCRE2_SIZE* found = pcre2_get_ovector_pointer(s.match);
    if (found[1] > found[0]) {
      *begin = found[0];
      *end = found[1];
      return true;
    }
    from = std::max<size_t>(from, found[0]);
    if (from < text.size()) from += Utf8Length(static_cast<unsigned char>(text[from]));
  }
  return false;
}

}  // namespace aisp
