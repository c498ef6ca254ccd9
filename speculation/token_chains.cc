#include "speculation/token_chains.h"

#include <algorithm>

namespace aisp {

uint64_t TokenChains::KeyOf(std::span<const TokenId> gram) {
  uint64_t key = gram.size();
  for (const TokenId t : gram) {
    key = (key ^ static_cast<uint32_t>(t)) * 0x9e3779b97f4a7c15ull;
    key ^= key >> 29;
  }
  return key;
}

void TokenChains::Append(std::span<const TokenId> tokens) {
  for (const TokenId token : tokens) {
    tokens_.push_back(token);
    const int32_t end = size();
    for (size_t g = 0; g < kGrams.size(); ++g) {
      int32_t before = 0;
      if (end >= kGrams[g]) {
        const auto gram = std::span<const TokenId>(tokens_).last(static_cast<size_t>(kGrams[g]));
        if (std::find(gram.begin(), gram.end(), kBreak) == gram.end()) {
          int32_t& head = heads_[g][KeyOf(gram)];
          before = head;
          head = end;
        }
      }
      before_[g].push_back(before);
    }
  }
}

void TokenChains::Find(std::span<const TokenId> suffix, std::vector<Match>* matches) const {
  matches->clear();
  for (size_t g = 0; g < kGrams.size() && matches->empty(); ++g) {
    const auto gram = static_cast<size_t>(kGrams[g]);
    if (suffix.size() < gram) continue;
    const auto head = heads_[g].find(KeyOf(suffix.last(gram)));
    int32_t end = head == heads_[g].end() ? 0 : head->second;
    for (int32_t seen = 0; end > 0 && seen < kMostMatches; ++seen) {
      const int32_t limit = std::min({kLongestMatch, end, static_cast<int32_t>(suffix.size())});
      int32_t length = 0;
      while (length < limit && tokens_[static_cast<size_t>(end - 1 - length)] ==
                                   suffix[suffix.size() - 1 - static_cast<size_t>(length)])
        ++length;
      // Different grams may have equal keys.
      if (length >= kGrams[g] && end < size() && tokens_[static_cast<size_t>(end)] != kBreak)
        matches->push_back({end, length});
      end = before_[g][static_cast<size_t>(end - 1)];
    }
  }
}

}  // namespace aisp
