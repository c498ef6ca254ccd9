// Helpers that the tests of constrain/ share: a schema with a vocabulary of bytes or of given
// pieces, and the check of whole texts.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "constrain/json_constraint.h"
#include "constrain/schema_compiler.h"

namespace aisp {

inline std::shared_ptr<const TokenTrie> Vocabulary(std::vector<std::string> more = {}) {
  std::vector<std::string> pieces;
  for (int b = 0; b < 256; ++b) pieces.emplace_back(1, static_cast<char>(b));
  pieces.insert(pieces.end(), more.begin(), more.end());
  return std::make_shared<const TokenTrie>(pieces);
}

inline std::shared_ptr<Constraint> Compile(std::string_view schema,
                                           std::vector<std::string> more = {},
                                           Whitespace whitespace = Whitespace::kFlexible) {
  auto compiled = CompileSchema(schema, {}, {});
  if (!compiled || compiled->grammar == nullptr) return nullptr;
  return MakeJsonConstraint(std::move(compiled->grammar), whitespace, Vocabulary(std::move(more)));
}

// "keyword at 'pointer'" for each refusal.
inline std::vector<std::string> RefusalsOf(std::string_view schema) {
  const auto compiled = CompileSchema(schema, {}, {});
  std::vector<std::string> out;
  if (!compiled) return {compiled.error().message};
  for (const Refusal& r : compiled->refusals) out.push_back(r.keyword + " at '" + r.pointer + "'");
  return out;
}

inline bool Allows(Constraint* constraint, std::string_view text) {
  const auto matcher = constraint->NewMatcher();
  return matcher->AdvanceBytes(text) == text.size() && matcher->IsWhole();
}

inline bool Allows(std::string_view schema, std::string_view text) {
  const auto constraint = Compile(schema);
  EXPECT_NE(constraint, nullptr) << "refused: " << schema;
  return constraint != nullptr && Allows(constraint.get(), text);
}

}  // namespace aisp
