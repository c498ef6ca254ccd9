#include "constrain/schema_compiler.h"

#include "constrain/schema_types.h"

namespace aisp {

Result<CompiledSchema> CompileSchema(std::string_view schema, const SchemaOptions& options,
                                     const CompileLimits& limits) {
  AISP_ASSIGN_OR_RETURN(const auto document, SchemaDocument::Open(schema));
  CompiledSchema out;
  out.grammar = std::make_unique<JsonGrammar>();
  Languages& languages = out.grammar->languages;
  languages.SetDeadline(Deadline(limits.timeout));
  Exprs exprs;
  SchemaTranslator translator(document.get(), &exprs, &out.grammar->languages, options);
  const ExprId root = translator.Root();
  // First every schema that a reference can reach, so that all refusals are reported at once.
  for (size_t i = 0; i < translator.schemas(); ++i) translator.Formula(static_cast<int32_t>(i));
  if (translator.refusals().empty()) {
    SchemaTypes types(out.grammar.get(), &exprs, &translator, limits);
    const bool built = types.Build(root);
    if (!types.status()) return tl::unexpected(types.status().error());
    if (built && !out.grammar->types[static_cast<size_t>(out.grammar->root)].inhabited) {
      translator.Refuse("", "schema",
                        languages.HasCutSearch()
                            ? "its patterns have more states together than are looked at"
                            : "no value fits it");
    }
  }
  if (languages.TimedOut()) {
    return tl::unexpected(Error{Code::kDeadlineExceeded,
                                "the schema did not compile within " +
                                    std::to_string(limits.timeout.count()) +
                                    " ms (--grammar-compile-timeout); simplify its patterns"});
  }
  languages.SetDeadline({});
  out.refusals = translator.refusals();
  if (!out.refusals.empty()) out.grammar = nullptr;
  return out;
}

}  // namespace aisp
