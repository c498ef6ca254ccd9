// HashGuide: a constraint for tests. A hash of the tokens so far chooses the allowed tokens: three
// of them (one where stop tokens are banned) or a quarter of the vocabulary. The text is complete
// after a given number of tokens. As forced it names one of the three, sometimes one of the many,
// and one that is not allowed.
#pragma once

#include <memory>
#include <vector>

#include "common/check.h"
#include "common/random.h"
#include "engine/draw_guide.h"

namespace aisp {

class HashGuide final : public DrawGuide {
 public:
  HashGuide(uint64_t seed, int32_t vocabulary, size_t length)
      : seed_(seed), vocabulary_(vocabulary), length_(length) {}

  // A new guide for the same text, at its beginning.
  std::shared_ptr<HashGuide> Fresh() const {
    return std::make_shared<HashGuide>(seed_, vocabulary_, length_);
  }

  std::span<const uint32_t> Allowed() override {
    AISP_CHECK_MSG(!AtEnd(), "a mask is wanted behind the end");
    words_.assign(static_cast<size_t>(vocabulary_ + 31) / 32, 0);
    SplitMix64 random(State());
    const bool few = random.Below(3) == 0;
    for (int32_t t = 0; t < vocabulary_ && !few; ++t) Set(t, random.Below(4) == 0);
    const auto one = static_cast<TokenId>(random.Below(static_cast<uint64_t>(vocabulary_)));
    for (int32_t i = 0; i < 3; ++i) Set((one + i) % vocabulary_, i == 0 || few);
    return words_;
  }
  bool Take(TokenId token) override {
    if (AtEnd()) return false;
    Allowed();
    if (!Has(token)) return false;
    tokens_.push_back(token);
    return true;
  }
  void Rewind(size_t count) override {
    AISP_CHECK(count <= tokens_.size());
    tokens_.resize(tokens_.size() - count);
  }
  bool AtEnd() override { return tokens_.size() >= length_; }
  std::vector<TokenId> Forced(size_t limit) override {
    std::vector<TokenId> out;
    size_t taken = 0;
    while (out.size() < limit && !AtEnd()) {
      SplitMix64 random(State() + 1);
      std::vector<TokenId> allowed;
      Allowed();
      for (TokenId t = 0; t < vocabulary_; ++t) {
        if (Has(t)) allowed.push_back(t);
      }
      if (allowed.size() > 3 && random.Below(3) > 0) break;
      out.push_back(allowed[random.Below(allowed.size())]);
      if (random.Below(16) == 0) out.back() = (out.back() + 1) % vocabulary_;
      if (!Take(out.back())) break;
      ++taken;
    }
    Rewind(taken);
    return out;
  }

 private:
  uint64_t State() const {
    uint64_t state = seed_;
    for (const TokenId t : tokens_) state = SplitMix64(state + static_cast<uint64_t>(t)).Next();
    return state;
  }
  bool Has(TokenId token) const {
    const auto at = static_cast<size_t>(token);
    return (words_[at / 32] >> (at % 32) & 1) != 0;
  }
  void Set(TokenId token, bool allowed) {
    const auto at = static_cast<size_t>(token);
    if (allowed) words_[at / 32] |= uint32_t{1} << (at % 32);
  }

  const uint64_t seed_;
  const int32_t vocabulary_;
  const size_t length_;
  std::vector<TokenId> tokens_;
  std::vector<uint32_t> words_;
};

}  // namespace aisp
