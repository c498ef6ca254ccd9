// JsonEndings: how a JSON text that is read in part can be made whole in few tokens: scalars are
// finished, what is required is added with the least value of its type, and what is open is closed.
//
// Every byte is tried on the machine, so an ending that is found is right; that none is found says
// nothing (uniqueItems, for one, is not solved for). The least values of types are found once, when
// first asked for. One thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "constrain/constraint.h"
#include "constrain/json_machine.h"
#include "constrain/token_trie.h"

namespace aisp {

class JsonEndings {
 public:
  JsonEndings(JsonMachine* machine, std::shared_ptr<const TokenTrie> trie);

  std::optional<Matcher::Ending> Find(const JsonState& state, size_t limit);

 private:
  using Texts = std::vector<std::string>;  // what may come next, the best first

  void FindLeast();
  void FindSizes();
  size_t TokensOf(const std::optional<std::string>& text) const;
  // The greatest value of these ways; with `spread`, beyond the least of them.
  size_t MostOf(const std::vector<ValueWay>& ways, bool spread) const;
  std::optional<std::string> LeastOf(const JsonTypeShapes& type);
  std::optional<std::string> LeastOf(const ObjectShape& shape) const;
  std::optional<std::string> LeastOf(const ArrayShape& shape) const;
  // The least value of these ways, of those that fulfil `done` if any; null: none is known.
  const std::string* LeastOf(const std::vector<ValueWay>& ways, uint8_t done) const;
  const std::string* LeastOf(TypeId type) const;

  Texts Next(const JsonState& at, Arena* arena);
  Texts NextOfScalar(const JsonState& at, Arena* arena);
  Texts NextOfName(const JsonState& at);
  static Texts NextOfEscape(const Scalar& scalar);
  Texts NextValue(const Level& level) const;
  Texts NextMember(const Level& level) const;
  // Members that an alternative of an object wants, or may have, under its own names.
  void AddMembers(const Level& level, const ContainerAlt& alt, Texts* wanted,
                  Texts* possible) const;
  bool Take(const std::string& text, Arena* arena, JsonState* at);
  // In tokens: what one more token may add to the ending, by a value that begins in or near the
  // state's top level.
  size_t GrowthAt(const JsonState& state) const;

  JsonMachine& machine_;
  JsonGrammar& g_;
  const std::shared_ptr<const TokenTrie> trie_;
  bool found_ = false;
  std::vector<std::optional<std::string>> least_;  // by type
  // In tokens, by type: the least value, and the greatest least value of its alternatives.
  std::vector<size_t> size_, most_;
  // By shape, what may be added to an ending that has all that is wanted, and by a choice among
  // what is wanted.
  std::vector<size_t> object_growth_, array_growth_, array_spread_;
};

}  // namespace aisp
