#include "constrain/forced_run.h"

#include <algorithm>
#include <utility>

#include "text/utf8.h"

namespace aisp {
namespace {

Hash128 KeyOf(std::string_view scope, std::string_view run) {
  std::string text(scope);
  text += '\0';
  text += run;
  return HashBytes(text);
}

// Removes an incomplete code point at the end.
void TrimToCodePoints(std::string* text) {
  size_t lead = text->size();
  while (lead > 0 && text->size() - lead < 4) {
    const auto byte = static_cast<unsigned char>((*text)[--lead]);
    if ((byte & 0xC0) == 0x80) continue;
    if (lead + Utf8Length(byte) > text->size()) text->resize(lead);
    return;
  }
}

}  // namespace

std::string ForcedText(Matcher* matcher, size_t limit) {
  std::string text;
  size_t parts = 0;
  while (text.size() < limit) {
    const std::string more = matcher->Forced(limit - text.size());
    if (more.empty() || matcher->AdvanceBytes(more) != more.size()) break;
    ++parts;
    text += more;
  }
  matcher->Rewind(parts);
  TrimToCodePoints(&text);
  return text;
}

// Tokenized after a newline, which never joins with what follows: some tokenizers write the
// beginning of a text differently.
std::vector<TokenId> SpellInside(const Tokenizer& tokenizer, std::string_view text) {
  for (const char* const before : {"\n", ""}) {
    const auto ids = tokenizer.Encode(before + std::string(text), /*add_special=*/false);
    if (!ids) return {};
    size_t first = ids->size(), bytes = 0;
    while (first > 0 && bytes < text.size()) bytes += tokenizer.IdToPiece((*ids)[--first]).size();
    if (bytes == text.size()) return {ids->begin() + static_cast<ptrdiff_t>(first), ids->end()};
  }
  return {};
}

void RunBook::Keep(const Hash128& key, std::vector<TokenId> tokens) {
  if (young_.size() >= generation_ && !young_.contains(key)) old_ = std::exchange(young_, {});
  young_[key] = std::move(tokens);
}

std::vector<TokenId> RunBook::Spell(std::string_view scope, std::string_view run) {
  const Hash128 key = KeyOf(scope, run);
  const std::lock_guard lock(mutex_);
  if (const auto known = young_.find(key); known != young_.end()) return known->second;
  const auto known = old_.find(key);
  std::vector<TokenId> tokens = known != old_.end() ? known->second : SpellInside(tokenizer_, run);
  if (tokens.size() > kMostRunTokens) tokens.resize(kMostRunTokens);
  Keep(key, tokens);
  return tokens;
}

void RunBook::Note(std::string_view scope, std::string_view run, std::span<const TokenId> tokens) {
  if (tokens.empty()) return;
  const std::lock_guard lock(mutex_);
  Keep(KeyOf(scope, run), {tokens.begin(), tokens.end()});
}

std::vector<TokenId> RunFollower::Next(std::string_view run, std::span<const TokenId> taken,
                                       size_t limit) {
  const bool again = !begun_.empty() && begun_.back().at == taken.size();
  const bool goes_on = !begun_.empty() && !run.empty() && begun_.back().run.ends_with(run) &&
                       (again || run.size() < begun_.back().run.size());
  if (!goes_on) {
    for (const Begun& begun : std::exchange(begun_, {})) {
      if (begun.at >= taken.size()) continue;  // nothing was drawn since
      const auto drawn = taken.subspan(begun.at);
      book_->Note(scope_, begun.run, drawn.first(std::min(drawn.size(), kMostRunTokens)));
    }
  }
  if (run.empty()) return {};
  if (!again && begun_.size() < kMostRunTokens) begun_.push_back({std::string(run), taken.size()});
  std::vector<TokenId> tokens = book_->Spell(scope_, run);
  if (tokens.size() > limit) tokens.resize(limit);
  return tokens;
}

}  // namespace aisp
