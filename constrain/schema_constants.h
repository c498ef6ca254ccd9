// Finds the few values that a formula allows, where constants show them, and whether a constant
// fits another formula. This distinguishes alternatives without merging them. For constrain/ only;
// one compilation, one thread.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "constrain/json_grammar.h"
#include "constrain/schema_translator.h"

namespace aisp {

class SchemaConstants {
 public:
  using Ids = std::vector<int32_t>;  // of constants, sorted
  enum class Fit : uint8_t { kNo, kMaybe, kYes };

  SchemaConstants(JsonGrammar* grammar, Exprs* exprs, SchemaTranslator* translator)
      : g_(*grammar), e_(*exprs), translator_(*translator) {}

  // All values that fit `expr`, perhaps a few more; null when they are not few.
  const Ids* Of(ExprId expr);
  Fit Fits(ExprId expr, int32_t constant) { return FitsBelow(expr, constant, 0); }
  static constexpr size_t kMaxFew = 16;

 private:
  struct Constant {
    JsonType type = JsonType::kNull;
    std::string text;
    Decimal number;
    bool boolean = false;
  };

  std::optional<Ids> Candidates(ExprId expr, int depth);
  std::optional<Ids> OfAll(const std::vector<ExprId>& parts, int depth);
  std::optional<Ids> OfAtoms(const std::vector<ExprId>& parts);
  Fit FitsBelow(ExprId expr, int32_t constant, int depth);
  Fit FitsAtom(const Atom& atom, const Constant& constant);
  int32_t Intern(Constant constant);

  JsonGrammar& g_;
  Exprs& e_;
  SchemaTranslator& translator_;
  std::vector<Constant> constants_;
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<ExprId, std::optional<Ids>> known_;
};

}  // namespace aisp
