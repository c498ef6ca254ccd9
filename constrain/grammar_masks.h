// GrammarMasks: which tokens may follow a set of Earley's algorithm, put together of parts that are
// kept.
//
// A token may follow a set when it may follow one of its items alone, and there it goes three ways:
// it stays in the item's open terminal, which the state of that terminal's automaton decides; it
// goes on in what follows in the same production; or it goes beyond the production's end, to what
// awaited it. So a part knows which tokens end inside it, and the *rest*: the places in the token
// trie where what is left of the others begins. Parts are kept by terminal and state, and by symbol
// and rest; they hold wherever in a text and in whatever request the symbol is met. A new set,
// mostly a stack of other depth, costs looking them up.
//
// Belongs to one grammar, which serialises its callers.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "constrain/earley.h"
#include "constrain/stamped_set.h"
#include "constrain/token_trie.h"

namespace aisp {

class GrammarMasks {
 public:
  // Places of the trie and items that one mask may look at, some tens of milliseconds. Beyond it
  // tokens are left out that cross borders of terminals; those inside a terminal are always found.
  static constexpr size_t kMaxWork = 4'000'000;

  GrammarMasks(Grammar* grammar, std::shared_ptr<const TokenTrie> trie);

  // Makes parts that a text is likely to ask for, until `late` says so: what whoever compiles a
  // grammar pays need not be paid between two steps of an engine.
  void Prepare(const std::function<bool()>& late);
  // Makes `mask` the tokens that may follow `set`.
  void Compute(const EarleySet& set, TokenMask* mask);
  size_t bytes() const { return bytes_; }

 private:
  using RestId = int32_t;
  // kWhole: nothing of the tokens was used.
  static constexpr RestId kNoRest = 0, kWhole = 1;

  // A list while it is short, else a mask.
  struct Tokens {
    std::vector<int32_t> few;
    std::unique_ptr<TokenMask> many;
    void AddTo(TokenMask* mask) const;
  };
  struct Part {
    Tokens tokens;
    RestId rest = kNoRest;
  };
  // Parts by key, in an open table: a mask looks up hundreds of them, a compilation a million.
  class PartTable {
   public:
    PartTable() : entries_(kLeast) {}
    const Part* Find(uint64_t key) const { return entries_[Slot(key)].part; }
    // The key is not there yet. The part stays where it is.
    const Part& Add(uint64_t key, Part part);
    void Clear();

   private:
    static constexpr size_t kLeast = 1024;
    struct Entry {
      uint64_t key = 0;
      const Part* part = nullptr;
    };
    size_t Slot(uint64_t key) const {
      size_t at = MixHash(key, 0) & (entries_.size() - 1);
      while (entries_[at].part != nullptr && entries_[at].key != key)
        at = (at + 1) & (entries_.size() - 1);
      return at;
    }
    std::vector<Entry> entries_;  // a power of two
    std::deque<Part> parts_;
  };
  // A rule that ends in the middle of some tokens, and where it began.
  struct Ended {
    int32_t rule = 0;
    RestId rest = kNoRest;
    const EarleySet* origin = nullptr;
  };
  struct Met {
    const EarleySet* origin = nullptr;
    int32_t place = 0;  // in a production, or -1 - rule
    RestId rest = kNoRest;
    friend bool operator==(const Met&, const Met&) = default;
    friend uint64_t HashOf(const Met& met) {
      const uint64_t both =
          static_cast<uint64_t>(met.place) << 32 | static_cast<uint32_t>(met.rest);
      return MixHash(both, reinterpret_cast<uintptr_t>(met.origin));
    }
  };
  // A mask, or a rule's part, under way: what was met, what is still to be followed up, what was
  // found.
  struct Frame {
    StampedSet<Met> met;
    std::vector<Ended> ended;
    std::vector<const Tokens*> found;
    std::vector<RestId> outside;
  };

  // What a rule leaves of tokens that go beyond its end.
  struct Left {
    int32_t rule = 0;
    RestId rest = kNoRest;
    friend bool operator==(const Left&, const Left&) = default;
    friend uint64_t HashOf(const Left& left) {
      return MixHash(static_cast<uint64_t>(left.rule) << 32 | static_cast<uint32_t>(left.rest), 0);
    }
  };
  // Each once, in the order in which they were found.
  struct LeftList {
    std::vector<Left> list;
    StampedSet<Left> met;
    void Add(const Left& left) {
      if (left.rest != kNoRest && met.Insert(left)) list.push_back(left);
    }
  };

  void PrepareStates(const std::function<bool()>& late, LeftList* left);
  void PrepareBehindRules(const std::function<bool()>& late, LeftList* left);
  RestId ThroughRest(int32_t production, size_t dot, RestId rest);
  const Part& OfState(int32_t terminal, int32_t state);
  // `takes`: at least one byte of the rest is the symbol's.
  const Part& OfSymbol(const GrammarSymbol& symbol, RestId rest, bool takes);
  void WalkTerminal(int32_t terminal, RestId rest, bool takes, Part* out);
  void WalkRule(int32_t rule, RestId rest, Part* out);
  Frame& Open();
  // What `rest` leads to behind the symbol that `item` awaits.
  void Follow(const EarleyItem& item, RestId rest, Frame* frame);
  void FollowEnded(Frame* frame);
  Tokens Joined(const std::vector<const Tokens*>& parts);
  // The list in any order, with repetitions.
  Tokens Kept(std::vector<int32_t> tokens);
  RestId RestOf(std::vector<uint32_t>* nodes);
  void Restart();
  void Trim();

  Grammar& g_;
  std::shared_ptr<const TokenTrie> trie_;
  Earley earley_;
  std::vector<const EarleySet*> begun_;  // by rule: its StartOf, or null
  std::vector<int32_t> first_place_;     // by production
  PartTable states_, parts_;
  std::unordered_map<std::string, RestId> rest_ids_;
  std::vector<std::string_view> rests_;  // by id: nodes of the trie, ascending
  size_t bytes_ = 0;
  std::vector<std::unique_ptr<Frame>> frames_;
  size_t open_ = 0;  // frames in use
  // Of the mask under way. Parts that it had to cut short are not kept for others.
  size_t work_ = 0;
  bool cut_ = false;
  std::deque<Part> cut_parts_;
  std::vector<int32_t> walk_;  // states by depth
};

}  // namespace aisp
