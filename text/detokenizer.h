// Token ids to text, one token at a time, for one choice. The output is always whole UTF-8; bytes
// of an incomplete character are held back. The joined results of Push and Flush equal
// Tokenizer::Decode of the same tokens. O(bytes of the token). One owner, not thread-safe; the
// Tokenizer must outlive it.
#pragma once

#include <string>
#include <string_view>

#include "common/ids.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace aisp {

class Detokenizer {
 public:
  Detokenizer(const Tokenizer& tokenizer, bool skip_special);

  // The text that `token` completes; often empty, never a part of a character.
  std::string Push(TokenId token);
  // The same, appended to *out.
  void Push(TokenId token, std::string* out);

  // Ends the stream: an incomplete character becomes U+FFFD. The Detokenizer can then be reused.
  std::string Flush();
  void Flush(std::string* out);

  // Whether the last tokens' text is still incomplete.
  bool HoldsBack() const { return assembler_.HoldsBack(); }

 private:
  void Emit(std::string_view bytes, std::string* out);

  const Tokenizer* tokenizer_;
  bool skip_special_;
  bool first_ = true;  // no token has contributed yet
  size_t leading_;     // leading strings that may still be removed
  Utf8Assembler assembler_;
};

}  // namespace aisp
