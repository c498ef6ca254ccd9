// MatcherGuide: the tokens that a constrained sequence may draw, from a matcher of its constraint,
// its stop tokens and its required ending (force_finish). Also returns the token runs that the
// constraint forces. One per sequence; engine thread only.
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
    std::vector<TokenId> stops;  // may be drawn where the text is complete
    size_t most = 0;             // length of the answer, which must include the ending; 0: no limit
    std::string scope;  // only sequences of equal scope share how forced runs are tokenized
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

  // Whether the ending must be searched for at this token.
  bool NearEnd() const {
    return most_ > 0 && taken_.size() >= free_until_[taken_.size() / kLookEvery];
  }
  // The ending, if only it still fits.
  std::optional<std::vector<TokenId>> OnlyEnding();
  // Tokens left besides the ending and what one more token may add to it; 0: only the ending fits,
  // or none is known.
  size_t Room(const std::optional<Matcher::Ending>& ending) const;
  void NoteRoom();
  void KeepToEnding();

  const std::shared_ptr<Constraint> constraint_;
  const std::unique_ptr<Matcher> matcher_;
  TokenMask mask_;
  const std::vector<TokenId> stops_;
  const size_t most_;
  std::vector<TokenId> taken_;
  std::vector<size_t> free_until_;  // by taken_ / kLookEvery: no search needed below this number of
                                    // tokens
  RunFollower runs_;
};

}  // namespace aisp
