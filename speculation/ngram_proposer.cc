#include "speculation/ngram_proposer.h"

#include <algorithm>

namespace aisp {
namespace {

uint64_t KeyOf(std::span<const TokenId> gram) {
  uint64_t key = gram.size();
  for (const TokenId t : gram) {
    key = (key ^ static_cast<uint32_t>(t)) * 0x9e3779b97f4a7c15ull;
    key ^= key >> 29;
  }
  return key;
}

}  // namespace

void NgramProposer::Learn(std::span<const TokenId> tokens, Index* index) const {
  index->next.resize(static_cast<size_t>(options_.max) - static_cast<size_t>(options_.min) + 1);
  // The n-gram before position i is entered once a token at i exists.
  const auto size = static_cast<int32_t>(tokens.size());
  for (int32_t i = index->size; i < size; ++i) {
    for (int32_t n = options_.min; n <= std::min(options_.max, i); ++n) {
      const auto gram = tokens.subspan(static_cast<size_t>(i - n), static_cast<size_t>(n));
      index->next[static_cast<size_t>(n - options_.min)][KeyOf(gram)] = i;
    }
  }
  index->size = size;
}

Status NgramProposer::Propose(std::span<const DraftContext> contexts,
                              std::span<TokenDraft> drafts) {
  for (size_t c = 0; c < contexts.size(); ++c) {
    const std::span<const TokenId> tokens = contexts[c].tokens;
    Index& index = indexes_[contexts[c].sequence];
    Learn(tokens, &index);
    const auto size = static_cast<int32_t>(tokens.size());
    for (int32_t n = std::min(options_.max, size); n >= options_.min; --n) {
      const auto gram = tokens.last(static_cast<size_t>(n));
      const auto& next = index.next[static_cast<size_t>(n - options_.min)];
      const auto at = next.find(KeyOf(gram));
      if (at == next.end()) continue;
      const auto earlier = tokens.subspan(static_cast<size_t>(at->second - n), gram.size());
      if (!std::equal(gram.begin(), gram.end(), earlier.begin())) continue;  // a hash collision
      const auto end = std::min(size, at->second + contexts[c].limit);
      const float sure = static_cast<float>(n) / static_cast<float>(n + 1);
      for (int32_t i = at->second; i < end; ++i)
        drafts[c].Add(tokens[static_cast<size_t>(i)], sure);
      break;
    }
  }
  return {};
}

}  // namespace aisp
