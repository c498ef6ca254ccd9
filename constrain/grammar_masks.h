// GrammarMasks: computes which tokens may follow an Earley set, from cached parts.
//
// A token may follow a set if it may follow one of its items alone. There are three cases: it stays
// in the item's open terminal, which depends only on the terminal's automaton state; it continues
// into what follows in the same production; or it continues past the production's end, into what
// awaited it. So a part knows which tokens end inside it, and the *rest*: the nodes of the token
// trie where the remainders of other tokens start. Parts are cached by terminal and state and by
// symbol and rest, and hold anywhere in any text. For a new set, usually a stack of another depth,
// they are only looked up.
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
  // Trie nodes and items that one mask may visit (some tens of milliseconds). Beyond it, tokens
  // that cross terminals are left out; tokens inside a terminal are always found.
  static constexpr size_t kMaxWork = 4'000'000;

  GrammarMasks(Grammar* grammar, std::shared_ptr<const TokenTrie> trie);

  // Computes parts that texts will probably need, until `late` returns true: work done at
  // compilation need not be done between two steps of an engine.
  void Prepare(const std::function<bool()>& late);
  // Sets `mask` to the tokens that may follow `set`.
  void Compute(const EarleySet& set, TokenMask* mask);
  size_t bytes() const { return bytes_; }

 private:
  using RestId = int32_t;
  // kWhole: no byte of the tokens was consumed.
  static constexpr RestId kNoRest = 0, kWhole = 1;

  // A list while short, else a mask.
  struct Tokens {
    std::vector<int32_t> few;
    std::unique_ptr<TokenMask> many;
    void AddTo(TokenMask* mask) const;
  };
  struct Part {
    Tokens tokens;
    RestId rest = kNoRest;
  };
  // Parts by key in an open table: a mask looks up hundreds, a compilation a million.
  class PartTable {
   public:
    PartTable() : entries_(kLeast) {}
    const Part* Find(uint64_t key) const { return entries_[Slot(key)].part; }
    // The key must be absent. The part keeps its address.
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
  // A rule that completed within some tokens, and its origin.
  struct Ended {
    int32_t rule = 0;
    RestId rest = kNoRest;
    const EarleySet* origin = nullptr;
  };
  struct Met {
    const EarleySet* origin = nullptr;
    int32_t place = 0;  // position in a production, or -1 - rule
    RestId rest = kNoRest;
    friend bool operator==(const Met&, const Met&) = default;
    friend uint64_t HashOf(const Met& met) {
      const uint64_t both =
          static_cast<uint64_t>(met.place) << 32 | static_cast<uint32_t>(met.rest);
      return MixHash(both, reinterpret_cast<uintptr_t>(met.origin));
    }
  };
  // A mask or a rule's part under computation: visited, pending and found entries.
  struct Frame {
    StampedSet<Met> met;
    std::vector<Ended> ended;
    std::vector<const Tokens*> found;
    std::vector<RestId> outside;
  };

  // What a rule leaves of tokens that continue past its end.
  struct Left {
    int32_t rule = 0;
    RestId rest = kNoRest;
    friend bool operator==(const Left&, const Left&) = default;
    friend uint64_t HashOf(const Left& left) {
      return MixHash(static_cast<uint64_t>(left.rule) << 32 | static_cast<uint32_t>(left.rest), 0);
    }
  };
  // Without duplicates, in order of discovery.
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
  // `takes`: the symbol must consume at least one byte of the rest.
  const Part& OfSymbol(const GrammarSymbol& symbol, RestId rest, bool takes);
  void WalkTerminal(int32_t terminal, RestId rest, bool takes, Part* out);
  void WalkRule(int32_t rule, RestId rest, Part* out);
  Frame& Open();
  // What `rest` leads to after the symbol that `item` awaits.
  void Follow(const EarleyItem& item, RestId rest, Frame* frame);
  void FollowEnded(Frame* frame);
  Tokens Joined(const std::vector<const Tokens*>& parts);
  // `tokens` in any order, possibly repeated.
  Tokens Kept(std::vector<int32_t> tokens);
  RestId RestOf(std::vector<uint32_t>* nodes);
  void Restart();
  void Trim();

  Grammar& g_;
  std::shared_ptr<const TokenTrie> trie_;
  Earley earley_;
  std::vector<const EarleySet*> begun_;  // by rule: its StartOf set, or null
  std::vector<int32_t> first_place_;     // by production
  PartTable states_, parts_;
  std::unordered_map<std::string, RestId> rest_ids_;
  std::vector<std::string_view> rests_;  // by id: sorted trie nodes
  size_t bytes_ = 0;
  std::vector<std::unique_ptr<Frame>> frames_;
  size_t open_ = 0;  // frames in use
  // Work of the current mask. Parts cut short by the limit are not cached.
  size_t work_ = 0;
  bool cut_ = false;
  std::deque<Part> cut_parts_;
  std::vector<int32_t> walk_;  // states by depth
};

}  // namespace aisp
