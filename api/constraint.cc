// Constraints on the answer as clients request them: OpenAI's response_format, vLLM's guided_* and
// structured_outputs.
#include "api/json_text.h"
#include "api/json_value.h"
#include "api/read_options.h"
#include "common/strings.h"

namespace aisp {
namespace {

constexpr size_t kMaxChoices = 4096;

class Reader {
 public:
  Reader(Fields* fields, v1::Constraint* constraint) : fields_(*fields), out_(*constraint) {}

  // A schema: an object, a boolean, or either as JSON text.
  void Schema(std::string_view name, const Value& value) {
    if (!Begin(name, v1::Constraint::JSON_SCHEMA)) return;
    if (value.IsString()) {
      out_.set_text(value.AsString());
    } else if (value.IsMap() || value.IsBool()) {
      AppendJson(value, out_.mutable_text());
    } else {
      fields_.Wrong(name, value, "a JSON Schema");
    }
  }

  void Regex(std::string_view name, const Value& value) {
    if (!Begin(name, v1::Constraint::REGEX)) return;
    if (!value.IsString()) return fields_.Wrong(name, value, "a regular expression");
    out_.set_text(value.AsString());
  }

  void Grammar(std::string_view name, const Value& value) {
    if (!Begin(name, v1::Constraint::GRAMMAR)) return;
    if (!value.IsString())
      return fields_.Wrong(name, value, "a grammar (GBNF, or Lark's notation)");
    out_.set_text(value.AsString());
  }

  void Choice(std::string_view name, const Value& value) {
    if (!Begin(name, v1::Constraint::CHOICE)) return;
    const bool list =
        value.IsList() && !value.AsList().empty() && value.AsList().size() <= kMaxChoices;
    if (!list) return fields_.Wrong(name, value, "a list of 1 to 4096 strings");
    for (const Value& choice : value.AsList()) {
      if (!choice.IsString() || choice.AsString().empty()) {
        return fields_.Wrong(name, choice, "a list of strings, none empty");
      }
      out_.add_choices(choice.AsString());
    }
  }

  void ResponseFormat(const Value::Map& format) {
    const Value* type = format.Find("type");
    const std::string word = type != nullptr && type->IsString() ? type->AsString() : "";
    if (word == "text") return;
    for (const char* name : {"schema", "response_schema"}) {
      // The form used by servers and clients that predate json_schema.
      const Value* beside = word == "json_object" ? format.Find(name) : nullptr;
      if (beside != nullptr && !beside->IsNone()) return Schema("response_format", *beside);
    }
    if (word == "json_object") {
      Begin("response_format", v1::Constraint::JSON_OBJECT);
      return;
    }
    if (word != "json_schema") {
      return fields_.Refuse("response_format",
                            "response_format must have the type \"text\", \"json_object\" or "
                            "\"json_schema\", but its type is " +
                                (type == nullptr ? "missing" : Describe(*type)));
    }
    const Value* outer = format.Find("json_schema");
    const Value* schema =
        outer != nullptr && outer->IsMap() ? outer->AsMap().Find("schema") : nullptr;
    if (schema == nullptr) {
      return fields_.Refuse(
          "response_format",
          "response_format.json_schema.schema is missing: it holds the JSON Schema");
    }
    Schema("response_format", *schema);
    bool strict = true;
    Fields inner(&outer->AsMap(), "response_format.json_schema.");
    inner.Bool("strict", &strict);
    if (!inner.ok()) return fields_.SetError(inner.error().value());
    if (!strict) out_.add_relaxed("*");
  }

  void StructuredOutputs(const Value::Map& map) {
    for (const auto& [key, value] : map) {
      const std::string name = "structured_outputs." + Excerpt(key);
      if (value.IsNone() || (value.IsBool() && !value.AsBool())) continue;
      if (key == "json") {
        Schema(name, value);
      } else if (key == "regex") {
        Regex(name, value);
      } else if (key == "choice") {
        Choice(name, value);
      } else if (key == "grammar") {
        Grammar(name, value);
      } else if (key == "json_object") {
        Begin(name, v1::Constraint::JSON_OBJECT);
      } else if (key == "disable_any_whitespace") {
        out_.set_compact(true);
      } else if (key == "force_finish") {
        out_.set_force_finish(true);
      } else {
        fields_.Refuse(name, name +
                                 " is not supported by this server; json, json_object, regex, "
                                 "choice and grammar are");
      }
    }
  }

  // The request field that set the constraint.
  const std::string& field() const { return field_; }

 private:
  bool Begin(std::string_view name, v1::Constraint::Kind kind) {
    if (out_.kind() != v1::Constraint::NONE) {
      fields_.Refuse(name, std::string(name) + " comes beside another constraint; give one");
      return false;
    }
    out_.set_kind(kind);
    field_ = name;
    return true;
  }

  Fields& fields_;
  v1::Constraint& out_;
  std::string field_;
};

}  // namespace

void ReadConstraint(Fields* fields, GenerationOptions* out) {
  v1::Constraint constraint;
  Reader reader(fields, &constraint);
  if (const Value::Map* format = fields->Object("response_format")) reader.ResponseFormat(*format);
  if (const Value* schema = fields->Find("guided_json")) reader.Schema("guided_json", *schema);
  if (const Value* regex = fields->Find("guided_regex")) reader.Regex("guided_regex", *regex);
  if (const Value* choice = fields->Find("guided_choice")) reader.Choice("guided_choice", *choice);
  if (const Value* grammar = fields->Find("guided_grammar"))
    reader.Grammar("guided_grammar", *grammar);
  if (const Value::Map* map = fields->Object("structured_outputs")) reader.StructuredOutputs(*map);
  bool force_finish = constraint.force_finish();
  fields->Bool("force_finish", &force_finish);
  constraint.set_force_finish(force_finish);
  if (!fields->ok()) return;
  if (constraint.kind() == v1::Constraint::NONE) {
    // Tool calls constrain an answer too, so whether this is allowed is left to CheckForceFinish.
    if (force_finish) out->sampling.mutable_constraint()->set_force_finish(true);
    return;
  }
  if (out->min_tokens > 0) {
    return fields->Refuse(
        "min_tokens", "min_tokens cannot be promised beside a constraint, which may end earlier");
  }
  out->constraint_field = reader.field();
  *out->sampling.mutable_constraint() = std::move(constraint);
}

void CheckForceFinish(Fields* fields, const GenerationOptions& options, bool calls) {
  const v1::Constraint& constraint = options.sampling.constraint();
  if (constraint.force_finish() && constraint.kind() == v1::Constraint::NONE && !calls) {
    fields->Refuse("force_finish",
                   "force_finish is for answers with a constraint, or with tools; give one");
  }
}

}  // namespace aisp
