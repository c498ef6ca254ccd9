// Languages: regular languages over Unicode code points as hash-consed terms, closed under union,
// intersection and complement, with Brzozowski's derivative as the only transition (Brzozowski
// 1964; Owens, Reppy, Turon 2009). Patterns, formats, complements and intersections are all terms,
// so strings need no product of automata.
//
// Equal terms have equal ids; smart constructors keep them small, which bounds the number of
// derivatives. Owned and called by one thread at a time. The number of terms is bounded: beyond it,
// or after a deadline, every constructor returns kNothing and Exhausted() is true.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "constrain/char_set.h"
#include "constrain/deadline.h"
#include "constrain/hostname.h"

namespace aisp {

using TermId = int32_t;

class Languages {
 public:
  enum class Op : uint8_t {
    kNothing,
    kEmptyText,
    kSet,
    kConcat,
    kUnion,
    kIntersect,
    kNot,
    kRepeat,
    kHostname  // the rest of a name of the format `hostname`
  };
  static constexpr TermId kNothing = 0;    // the empty language
  static constexpr TermId kEmptyText = 1;  // the text of length 0
  static constexpr TermId kAnyText = 2;    // every text
  static constexpr int32_t kUnbounded = -1;

  explicit Languages(size_t max_terms = 400'000);

  TermId Set(const CharSet& set);
  TermId Concat(TermId a, TermId b);
  TermId Union(const std::vector<TermId>& parts);
  TermId Intersect(const std::vector<TermId>& parts);
  TermId Not(TermId a);
  TermId Repeat(TermId a, int32_t min, int32_t max);  // max kUnbounded
  // Exactly this text (valid UTF-8), or one of these (a trie, so that long lists stay cheap).
  TermId Literal(std::string_view text);
  TermId Literals(std::vector<std::u32string> texts);
  // All texts of `t` if it is made of a few literals only.
  std::optional<std::vector<std::string>> FewTexts(TermId t, size_t limit) const;
  // The rest of a name of the format `hostname`.
  TermId Hostname(const HostnamePlace& at);
  // Every text of `min` to `max` code points.
  TermId Length(int32_t min, int32_t max);

  bool AcceptsEmpty(TermId t) const { return terms_[static_cast<size_t>(t)].nullable; }
  // Built without intersection and complement: every such term except kNothing has a text.
  bool IsPlain(TermId t) const { return terms_[static_cast<size_t>(t)].plain; }
  // What may follow after `c`. Takes time linear in the subterms of `t`.
  TermId Derive(TermId t, uint32_t c);
  // All sets in `t`: code points in the same ones behave alike. True when `t` contains the rest of
  // a hostname.
  bool CollectSets(TermId t, std::vector<CharSet>* out) const;
  bool HoldsHostname(TermId t) const;

  bool Exhausted() const { return exhausted_; }
  // Limits the time for making terms.
  void SetDeadline(const Deadline& deadline) { deadline_ = deadline; }
  bool TimedOut() const { return timed_out_; }
  // Number of derivations so far: a machine-independent measure of time.
  uint64_t work() const { return work_; }
  // Limit of work beyond which automata make no new states. Here four parts of a union or
  // intersection, which take about as long, also count as one term.
  static constexpr uint64_t kAnyWork = UINT64_MAX;
  void BoundGrowth(uint64_t more) {
    most_work_ = more > kAnyWork - Spent() ? kAnyWork : Spent() + more;
  }
  bool MayGrow() const { return Spent() < most_work_; }
  // Notes that a bounded search for a text failed: what was not visited counts as dead, so "no text
  // matches" may be wrong.
  void NoteCutSearch() { cut_search_ = true; }
  bool HasCutSearch() const { return cut_search_; }
  size_t size() const { return terms_.size(); }

 private:
  // An upper bound of the code points in a term's texts.
  struct Alphabet {
    uint64_t low = 0, high = 0;  // below 64, and up to 127
    bool beyond = false;         // any other code point
  };
  struct Term {
    Op op = Op::kNothing;
    bool nullable = false;
    bool plain = true;
    int32_t a = 0, b = 0, c = 0;  // children; kSet, kHostname: index; kRepeat: child, min, max
    std::vector<TermId> parts;    // kUnion, kIntersect: sorted
    Alphabet alphabet = {};
  };

  TermId Intern(Term term);
  Alphabet AlphabetOf(const Term& term) const;
  Alphabet AlphabetOf(const CharSet& set) const;
  static CharSet HostnameLetters();
  // Whether `star`, a set repeated without bound, contains all texts over the code points of `t`.
  bool HoldsAll(TermId star, TermId t) const;
  bool IsStar(TermId t) const;
  // Removes parts contained in another (union), or containing another (intersection).
  void DropHeld(bool is_union, std::vector<TermId>* parts) const;
  bool BeginsWithAnyText(TermId t) const;
  // A repetition next to any text can be limited to its minimum count. Otherwise searching for
  // `[a-z]{1,2048}` anywhere would need an automaton with millions of transitions.
  TermId LeastTimes(TermId repeat);
  bool AddTexts(TermId t, size_t limit, int depth, std::vector<std::u32string>* out) const;
  void Grow();
  // The union or intersection of `parts`, cached or new.
  TermId Make(Op op, const std::vector<TermId>& parts);
  TermId MakeAnew(Op op, const std::vector<TermId>& parts);
  struct Joined {
    Op op = Op::kNothing;
    std::vector<TermId> parts;
    TermId is = 0;
  };
  // Cache entry for the union or intersection of `parts`.
  Joined& JoinedOf(Op op, const std::vector<TermId>& parts);
  // Merges parts that repeat the same term, followed by the same, if their counts adjoin; otherwise
  // `[^/]+.{3,1000}` has states of a thousand parts. True if any were merged.
  bool MergeRepeats(std::vector<TermId>* parts);
  // Merges parts of a union that begin with the same term. True if any were merged.
  bool MergeHeads(std::vector<TermId>* parts);
  TermId TrieOf(const std::vector<std::u32string>& texts, size_t begin, size_t end, size_t depth);
  struct Derivative {
    TermId of = -1;
    uint32_t by = 0;
    TermId is = 0;
  };
  // Cache entry for the derivative of `t` by `c`: states of one automaton share most parts.
  Derivative& KeptOf(TermId t, uint32_t c);
  // Derive for subterms, with memoisation.
  TermId DeriveBelow(TermId t, uint32_t c);
  TermId DeriveTerm(TermId t, uint32_t c);
  TermId DeriveParts(TermId t, uint32_t c);
  bool Late();
  uint64_t Spent() const { return work_ + joined_parts_ / 4; }

  size_t max_terms_;
  bool exhausted_ = false;
  bool timed_out_ = false;
  bool cut_search_ = false;
  Deadline deadline_;
  uint32_t asked_ = 0;  // calls of Late
  uint64_t work_ = 0, most_work_ = kAnyWork;
  uint64_t joined_parts_ = 0;
  // Memo of the current derivation: by term, with the derivation's number.
  std::vector<TermId> derived_;
  std::vector<uint32_t> derivation_of_;
  uint32_t derivation_ = 0;
  int32_t depth_ = 0;
  std::vector<Derivative> kept_;  // size is a power of two
  std::vector<Joined> joined_;    // size is a power of two
  std::vector<Term> terms_;
  std::vector<CharSet> sets_;
  std::map<CharSet, int32_t> set_ids_;
  std::vector<HostnamePlace> hostnames_;
  std::map<std::string, TermId> hostname_ids_;
  std::vector<TermId> table_;     // open addressing over terms_, -1: free; a power of two
  std::vector<uint64_t> hashes_;  // of terms_
};

}  // namespace aisp
