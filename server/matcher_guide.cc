#include "server/matcher_guide.h"

#include <algorithm>
#include <utility>

namespace aisp {

MatcherGuide::MatcherGuide(std::shared_ptr<Constraint> constraint, size_t vocabulary, Rules rules,
                           std::shared_ptr<RunBook> runs)
    : constraint_(std::move(constraint)),
      matcher_(constraint_->NewMatcher()),
      mask_(vocabulary),
      stops_(std::move(rules.stops)),
      most_(rules.most),
      runs_(std::move(runs), std::move(rules.scope)) {
  NoteRoom();
}

std::span<const uint32_t> MatcherGuide::Allowed() {
  matcher_->Mask(&mask_);
  for (const TokenId stop : stops_) {
    if (stop < 0 || static_cast<size_t>(stop) >= mask_.size()) continue;
    if (matcher_->IsWhole()) {
      mask_.Set(static_cast<size_t>(stop));
    } else {
      mask_.Clear(static_cast<size_t>(stop));
    }
  }
  KeepToEnding();
  return mask_.words();
}

bool MatcherGuide::Take(TokenId token) {
  if (!matcher_->Advance(token)) return false;
  taken_.push_back(token);
  NoteRoom();
  return true;
}

void MatcherGuide::Rewind(size_t count) {
  matcher_->Rewind(count);
  taken_.resize(taken_.size() - std::min(taken_.size(), count));
}

bool MatcherGuide::AtEnd() {
  if (!matcher_->IsWhole()) return false;
  matcher_->Mask(&mask_);
  return mask_.Count() == 0;
}

std::vector<TokenId> MatcherGuide::Forced(size_t limit) {
  if (auto ending = OnlyEnding()) {
    if (ending->size() > limit) ending->resize(limit);
    return std::move(*ending);
  }
  return runs_.Next(ForcedText(matcher_.get()), taken_, limit);
}

size_t MatcherGuide::Room(const std::optional<Matcher::Ending>& ending) const {
  const size_t left = most_ - std::min(most_, taken_.size());
  // Plus one for the stop token.
  const size_t need = ending ? ending->tokens.size() + 1 + ending->growth : left;
  return left > need ? left - need : 0;
}

// Every kLookEvery tokens, computes how long no ending must be searched for. It depends only on the
// tokens so far, so draft tokens and a takeover do not change the answer.
void MatcherGuide::NoteRoom() {
  const size_t taken = taken_.size();
  if (most_ == 0 || taken % kLookEvery != 0) return;
  const auto ending = matcher_->FindEnding(kLongestEnding);
  free_until_.resize(std::max(free_until_.size(), taken / kLookEvery + 1));
  free_until_[taken / kLookEvery] = taken + (ending ? Room(ending) / (ending->growth + 1) : 0);
}

std::optional<std::vector<TokenId>> MatcherGuide::OnlyEnding() {
  if (!NearEnd()) return std::nullopt;
  auto ending = matcher_->FindEnding(kLongestEnding);
  if (!ending || Room(ending) > 0) return std::nullopt;
  return std::move(ending->tokens);
}

// When the room is nearly used up, allows only the tokens that lead to the ending.
void MatcherGuide::KeepToEnding() {
  const auto ending = OnlyEnding();
  if (!ending) return;
  // Free text may use all of the room, but must not open a call.
  if (ending->empty() && taken_.size() + 1 < most_ && matcher_->KeepWhole(&mask_)) return;
  std::vector<TokenId> only = ending->empty() ? stops_ : std::vector<TokenId>{ending->front()};
  std::erase_if(only, [this](TokenId id) { return id < 0 || !mask_.Has(static_cast<size_t>(id)); });
  if (only.empty()) return;
  std::fill(mask_.words().begin(), mask_.words().end(), 0u);
  for (const TokenId id : only) mask_.Set(static_cast<size_t>(id));
}

}  // namespace aisp
