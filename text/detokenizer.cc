#include "text/detokenizer.h"

#include "text/decoder.h"

namespace aisp {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(&tokenizer),
      skip_special_(skip_special),
      leading_(tokenizer.decoder().leading_count()),
      assembler_(tokenizer.decoder().repair()) {}

std::string Detokenizer::Push(TokenId token) {
  std::string out;
  Push(token, &out);
  return out;
}

void Detokenizer::Push(TokenId token, std::string* out) {
  if (token < 0 || token >= tokenizer_->VocabSize()) return;
  if (skip_special_ && tokenizer_->IsSpecial(token)) return;
  const Decoder& decoder = tokenizer_->decoder();
  if (!first_ && decoder.spaces_between()) Emit(" ", out);
  Emit(decoder.Bytes(token, first_), out);
  first_ = false;
}

// There are at most a few leading strings (one space), each a single character, so a token border
// never splits one and each token can be checked by itself.
void Detokenizer::Emit(std::string_view bytes, std::string* out) {
  const std::string& leading = tokenizer_->decoder().leading();
  while (leading_ > 0 && bytes.starts_with(leading)) {
    bytes.remove_prefix(leading.size());
    --leading_;
  }
  if (!bytes.empty()) leading_ = 0;
  assembler_.Push(bytes, out);
}

std::string Detokenizer::Flush() {
  std::string out;
  Flush(&out);
  return out;
}

void Detokenizer::Flush(std::string* out) {
  assembler_.Flush(out);
  first_ = true;
  leading_ = tokenizer_->decoder().leading_count();
}

}  // namespace aisp
