// NgramProposer: prompt lookup. Proposes what followed the most recent earlier occurrence of the
// sequence's last n tokens, for the largest n in [min, max] that occurs. Engine thread only.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "speculation/proposer.h"

namespace aisp {

struct NgramOptions {
  int32_t min = 5;  // tokens, at least 1
  int32_t max = 5;  // tokens, from min to kLongest
  static constexpr int32_t kLongest = 32;
};

class NgramProposer final : public Proposer {
 public:
  explicit NgramProposer(const NgramOptions& options) : options_(options) {}

  std::string_view name() const override { return "ngram"; }
  Status Propose(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) override;
  void Ended(const DraftContext& context) override { indexes_.erase(context.sequence); }

  size_t sequences() const { return indexes_.size(); }

 private:
  struct Index {
    int32_t size = 0;  // indexed tokens; an n-gram is entered once a token follows it
    std::vector<std::unordered_map<uint64_t, int32_t>> next;  // per n: position after the n-gram
  };

  void Learn(std::span<const TokenId> tokens, Index* index) const;

  const NgramOptions options_;
  std::unordered_map<SequenceId, Index> indexes_;
};

}  // namespace aisp
