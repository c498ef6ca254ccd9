#include "speculation/suffix_proposer.h"

#include <algorithm>
#include <utility>

namespace aisp {

Status SuffixProposer::Propose(std::span<const DraftContext> contexts,
                               std::span<TokenDraft> drafts) {
  for (size_t i = 0; i < contexts.size(); ++i) ProposeOne(contexts[i], &drafts[i]);
  return {};
}

void SuffixProposer::Collect(const TokenChains& text, std::span<const TokenId> suffix,
                             float weight) {
  text.Find(suffix, &matches_);
  for (const TokenChains::Match& match : matches_) {
    const auto length = static_cast<float>(match.length);
    places_.push_back({&text, match.next, weight * length * length});
    longest_ = std::max(longest_, match.length);
  }
}

void SuffixProposer::ProposeOne(const DraftContext& context, TokenDraft* draft) {
  TokenChains& own = own_[context.sequence];
  own.Append(context.tokens.subspan(static_cast<size_t>(own.size())));
  places_.clear();
  longest_ = 0;
  Collect(own, context.tokens, 1.0f);
  if (const auto shared = shared_.find(std::string(context.scope)); shared != shared_.end()) {
    Collect(shared->second.young, context.tokens, 0.5f);
    Collect(shared->second.old, context.tokens, 0.5f);
  }
  const int32_t limit = std::min(
      context.limit, static_cast<int32_t>(options_.max_factor * static_cast<float>(longest_)));
  float together = 1.0f;
  while (static_cast<int32_t>(draft->tokens.size()) < limit && !places_.empty()) {
    votes_.clear();
    float total = 0;
    for (const Place& p : places_) {
      const TokenId token = p.text->tokens()[static_cast<size_t>(p.next)];
      const auto vote = std::find_if(votes_.begin(), votes_.end(),
                                     [token](const auto& v) { return v.first == token; });
      if (vote == votes_.end()) {
        votes_.emplace_back(token, p.weight);
      } else {
        vote->second += p.weight;
      }
      total += p.weight;
    }
    const auto [best, best_weight] =
        *std::max_element(votes_.begin(), votes_.end(),
                          [](const auto& x, const auto& y) { return x.second < y.second; });
    // One extra vote for no token: a single short match is not certain.
    const float sure = best_weight / (total + 1.0f);
    together *= sure;
    if (together < options_.min_probability) break;
    draft->Add(best, sure);
    std::erase_if(places_, [token = best](Place& p) {
      if (p.text->tokens()[static_cast<size_t>(p.next)] != token) return true;
      ++p.next;
      return p.next >= p.text->size() ||
             p.text->tokens()[static_cast<size_t>(p.next)] == TokenChains::kBreak;
    });
  }
}

SuffixProposer::Shared& SuffixProposer::SharedOf(std::string_view scope) {
  const std::string key(scope);
  if (const auto it = shared_.find(key); it != shared_.end()) {
    by_use_.splice(by_use_.begin(), by_use_, it->second.used);
    return it->second;
  }
  if (static_cast<int32_t>(shared_.size()) >= options_.scopes) {
    shared_.erase(by_use_.back());
    by_use_.pop_back();
  }
  by_use_.push_front(key);
  Shared& shared = shared_[key];
  shared.used = by_use_.begin();
  return shared;
}

void SuffixProposer::Ended(const DraftContext& context) {
  own_.erase(context.sequence);
  const auto output = context.tokens.subspan(static_cast<size_t>(context.prompt_tokens));
  const int32_t half = options_.shared_tokens / 2;
  if (output.size() < 4 || options_.scopes < 1 || static_cast<int32_t>(output.size()) > half)
    return;
  Shared& shared = SharedOf(context.scope);
  if (shared.young.size() + static_cast<int32_t>(output.size()) > half)
    shared.old = std::exchange(shared.young, {});
  // Keeps the prompt's last tokens, which precede the answer's first ones.
  const auto lead = std::min<size_t>(4, static_cast<size_t>(context.prompt_tokens));
  shared.young.Append(context.tokens.subspan(static_cast<size_t>(context.prompt_tokens) - lead));
  shared.young.AppendBreak();
}

int64_t SuffixProposer::shared_tokens() const {
  int64_t tokens = 0;
  for (const auto& [scope, shared] : shared_) tokens += shared.young.size() + shared.old.size();
  return tokens;
}

}  // namespace aisp
