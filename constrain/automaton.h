// Automaton: the deterministic automaton of one language, built as far as it is walked. It reads
// UTF-8 bytes or whole code points and knows no dead states: a step to where nothing can be
// completed is -1.
//
// A state is an id. At a boundary (no UTF-8 sequence is open) it stands for a term of the language;
// inside a sequence, for what the sequence may still become. Belongs to one compiled grammar, which
// serialises its callers; `languages` outlives it.
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
  // The state's whole row, for loops over many tokens.
  const Row& RowOf(int32_t state) {
    State& s = states_[static_cast<size_t>(state)];
    return s.row ? *s.row : (languages_.MayGrow() ? FillRow(state) : kNoWay);
  }
  // The bytes that lead on.
  const std::bitset<256>& BytesOf(int32_t state) {
    RowOf(state);
    return states_[static_cast<size_t>(state)].bytes;
  }
  // `state` and those that it leads to, the nearest first, at most `limit`.
  std::vector<int32_t> StatesFrom(int32_t state, size_t limit);
  bool Accepts(int32_t state) const {
    const State& s = states_[static_cast<size_t>(state)];
    return s.need == 0 && terms_[static_cast<size_t>(s.term)].accepts;
  }
  bool AtBoundary(int32_t state) const { return states_[static_cast<size_t>(state)].need == 0; }
  // One code point at a boundary; kDead when it leads nowhere.
  int32_t StepCodePoint(int32_t state, uint32_t c);
  // Whether some code point of [lo, hi] leads on from the boundary `state`, and from there, as
  // CanFinish says, to an end.
  bool AnyLive(int32_t state, uint32_t lo, uint32_t hi, int32_t min_more = 0,
               int32_t max_more = -1);
  // Every text is in the language of this state.
  bool IsAnyText(int32_t state) const;
  // The shortest text, in bytes, that leads from `state` to an end and has `min_more` further code
  // points at least; absent when a bounded search does not find it.
  std::optional<std::string> Shortest(int32_t state, int32_t min_more);
  // Reads a whole text of valid UTF-8; kDead when it leaves the language's prefixes.
  int32_t Run(std::string_view text);
  bool Matches(std::string_view text);

  // Whether at most kMaxWidth states are equally far from the beginning, as far as kMaxExplored of
  // them tell: where they double with each code point, as those of `.*a.{20}` do, every text and
  // every mask makes new ones.
  static constexpr size_t kMaxWidth = 4000, kMaxExplored = 30'000;
  static bool IsNarrow(Languages* languages, TermId language);

  // What follows explores the whole automaton once; false when it has more than kMaxAnalysed
  // states.
  static constexpr size_t kMaxAnalysed = 4000;
  static constexpr size_t kMaxAnalysedHostnames = 400;  // which have far more, and dear ones
  bool Analyse();
  // Whether the language has no end of texts; else how many there are (saturating) and the
  // longest's code points.
  bool IsAnalysed() const { return analysable_; }
  bool IsInfinite(int32_t state) const { return InfoOf(state).infinite; }
  uint64_t Count(int32_t state) const { return InfoOf(state).count; }
  // How many texts go on from the boundary `state` with a code point of [lo, hi]; absent: no end.
  std::optional<uint64_t> CountWithin(int32_t state, uint32_t lo, uint32_t hi) const {
    const Info info = InfoWithin(states_[static_cast<size_t>(state)].term, lo, hi);
    return info.infinite ? std::nullopt : std::optional(info.count);
  }
  // All texts, when there are at most `limit` of them (after Analyse, finite).
  std::vector<std::string> Texts(size_t limit);
  // Makes CanFinish answer for maxima up to `max_length`; false when that table would be too great.
  bool PrepareLengths(int32_t max_length);
  // After PrepareLengths: wherever a text of the language stands, it can be completed with so many
  // further code points or fewer; or, when some are still `wanted`, with every number of them from
  // this one up to the longest that was prepared. Absent when there is no such number.
  std::optional<int32_t> Slack(bool wanted) const { return wanted ? slack_ : nearest_; }
  // After Analyse: every beginning has completions without end.
  bool NeverEnds() const { return never_ends_; }
  // After PrepareLengths, of a language of few states: no text has less, or more, code points.
  bool AllAtLeast(int32_t min) const;
  bool AllAtMost(int32_t max) const;
  // From `state`, some text of the language has between min_more and max_more (-1: no limit)
  // further code points; an open UTF-8 sequence is one that was counted already.
  bool CanFinish(int32_t state, int32_t min_more, int32_t max_more);

 private:
  struct Term {
    TermId id = 0;
    bool accepts = false;
    int8_t live = -1;           // -1: not known
    std::vector<int32_t> next;  // by class: index into terms_, -1 dead, -2 not computed
  };
  struct State {
    int32_t term = 0;        // resolved: what the open sequence leads to
    uint8_t need = 0;        // continuation bytes still to come
    uint8_t lo = 0, hi = 0;  // bounds of the next one
    bool resolved = true;
    uint32_t prefix = 0;  // bits read of the open sequence (not resolved)
    std::unique_ptr<Row> row;
    std::bitset<256> bytes;  // with the row
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
  // By class; -1 when dead.
  int32_t Next(int32_t term, int32_t cls);
  bool Live(int32_t term);
  bool AnyLiveTerm(int32_t term, uint32_t lo, uint32_t hi);
  int32_t Boundary(int32_t term);
  // The state inside a sequence whose code points are [from, to].
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
      by_length_;  // [length][term]: a text of exactly so many more code points
};

}  // namespace aisp
