// Tokens that are matched in the text before the model sees it: control tokens such as <|im_end|>,
// and words added to a vocabulary. Matching is leftmost-longest over a byte trie, as in Hugging
// Face's AddedVocabulary. Immutable after Create: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/ids.h"
#include "common/result.h"
#include "text/normalizer.h"

namespace aisp {

inline constexpr size_t kMaxAddedTokens = 256 * 1024;
inline constexpr size_t kMaxAddedTokenBytes = 1024;

struct AddedToken {
  TokenId id = -1;
  std::string content;
  bool special = false;      // omitted by skip_special, ignored without parse_special
  bool normalized = false;   // matched in the normalised text, in its own normalised form
  bool lstrip = false;       // also consumes the white space before it
  bool rstrip = false;       // also consumes the white space after it
  bool single_word = false;  // never matched inside a word
};

class AddedTokens {
 public:
  // A part of the text: a token when id >= 0, else text between tokens.
  struct Segment {
    std::string_view text;
    TokenId id = -1;
  };
  enum class Pass { kRaw, kNormalized };

  static Result<AddedTokens> Create(std::vector<AddedToken> tokens, const Normalizer& normalizer);

  // Appends the segments of `text` (none of them empty) for the tokens of one pass.
  void Split(std::string_view text, Pass pass, bool parse_special, std::vector<Segment>* out) const;

  // Whether Split can find any token in this pass.
  bool Empty(Pass pass) const { return TrieOf(pass).nodes.size() <= 1; }
  const std::vector<AddedToken>& tokens() const { return tokens_; }
  // The token of this id, or null.
  const AddedToken* Find(TokenId id) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, uint32_t>> children;
    int32_t token = -1;  // index into tokens_
  };
  struct Trie {
    std::vector<Node> nodes = std::vector<Node>(1);
    std::array<bool, 256> starts{};
    void Insert(std::string_view key, int32_t token);
    // The longest token at the front of `text` and its length; -1 when there is none.
    int32_t Longest(std::string_view text, size_t* length) const;
  };

  const Trie& TrieOf(Pass pass) const { return pass == Pass::kRaw ? raw_ : normalized_; }

  std::vector<AddedToken> tokens_;
  std::unordered_map<TokenId, size_t> by_id_;
  Trie raw_;
  Trie normalized_;
};

}  // namespace aisp
