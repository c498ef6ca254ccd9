// MatcherGuide: what a constrained request's sequence may draw, by a matcher of its constraint, its
// stop tokens, and the end that it is held to (force_finish). It also names the runs of tokens that
// the constraint forces. One sequence's; engine thread only.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "constrain/constraint.h"
#include "constrain/forced_run.h"
#include "engine/draw_guide.h"
#include "frontend/constraint_compiler.h"

namespace aisp {

class MatcherGuide final : public DrawGuide {
 public:
  struct Rules {
    std::vector<TokenId> stops;  // may be drawn where the text is whole
    size_t most = 0;    // tokens of the answer, of which the last are kept for its ending; 0: none
    std::string scope;  // only sequences of one learn from each other how runs are spelled
  };

  MatcherGuide(std::shared_ptr<Constraint> constraint, size_t vocabulary, Rules rules,
               std::shared_ptr<RunBook> runs);

  std::span<const uint32_t> Allowed() override;
  bool Take(TokenId token) override;
  void Rewind(size_t count) override;
  bool AtEnd() override;
  std::vector<TokenId> Forced(size_t limit) override;

 private:
  static constexpr size_t kLookEvery = 16;

  // Whether an ending has to be looked for at this token.
  bool NearEnd() const {
    return most_ > 0 && taken_.size() >= free_until_[taken_.size() / kLookEvery];
  }
  // The ending, where it is all that is left.
  std::optional<std::vector<TokenId>> OnlyEnding();
  // Tokens that are left beside an ending, and those that one more token may add to it; 0: the
  // ending is all that there is room for, or none is known.
  size_t Room(const std::optional<Matcher::Ending>& ending) const;
  void NoteRoom();
  void KeepToEnding();

  const std::shared_ptr<Constraint> constraint_;
  const std::unique_ptr<Matcher> matcher_;
  TokenMask mask_;
  const std::vector<TokenId> stops_;
  const size_t most_;
  std::vector<TokenId> taken_;
  std::vector<size_t> free_until_;  // by taken_ / kLookEvery: tokens taken
  RunFollower runs_;
};

}  // namespace aisp
