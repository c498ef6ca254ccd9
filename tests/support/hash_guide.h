// HashGuide: a constraint for tests. What may follow is a quarter of the vocabulary, chosen by a
// hash of the tokens so far; the text is whole after a given number of tokens.
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

  // Another one for the same text, at its beginning.
  std::shared_ptr<HashGuide> Fresh() const {
    return std::make_shared<HashGuide>(seed_, vocabulary_, length_);
  }

  std::span<const uint32_t> Allowed() override {
    AISP_CHECK_MSG(!AtEnd(), "a mask is wanted behind the end");
    words_.assign(static_cast<size_t>(vocabulary_ + 31) / 32, 0);
    SplitMix64 random(State());
    for (int32_t t = 0; t < vocabulary_; ++t) Set(t, random.Below(4) == 0);
    Set(static_cast<TokenId>(random.Below(static_cast<uint64_t>(vocabulary_))), true);
    return words_;
  }
  bool Take(TokenId token) override {
    if (AtEnd()) return false;
    const auto at = static_cast<size_t>(token);
    if ((Allowed()[at / 32] >> (at % 32) & 1) == 0) return false;
    tokens_.push_back(token);
    return true;
  }
  void Rewind(size_t count) override {
    AISP_CHECK(count <= tokens_.size());
    tokens_.resize(tokens_.size() - count);
  }
  bool AtEnd() override { return tokens_.size() >= length_; }

 private:
  uint64_t State() const {
    uint64_t state = seed_;
    for (const TokenId t : tokens_) state = SplitMix64(state + static_cast<uint64_t>(t)).Next();
    return state;
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
