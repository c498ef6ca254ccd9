// JsonEndings: completes a partial JSON text in few tokens: scalars are finished, required members
// are added with the minimal value of their type, and open containers are closed.
//
// Every byte is checked by the machine, so an ending that is found is valid. If none is found, one
// may still exist (uniqueItems, for example, is not solved for). Minimal values of types are
// computed once, on first use. One thread at a time.
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
  using Texts = std::vector<std::string>;  // candidates for the next text, best first

  void FindLeast();
  void FindSizes();
  size_t TokensOf(const std::optional<std::string>& text) const;
  // The longest minimal value of these ways; with `spread`, minus the shortest.
  size_t MostOf(const std::vector<ValueWay>& ways, bool spread) const;
  std::optional<std::string> LeastOf(const JsonTypeShapes& type);
  std::optional<std::string> LeastOf(const ObjectShape& shape) const;
  std::optional<std::string> LeastOf(const ArrayShape& shape) const;
  // The shortest minimal value of these ways, preferably of those that fulfil `done`; null:
  // unknown.
  const std::string* LeastOf(const std::vector<ValueWay>& ways, uint8_t done) const;
  const std::string* LeastOf(TypeId type) const;

  Texts Next(const JsonState& at, Arena* arena);
  Texts NextOfScalar(const JsonState& at, Arena* arena);
  Texts NextOfName(const JsonState& at);
  static Texts NextOfEscape(const Scalar& scalar);
  Texts NextValue(const Level& level) const;
  Texts NextMember(const Level& level) const;
  // Adds members that an alternative of an object requires or allows, by its own names.
  void AddMembers(const Level& level, const ContainerAlt& alt, Texts* wanted,
                  Texts* possible) const;
  bool Take(const std::string& text, Arena* arena, JsonState* at);
  // Tokens that one more token may add to the ending, by starting a value in or near the state's
  // top level.
  size_t GrowthAt(const JsonState& state) const;

  JsonMachine& machine_;
  JsonGrammar& g_;
  const std::shared_ptr<const TokenTrie> trie_;
  bool found_ = false;
  std::vector<std::optional<std::string>> least_;  // by type
  // In tokens, by type: the minimal value, and the longest minimal value of its alternatives.
  std::vector<size_t> size_, most_;
  // By shape: what may be added beyond the required members, and by a choice among required ones.
  std::vector<size_t> object_growth_, array_growth_, array_spread_;
};

}  // namespace aisp
