// Compiles a JSON Schema to a JsonGrammar: formulas in disjunctive normal form per JSON type
// (keywords of strings do not restrict numbers), each conjunction merged into one shape. Bounded in
// time and size.
#pragma once

#include <chrono>
#include <memory>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "constrain/json_grammar.h"
#include "constrain/schema_translator.h"

namespace aisp {

struct CompileLimits {
  std::chrono::milliseconds timeout{2000};
  size_t max_types = 50'000;
};

struct CompiledSchema {
  std::unique_ptr<JsonGrammar> grammar;  // null if there are refusals
  std::vector<Refusal> refusals;
};

// INVALID_ARGUMENT: not a schema. DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED: beyond `limits`. A schema
// that no value fits is refused, since nothing could be generated.
Result<CompiledSchema> CompileSchema(std::string_view schema, const SchemaOptions& options,
                                     const CompileLimits& limits);

}  // namespace aisp
