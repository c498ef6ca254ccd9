// GrammarMasks: which tokens may follow a set of Earley's algorithm, put together of parts that are
// kept.
//
// A token may follow a set when it may follow one of its items alone, and there it goes three ways:
// it stays in the item's open terminal, which the state of that terminal's automaton decides; it
// goes on in what follows in the same production; or it goes beyond the production's end, to what
// awaited it. So a part knows which tokens end inside it, and the *rest*: the places in the token
// trie where what is left of the others begins. Parts are kept by terminal and state, and by place
// in a production and rest; they hold wherever in a text and in whatever request the place is met.
// A new set, mostly a stack of other depth, costs looking them up.
//
// Places whose tokens lead to very many sets of items lose some long tokens; what is allowed may
// follow. Belongs to one grammar, which serialises its callers.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "constrain/earley.h"
#include "constrain/production_automaton.h"
#include "constrain/token_trie.h"

namespace aisp {

class GrammarMasks {
 public:
  GrammarMasks(Grammar* grammar, std::shared_ptr<const TokenTrie> trie);

  // Makes `mask` the tokens that may follow `set`.
  void Compute(const EarleySet& set, TokenMask* mask);
  size_t bytes() const { return bytes_ + automaton_.bytes(); }

 private:
  using RestId = int32_t;
  static constexpr RestId kNoRest = 0;

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
  // A production that is complete in the middle of some tokens, and where it began.
  struct Completed {
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
      const uint64_t place =
          static_cast<uint64_t>(met.place) << 32 | static_cast<uint32_t>(met.rest);
      return MixHash(place, reinterpret_cast<uintptr_t>(met.origin));
    }
  };

  const Part& OfTerminal(int32_t terminal, int32_t state);
  const Part& OfPlace(int32_t production, int32_t dot, RestId rest);
  // What `rest` leads to behind the symbol that `item` awaits.
  void Follow(const EarleyItem& item, RestId rest, TokenMask* mask);
  Tokens Collect();
  RestId RestOf(std::vector<uint32_t>* nodes);
  void Trim();

  Grammar& g_;
  std::shared_ptr<const TokenTrie> trie_;
  Earley items_;  // for its knowledge of items alone
  ProductionAutomaton automaton_;
  std::vector<int32_t> first_place_;  // by production
  std::unordered_map<uint64_t, Part> terminals_, places_;
  std::unordered_map<std::string, RestId> rest_ids_;
  std::vector<std::string_view> rests_;  // by id: nodes of the trie, ascending
  size_t bytes_ = 0;
  // Of the mask under way.
  std::vector<Completed> completed_;
  StampedSet<Met> met_;
  // Of the part under way.
  TokenMask found_;
  std::vector<int32_t> states_;  // by depth
};

}  // namespace aisp
