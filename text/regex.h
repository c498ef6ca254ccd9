// Regular expressions of tokenizer files: PCRE2 with Unicode properties and JIT. Text must be valid
// UTF-8, which is not checked here (a check at every match would be quadratic). A Regex is
// immutable: any thread. A Matcher is the scratch memory of one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "common/result.h"

namespace aisp {

class Regex {
 public:
  // INVALID_ARGUMENT with PCRE2's message and the offset when the pattern does not compile.
  static Result<Regex> Compile(std::string_view pattern);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  class Matcher {
   public:
    explicit Matcher(const Regex& regex);
    ~Matcher();
    Matcher(const Matcher&) = delete;
    Matcher& operator=(const Matcher&) = delete;

    // Finds the first non-empty match in text[from, end); true sets [*begin, *end).
    // RESOURCE_EXHAUSTED when the pattern exceeds its match limits on this text.
    Result<bool> Find(std::string_view text, size_t from, size_t* begin, size_t* end);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace aisp
