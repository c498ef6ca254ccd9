// Transforms text before tokenization: Unicode normalisation, replacements, prefixes. Immutable
// once built: any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "text/regex.h"

namespace aisp {

// A replacement may grow the text at most by this factor (plus a little).
inline constexpr size_t kMaxNormalizedGrowth = 16;

class Normalizer {
 public:
  struct Step {
    enum class Kind {
      kNfc,
      kNfd,
      kLowercase,
      kPrepend,         // `content` before any text that is not empty
      kReplace,         // every `from` by `content`
      kReplaceRegex,    // every match of `regex` by `content`
      kStrip,           // white space at the ends selected by `left` and `right`
      kCollapseSpaces,  // runs of U+0020 become one, none at the ends (SentencePiece's
                        // remove_extra_whitespaces)
    };
    Kind kind = Kind::kNfc;
    std::string from;
    std::string content;
    std::shared_ptr<const Regex> regex;
    bool left = false, right = false;
  };

  Normalizer() = default;
  explicit Normalizer(std::vector<Step> steps) : steps_(std::move(steps)) {}

  bool IsIdentity() const { return steps_.empty(); }
  Result<std::string> Apply(std::string_view valid_utf8) const;

 private:
  std::vector<Step> steps_;
};

// Replaces every `from` in `text` by `to`; `text` unchanged when `from` is empty.
std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to);

}  // namespace aisp
