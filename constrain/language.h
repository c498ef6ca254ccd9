// Languages: regular languages over Unicode code points as hash-consed terms, closed under union,
// intersection and complement, with Brzozowski's derivative as the only way forward (Brzozowski
// 1964; Owens, Reppy, Turon 2009). A pattern, a format, "not this pattern" and "both of them" are
// terms alike, so strings need no product of automata.
//
// Equal terms have equal ids; smart constructors keep them small, which is what bounds the number
// of derivatives. Owned and called by one thread at a time. The number of terms is bounded: beyond
// it every constructor gives kNothing and Exhausted() says so, and so it is beyond a deadline.
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
    kHostname  // what may follow in a name of the format `hostname`
  };
  static constexpr TermId kNothing = 0;    // no text at all
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
  // Exactly this text (valid UTF-8), or exactly one of these (a trie, so that long lists stay
  // cheap).
  TermId Literal(std::string_view text);
  TermId Literals(std::vector<std::u32string> texts);
  // All texts of `t`, where it is built of few literals alone.
  std::optional<std::vector<std::string>> FewTexts(TermId t, size_t limit) const;
  // What is left of a name of the format `hostname`.
  TermId Hostname(const HostnamePlace& at);
  // Every text of `min` to `max` code points.
  TermId Length(int32_t min, int32_t max);

  bool AcceptsEmpty(TermId t) const { return terms_[static_cast<size_t>(t)].nullable; }
  // Built without intersection and complement: every such term but kNothing holds some text.
  bool IsPlain(TermId t) const { return terms_[static_cast<size_t>(t)].plain; }
  // What may follow once `c` was read. Takes time in proportion to the terms below `t`.
  TermId Derive(TermId t, uint32_t c);
  // All sets that stand in `t`: code points in the same ones behave alike. True when what is left
  // of a hostname stands in it.
  bool CollectSets(TermId t, std::vector<CharSet>* out) const;
  bool HoldsHostname(TermId t) const;

  bool Exhausted() const { return exhausted_; }
  // From now on terms are made until then.
  void SetDeadline(const Deadline& deadline) { deadline_ = deadline; }
  bool TimedOut() const { return timed_out_; }
  // Terms that were derived so far: a measure of time that is the same on every machine.
  uint64_t work() const { return work_; }
  // Automata shall make no states once so much more work was done; here four parts that were put
  // together in unions and intersections, which take about the time, count as a term as well.
  static constexpr uint64_t kAnyWork = UINT64_MAX;
  void BoundGrowth(uint64_t more) {
    most_work_ = more > kAnyWork - Spent() ? kAnyWork : Spent() + more;
  }
  bool MayGrow() const { return Spent() < most_work_; }
  // An automaton looked for an end of some text among as many states as it may, and found none:
  // what it left counts as dead, so that no text matches may be untrue.
  void NoteCutSearch() { cut_search_ = true; }
  bool HasCutSearch() const { return cut_search_; }
  size_t size() const { return terms_.size(); }

 private:
  // Code points that texts of a term may have: at least those that they have.
  struct Alphabet {
    uint64_t low = 0, high = 0;  // below 64, and up to 127
    bool beyond = false;         // any other
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
  // `star` is a set repeated without end, which holds every text over the code points of `t`.
  bool HoldsAll(TermId star, TermId t) const;
  bool IsStar(TermId t) const;
  // Takes parts away that another holds (union), or that hold another (intersection).
  void DropHeld(bool is_union, std::vector<TermId>* parts) const;
  bool BeginsWithAnyText(TermId t) const;
  // A repetition as it stands beside any text, which takes what comes more often than it must:
  // without this, `[a-z]{1,2048}` found anywhere is an automaton of millions of steps.
  TermId LeastTimes(TermId repeat);
  bool AddTexts(TermId t, size_t limit, int depth, std::vector<std::u32string>* out) const;
  void Grow();
  // The union or intersection of `parts`, kept or made anew.
  TermId Make(Op op, const std::vector<TermId>& parts);
  TermId MakeAnew(Op op, const std::vector<TermId>& parts);
  struct Joined {
    Op op = Op::kNothing;
    std::vector<TermId> parts;
    TermId is = 0;
  };
  // Where their union or intersection may be kept from an earlier call.
  Joined& JoinedOf(Op op, const std::vector<TermId>& parts);
  // Parts of a union that are one thing repeated, and then the same, become one where their numbers
  // of times adjoin: else `[^/]+.{3,1000}` has states of a thousand parts. True: something did.
  bool MergeRepeats(std::vector<TermId>* parts);
  // Parts of a union that begin with the same term become one. True: some did.
  bool MergeHeads(std::vector<TermId>* parts);
  TermId TrieOf(const std::vector<std::u32string>& texts, size_t begin, size_t end, size_t depth);
  struct Derivative {
    TermId of = -1;
    uint32_t by = 0;
    TermId is = 0;
  };
  // Where the derivative of `t` by `c` may be kept from an earlier one: states of one automaton
  // share most of their parts.
  Derivative& KeptOf(TermId t, uint32_t c);
  // Derive, below what was asked for: terms that were met before are not derived again.
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
  // Of the derivation under way: by term, and of which derivation an entry is.
  std::vector<TermId> derived_;
  std::vector<uint32_t> derivation_of_;
  uint32_t derivation_ = 0;
  int32_t depth_ = 0;
  std::vector<Derivative> kept_;  // a power of two
  std::vector<Joined> joined_;    // the same
  std::vector<Term> terms_;
  std::vector<CharSet> sets_;
  std::map<CharSet, int32_t> set_ids_;
  std::vector<HostnamePlace> hostnames_;
  std::map<std::string, TermId> hostname_ids_;
  std::vector<TermId> table_;     // open addressing over terms_, -1: free; a power of two
  std::vector<uint64_t> hashes_;  // of terms_
};

}  // namespace aisp
