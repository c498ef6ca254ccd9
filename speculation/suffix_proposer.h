// SuffixProposer: proposes what followed the last tokens at earlier occurrences, in the sequence
// itself and in finished ones of its scope. Occurrences vote for the next token, longer matches
// with more weight; those that agree keep voting.
//
// Per scope the newest `shared_tokens` of finished outputs are kept, for the `scopes` most recently
// used scopes. Engine thread only.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "speculation/proposer.h"
#include "speculation/token_chains.h"

namespace aisp {

struct SuffixOptions {
  int32_t shared_tokens = 1 << 17;  // of finished outputs, per scope; 0: none
  int32_t scopes = 64;
  float min_probability = 0.1f;  // a draft ends when its joint probability falls below this
  float max_factor = 4.0f;       // maximum draft length relative to the longest match
};

class SuffixProposer final : public Proposer {
 public:
  explicit SuffixProposer(const SuffixOptions& options) : options_(options) {}

  std::string_view name() const override { return "suffix"; }
  Status Propose(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) override;
  void Ended(const DraftContext& context) override;

  size_t sequences() const { return own_.size(); }
  size_t scopes() const { return shared_.size(); }
  // Sum over all scopes.
  int64_t shared_tokens() const;

 private:
  // Two generations: when the younger one reaches half of the limit, the older one is dropped.
  struct Shared {
    TokenChains young, old;
    std::list<std::string>::iterator used;
  };
  struct Place {
    const TokenChains* text;
    int32_t next;
    float weight;
  };

  void ProposeOne(const DraftContext& context, TokenDraft* draft);
  void Collect(const TokenChains& text, std::span<const TokenId> suffix, float weight);
  Shared& SharedOf(std::string_view scope);

  const SuffixOptions options_;
  std::unordered_map<SequenceId, TokenChains> own_;
  std::unordered_map<std::string, Shared> shared_;
  std::list<std::string> by_use_;  // most recently used first
  std::vector<TokenChains::Match> matches_;
  std::vector<Place> places_;
  std::vector<std::pair<TokenId, float>> votes_;
  int32_t longest_ = 0;
};

}  // namespace aisp
