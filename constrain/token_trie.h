// TokenTrie: a vocabulary's tokens by their bytes, laid out for masks: nodes in depth-first order
// with the size of their subtree, so that a traversal skips all tokens that begin with a forbidden
// byte.
//
// Also indexes what follows a quote inside a token: many tokens end a string and continue ("\",",
// "\"}"), but with few different suffixes, which have a small trie of their own. Immutable after
// construction: any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/ids.h"
#include "text/tokenizer.h"

namespace aisp {

// A set of tokens, one bit each, from which a token may be drawn.
class TokenMask {
 public:
  TokenMask() = default;
  explicit TokenMask(size_t tokens) : words_((tokens + 31) / 32, 0), tokens_(tokens) {}
  void Set(size_t token) { words_[token / 32] |= 1u << (token % 32); }
  void Clear(size_t token) { words_[token / 32] &= ~(1u << (token % 32)); }
  bool Has(size_t token) const {
    return token < tokens_ && (words_[token / 32] >> (token % 32) & 1) != 0;
  }
  void Join(const TokenMask& other) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
  }
  size_t Count() const;
  std::span<const uint32_t> words() const { return words_; }
  std::span<uint32_t> words() { return words_; }
  size_t size() const { return tokens_; }

 private:
  std::vector<uint32_t> words_;
  size_t tokens_ = 0;
};

// The tokens that may follow inside a string, for one state of its automaton.
struct TextMask {
  TokenMask inside;                     // tokens that stay in the string
  std::vector<int32_t> quotes;          // nodes of quotes that may close the string
  std::vector<int32_t> escaped_quotes;  // such nodes after an escape in the same token
  std::vector<int32_t> escapes;         // tokens with an escape that stay in the string
};

struct TrieNode {
  uint32_t next = 0;   // index after this node's subtree
  int32_t token = -1;  // the token that ends here; others of equal bytes are in TokenTrie::twins
  uint16_t depth = 0;  // 1 for a first byte
  uint8_t byte = 0;
  bool twins = false;
};

// A token with an escape, and the text that it spells up to its quote or end.
struct SpelledToken {
  std::string text;
  int32_t token = -1;
  bool closes = false;  // a quote follows the text
};

class TokenTrie {
 public:
  struct Suffix {
    int32_t suffix;  // node of the suffix trie, -1: the token ends with the quote
    int32_t token;
  };

  // `pieces[id]`: a token's bytes; empty ones are skipped.
  explicit TokenTrie(const std::vector<std::string>& pieces);
  // All tokens of a tokenizer except special ones.
  static std::shared_ptr<const TokenTrie> Of(const Tokenizer& tokenizer, int32_t vocabulary);

  std::span<const TrieNode> nodes() const { return nodes_; }
  std::span<const TrieNode> suffixes() const { return suffixes_; }
  size_t vocabulary() const { return vocabulary_; }
  uint16_t max_depth() const { return max_depth_; }
  const std::string& piece(TokenId id) const { return pieces_[static_cast<size_t>(id)]; }

  // The child of `node` (-1: the root) for `byte`; -1 if there is none.
  int32_t Child(int32_t node, uint8_t byte) const;
  // Tokenizes greedily by longest match; false when some byte has no token.
  bool SpellOut(std::string_view text, std::vector<TokenId>* out) const;
  // Sets the token of a node and its twins.
  void SetTokens(const TrieNode& node, TokenMask* mask) const {
    if (node.token < 0) return;
    mask->Set(static_cast<size_t>(node.token));
    if (node.twins) SetTwins(node.token, mask);
  }
  void AddTokens(const TrieNode& node, std::vector<int32_t>* out) const {
    if (node.token < 0) return;
    out->push_back(node.token);
    if (node.twins) AddTwins(node.token, out);
  }
  // Clears all tokens that end at or below `node`.
  void ClearBelow(int32_t node, TokenMask* mask) const;
  // For a node whose byte is a quote: every token below it and its suffix after the quote.
  std::span<const Suffix> BehindQuote(int32_t node) const;
  // Inside a string: tokens with text and an escape, by the first byte of the text; [256]: no text
  // yet.
  std::span<const SpelledToken> Spelled(size_t first) const { return spelled_[first]; }
  // Tokens that close a string and continue after a comma: for names (a colon follows the quote)
  // and for values.
  std::span<const int32_t> BeyondNames() const { return beyond_names_; }
  std::span<const int32_t> BeyondValues() const { return beyond_values_; }
  // Those of values that may contain a whole item after the comma.
  std::span<const int32_t> BeyondItems() const { return beyond_items_; }
  // The mask of an unrestricted string, equal for all schemas and cached once computed.
  const TextMask* any_text() const { return any_text_.load(std::memory_order_acquire); }
  const TextMask& KeepAnyText(std::unique_ptr<TextMask> mask) const;

  // Code points of a token: its bytes that are no UTF-8 continuation (at most 255).
  uint8_t CodePoints(TokenId id) const { return code_points_[static_cast<size_t>(id)]; }
  // Clears tokens of more than `points` code points.
  void KeepShort(int32_t points, TokenMask* mask) const;

 private:
  static void Build(const std::vector<std::pair<std::string_view, int32_t>>& sorted,
                    std::vector<TrieNode>* nodes, std::vector<std::pair<int32_t, int32_t>>* twins);
  void SetTwins(int32_t token, TokenMask* mask) const;
  void AddTwins(int32_t token, std::vector<int32_t>* out) const;
  void IndexQuotes();
  void IndexTexts();

  std::vector<std::string> pieces_;
  size_t vocabulary_ = 0;
  uint16_t max_depth_ = 0;
  std::vector<TrieNode> nodes_, suffixes_;
  std::vector<std::pair<int32_t, int32_t>> twins_;  // (first token, other token), sorted
  std::array<int32_t, 256> first_ = {};
  std::vector<int32_t> quote_nodes_;   // sorted
  std::vector<uint32_t> quote_begin_;  // into quote_suffixes_, one more than quote_nodes_
  std::vector<Suffix> quote_suffixes_;
  std::array<std::vector<SpelledToken>, 257> spelled_;
  std::vector<int32_t> beyond_names_, beyond_values_, beyond_items_;
  mutable std::atomic<const TextMask*> any_text_ = nullptr;
  mutable std::mutex any_text_mutex_;
  mutable std::unique_ptr<const TextMask> any_text_owner_;
  std::vector<uint8_t> code_points_;
  std::vector<TokenMask> short_;  // [n]: tokens of at most n code points
  std::vector<int32_t> long_;     // tokens of at least short_.size() code points, longest first
};

}  // namespace aisp
