// Token ids to text, one token at a time: the stream of one choice. What comes out is always whole
// UTF-8; bytes of a character that is not complete yet are held back. All that Push and Flush give,
// joined, is Tokenizer::Decode of the same tokens. Costs O(bytes of the token). One owner, not
// thread-safe; the Tokenizer must outlive it.
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

  // The text that `token` completes; often empty, never part of a character.
  std::string Push(TokenId token);
  // The same, appended to *out.
  void Push(TokenId token, std::string* out);

  // Ends the stream: an incomplete character becomes U+FFFD. The Detokenizer is then as new.
  std::string Flush();
  void Flush(std::string* out);

  // Whether the last tokens' text is still incomplete.
  bool HoldsBack() const { return assembler_.HoldsBack(); }

 private:
  void Emit(std::string_view bytes, std::string* out);

  const Tokenizer* tokenizer_;
  bool skip_special_;
  bool first_ = true;  // no token has contributed yet
  size_t leading_;     // how many leading strings may still be taken off
  Utf8Assembler assembler_;
};

}  // namespace aisp
