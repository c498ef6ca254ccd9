#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode.h"
#include "text/utf8.h"

namespace aisp {
namespace {

// Start of the code point that ends before `end`.
size_t PreviousCodePoint(std::string_view text, size_t end) {
  do {
    --end;
  } while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

bool WordBefore(std::string_view text, size_t pos) {
  if (pos == 0) return false;
  size_t start = PreviousCodePoint(text, pos);
  return IsWord(DecodeUtf8(text, &start));
}

bool WordAt(std::string_view text, size_t pos) {
  return pos < text.size() && IsWord(DecodeUtf8(text, &pos));
}

size_t SkipSpacesBack(std::string_view text, size_t pos, size_t stop) {
  while (pos > stop) {
    const size_t start = PreviousCodePoint(text, pos);
    size_t i = start;
    if (!IsWhitespace(DecodeUtf8(text, &i))) break;
    pos = start;
  }
  return std::max(pos, stop);
}

size_t SkipSpaces(std::string_view text, size_t pos) {
  while (pos < text.size()) {
    size_t next = pos;
    if (!IsWhitespace(DecodeUtf8(text, &next))) break;
    pos = next;
  }
  return pos;
}

}  // namespace

void AddedTokens::Trie::Insert(std::string_view key, int32_t token) {
  if (key.empty()) return;
  starts[static_cast<unsigned char>(key[0])] = true;
  uint32_t node = 0;
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    auto& children = nodes[node].children;
    const auto it = std::find_if(children.begin(), children.end(),
                                 [&](const auto& e) { return e.first == byte; });
    if (it != children.end()) {
      node = it->second;
      continue;
    }
    const auto added = static_cast<uint32_t>(nodes.size());
    children.emplace_back(byte, added);
    nodes.emplace_back();
    node = added;
  }
  nodes[node].token = token;
}

int32_t AddedTokens::Trie::Longest(std::string_view text, size_t* length) const {
  int32_t token = -1;
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto& children = nodes[node].children;
    const auto it = std::find_if(children.begin(), children.end(),
                                 [&](const auto& e) { return e.first == byte; });
    if (it == children.end()) break;
    node = it->second;
    if (nodes[node].token >= 0) {
      token = nodes[node].token;
      *length = i + 1;
    }
  }
  return token;
}

Result<AddedTokens> AddedTokens::Create(std::vector<AddedToken> tokens,
                                        const Normalizer& normalizer) {
  if (tokens.size() > kMaxAddedTokens) {
    return InvalidArgument(std::to_string(tokens.size()) + " added tokens; the limit is " +
                           std::to_string(kMaxAddedTokens));
  }
  AddedTokens added;
  added.tokens_ = std::move(tokens);
  for (size_t i = 0; i < added.tokens_.size(); ++i) {
    const AddedToken& token = added.tokens_[i];
    if (token.content.size() > kMaxAddedTokenBytes) {
      return InvalidArgument("added token " + std::to_string(token.id) + " has " +
                             std::to_string(token.content.size()) + " bytes; the limit is " +
                             std::to_string(kMaxAddedTokenBytes));
    }
    added.by_id_[token.id] = i;
    if (token.normalized) {
      AISP_ASSIGN_OR_RETURN(const std::string key, normalizer.Apply(token.content));
      added.normalized_.Insert(key, static_cast<int32_t>(i));
    } else {
      added.raw_.Insert(token.content, static_cast<int32_t>(i));
    }
  }
  return added;
}

const AddedToken* AddedTokens::Find(TokenId id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : &tokens_[it->second];
}

void AddedTokens::Split(std::string_view text, Pass pass, bool parse_special,
                        std::vector<Segment>* out) const {
  const Trie& trie = TrieOf(pass);
  size_t done = 0;  // everything before it is in `out`
  for (size_t pos = 0; pos < text.size();) {
    size_t length = 0;
    const int32_t index = trie.starts[static_cast<unsigned char>(text[pos])]
                              ? trie.Longest(text.substr(pos), &length)
                              : -1;
    if (index < 0) {
      ++pos;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    const size_t match = pos;
    pos += length;
    if (token.special && !parse_special) continue;
    if (token.single_word && (WordBefore(text, match) || WordAt(text, pos))) continue;
    const size_t begin = token.lstrip ? SkipSpacesBack(text, match, done) : match;
    const size_t end = token.rstrip ? SkipSpaces(text, pos) : pos;
    if (begin < done) continue;  // inside the white space that the previous token consumed
    if (begin > done) out->push_back({text.substr(done, begin - done), -1});
    out->push_back({text.substr(begin, end - begin), token.id});
    done = end;
  }
  if (done < text.size()) out->push_back({text.substr(done), -1});
}

}  // namespace aisp
