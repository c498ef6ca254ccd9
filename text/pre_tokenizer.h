// Splits text into the words that the model encodes one by one. Steps and names are those of
// Hugging Face's tokenizers (pre_tokenizers/*, SplitDelimiterBehavior). Immutable once built: any
// thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "text/regex.h"

namespace aisp {

class PreTokenizer {
 public:
  // What to do with the matches of a split.
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

  struct Step {
    enum class Kind {
      kRegex,        // matches of `regex`
      kLiteral,      // occurrences of `literal`
      kDigits,       // characters of category N
      kPunctuation,  // ASCII punctuation and category P
      kWhitespace,   // white space
      kPrefixSpace,  // a leading space for every word that has none
      kByteLevel,    // turns bytes into their alphabet (text/byte_level.h)
      kMetaspace,    // spaces become `literal`, optionally prepended; with `split`, splits before
                     // each
    };
    enum class Prefix { kNever, kFirst, kAlways };
    Kind kind = Kind::kRegex;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
    std::shared_ptr<const Regex> regex;
    std::string literal;
    Prefix prefix = Prefix::kNever;
    bool split = true;
  };

  PreTokenizer() = default;
  explicit PreTokenizer(std::vector<Step> steps);

  // True when words are raw bytes, with which pieces are then compared.
  bool byte_level() const { return byte_level_; }

  // The words of one run. They point into the text or into `storage`.
  struct Words {
    std::vector<std::string_view> words;
    std::vector<std::unique_ptr<std::string>> storage;
  };
  // Cuts `text` (valid UTF-8) into words, none empty. `at_start`: it is the beginning of the whole
  // input.
  Result<Words> Run(std::string_view text, bool at_start) const;

 private:
  std::vector<Step> steps_;
  bool byte_level_ = false;
  bool materialize_ = false;  // steps follow ByteLevel and see its alphabet
};

}  // namespace aisp
