// Automaton: the deterministic automaton of one language, built lazily. It reads UTF-8 bytes or
// whole code points and has no dead states: a step after which nothing can complete gives -1.
//
// A state is an id. At a boundary (no open UTF-8 sequence) it is a term of the language; inside a
// sequence, it represents what the sequence may still become. Belongs to one compiled grammar,
// which serialises its callers; `languages` outlives it.
#pragma once

#include <array>
#include <bitset>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "constrain/language.h"

namespace aisp {

class Automaton {
 public:
  static constexpr int32_t kDead = -1;
  using Row = std::array<int32_t, 256>;

  Automaton(Languages* languages, TermId language);

  // kDead when the language is empty.
  int32_t start() const { return start_; }
  int32_t Step(int32_t state, uint8_t byte) { return RowOf(state)[byte]; }
  // The state's row of transitions, for loops over many tokens.
  const Row& RowOf(int32_t state) {
    State& s = states_[static_cast<size_t>(state)];
    return s.row ? *s.row : (languages_.MayGrow() ? FillRow(state) : kNoWay);
  }
  // The bytes with a transition.
  const std::bitset<256>& BytesOf(int32_t state) {
    RowOf(state);
    return states_[static_cast<size_t>(state)].bytes;
  }
  // `state` and its successors, nearest first, at most `limit`.
  std::vector<int32_t> StatesFrom(int32_t state, size_t limit);
  bool Accepts(int32_t state) const {
    const State& s = states_[static_cast<size_t>(state)];
    return s.need == 0 && terms_[static_cast<size_t>(s.term)].accepts;
  }
  bool AtBoundary(int32_t state) const { return states_[static_cast<size_t>(state)].need == 0; }
  // Reads one code point at a boundary; kDead when there is no transition.
  int32_t StepCodePoint(int32_t state, uint32_t c);
  // Whether some code point in [lo, hi] has a transition from boundary `state` after which
  // CanFinish holds.
  bool AnyLive(int32_t state, uint32_t lo, uint32_t hi, int32_t min_more = 0,
               int32_t max_more = -1);
  // Whether every text is in this state's language.
  bool IsAnyText(int32_t state) const;
  // The shortest text in bytes from `state` to an end with at least `min_more` further code points;
  // nullopt when a bounded search finds none.
  std::optional<std::string> Shortest(int32_t state, int32_t min_more);
  // Reads a text of valid UTF-8; kDead when it is no prefix of the language.
  int32_t Run(std::string_view text);
  bool Matches(std::string_view text);

  // Whether each distance from the start has at most kMaxWidth states, judged by the first
  // kMaxExplored states. Languages such as `.*a.{20}`, which double per code point, would make new
  // states for every text and mask.
  static constexpr size_t kMaxWidth = 4000, kMaxExplored = 30'000;
  static bool IsNarrow(Languages* languages, TermId language);

  // Explores the whole automaton; false when it has more than kMaxAnalysed states.
  static constexpr size_t kMaxAnalysed = 4000;
  static constexpr size_t kMaxAnalysedHostnames = 400;  // of hostnames, which have many more and
                                                        // costlier states
  bool Analyse();
  // Whether the language is infinite; else the number of its texts (saturating) and the code points
  // of the longest.
  bool IsAnalysed() const { return analysable_; }
  bool IsInfinite(int32_t state) const { return InfoOf(state).infinite; }
  uint64_t Count(int32_t state) const { return InfoOf(state).count; }
  // Number of texts from boundary `state` that start with a code point in [lo, hi]; nullopt:
  // infinite.
  std::optional<uint64_t> CountWithin(int32_t state, uint32_t lo, uint32_t hi) const {
    const Info info = InfoWithin(states_[static_cast<size_t>(state)].term, lo, hi);
    return info.infinite ? std::nullopt : std::optional(info.count);
  }
  // All texts if there are at most `limit`. Call after Analyse, for finite languages.
  std::vector<std::string> Texts(size_t limit);
  // Lets CanFinish answer for maxima up to `max_length`; false when the table would be too large.
  bool PrepareLengths(int32_t max_length);
  // After PrepareLengths: the number of code points within which any prefix can be completed. If
  // `wanted` (more are required), every number from it up to the longest prepared is possible.
  // nullopt: none.
  std::optional<int32_t> Slack(bool wanted) const { return wanted ? slack_ : nearest_; }
  // After Analyse: every prefix has infinitely many completions.
  bool NeverEnds() const { return never_ends_; }
  // After PrepareLengths, for small languages: bounds that all texts keep.
  bool AllAtLeast(int32_t min) const;
  bool AllAtMost(int32_t max) const;
  // Whether some text continues from `state` with min_more to max_more (-1: no limit) further code
  // points. An open UTF-8 sequence was counted already.
  bool CanFinish(int32_t state, int32_t min_more, int32_t max_more);

 private:
  struct Term {
    TermId id = 0;
    bool accepts = false;
    int8_t live = -1;           // -1: unknown
    std::vector<int32_t> next;  // by class: index into terms_, -1 dead, -2 not computed
  };
  struct State {
    int32_t term = 0;        // if resolved: the term after the open sequence
    uint8_t need = 0;        // continuation bytes to come
    uint8_t lo = 0, hi = 0;  // bounds of the next continuation byte
    bool resolved = true;
    uint32_t prefix = 0;  // bits of the open sequence so far (if not resolved)
    std::unique_ptr<Row> row;
    std::bitset<256> bytes;  // computed with the row
  };
  struct Info {
    bool infinite = false;
    uint64_t count = 0;
    int32_t longest = 0;
  };

  static const Row kNoWay;

  void Partition(TermId language);
  int32_t ClassOf(uint32_t c) const;
  size_t IntervalOf(uint32_t c) const;
  int32_t TermIndex(TermId id);
  // Successor by class; -1 when dead.
  int32_t Next(int32_t term, int32_t cls);
  bool Live(int32_t term);
  bool AnyLiveTerm(int32_t term, uint32_t lo, uint32_t hi);
  int32_t Boundary(int32_t term);
  // The state inside a sequence whose code points are in [from, to].
  int32_t Inside(int32_t term, uint8_t need, uint32_t prefix, uint8_t lo, uint8_t hi);
  const Row& FillRow(int32_t state);
  void FillBoundary(int32_t term, Row* row);
  void FillInside(int32_t state, Row* row);
  Info InfoOf(int32_t state) const;
  Info InfoWithin(int32_t term, uint32_t lo, uint32_t hi) const;
  // The code points that an open sequence may still become.
  static std::pair<uint32_t, uint32_t> RangeOf(uint32_t prefix, uint8_t need, uint8_t lo,
                                               uint8_t hi);
  bool Explore();
  std::vector<std::vector<size_t>> DistinctNext() const;
  void FindSlack();

  Languages& languages_;
  int32_t start_ = kDead;
  std::array<uint16_t, 128> ascii_ = {};
  std::vector<uint32_t> interval_begin_;  // sorted; interval i is [begin_[i], begin_[i+1])
  std::vector<int32_t> interval_class_;
  std::vector<uint64_t> class_size_;
  std::vector<uint32_t> class_sample_;
  std::vector<Term> terms_;
  std::unordered_map<TermId, int32_t> term_ids_;
  std::vector<State> states_;
  std::unordered_map<uint64_t, int32_t> state_ids_;
  std::vector<Info> infos_;                                            // by term, after Analyse
  std::unordered_map<uint64_t, std::optional<std::string>> shortest_;  // by state and min_more
  bool analysed_ = false, analysable_ = false;
  bool never_ends_ = false;
  std::optional<int32_t> slack_, nearest_;
  std::vector<std::vector<bool>>
      by_length_;  // [length][term]: a text with exactly so many more code points exists
};

}  // namespace aisp
