#include "api/embedding_request.h"

#include <array>

#include "api/json_value.h"
#include "api/read_options.h"

namespace aisp {
namespace {

// Fields of other servers' APIs that change the answer and are not supported here.
constexpr std::array kRefused = {
    "messages",
    "truncate_prompt_tokens",
    "truncation",
    "truncate",
    "input_type",
    "embedding_types",
    "task",
    "late_chunking",
    "normalize",
    "normalized",
    "embedding_type",
    "max_tokens_per_doc",
    "max_chunks_per_doc",
    "rank_fields",
    "additional_data",
    "mm_processor_kwargs",
    "activation",
    "use_activation",
    "softmax",
};

void ReadCommon(Fields* fields, const ApiLimits& limits, GenerationOptions* out) {
  ReadCallerOptions(fields, limits, out);
  out->sampling.set_num_logprobs(-1);
  out->max_tokens = 0;
  for (const std::string_view name : kRefused) {
    const Value* value = fields->Find(name);
    const bool off = value != nullptr && value->IsBool() && !value->AsBool();
    if (value == nullptr || off) continue;
    fields->Refuse(name, std::string(name) + " is not supported by this server; leave it out");
  }
}

// A string, or {"text": ...} if `objects` are allowed.
bool ReadText(Fields* fields, const std::string& name, const Value& value, bool objects,
              std::string* out) {
  const Value* text = &value;
  if (objects && value.IsMap()) text = value.AsMap().Find("text");
  if (text == nullptr || !text->IsString()) {
    fields->Wrong(name, value, objects ? "a string or an object with \"text\"" : "a string");
    return false;
  }
  *out = text->AsString();
  return true;
}

void ReadTexts(Fields* fields, std::string_view name, bool alone, bool objects, int32_t most,
               std::vector<std::string>* out) {
  const Value* value = fields->Find(name);
  const std::string what = alone ? "a string or a list of strings" : "a list of strings";
  if (value == nullptr) return fields->Refuse(name, std::string(name) + " is missing: " + what);
  if (alone && value->IsString()) return void(out->push_back(value->AsString()));
  if (!value->IsList() || value->AsList().empty()) {
    return fields->Wrong(name, *value, what + " that is not empty");
  }
  const Value::List& list = value->AsList();
  if (list.size() > static_cast<size_t>(most)) {
    return fields->Refuse(name, std::string(name) + " must have at most " + std::to_string(most) +
                                    " entries, but has " + std::to_string(list.size()));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    std::string text;
    const std::string each = std::string(name) + "[" + std::to_string(i) + "]";
    if (!ReadText(fields, each, list[i], objects, &text)) return;
    out->push_back(std::move(text));
  }
}

}  // namespace

ApiResult<EmbeddingRequest> ParseEmbedding(std::string_view body, const ApiLimits& limits) {
  AISP_ASSIGN_OR_RETURN(const Value value, ParseBody(body, limits));
  return ParseEmbedding(value.AsMap(), limits);
}

ApiResult<EmbeddingRequest> ParseEmbedding(const Value::Map& body, const ApiLimits& limits) {
  Fields fields(&body);
  EmbeddingRequest out;
  ReadCommon(&fields, limits, &out);
  ReadPrompts(&fields, "input", limits.max_embedding_inputs, limits.vocab_size, &out.inputs);
  std::string format = "float";
  fields.String("encoding_format", kMaxNameBytes, &format);
  if (fields.ok() && format != "float" && format != "base64") {
    fields.Wrong("encoding_format", *fields.Find("encoding_format"), "\"float\" or \"base64\"");
  }
  out.base64 = format == "base64";
  if (fields.Find("dimensions") != nullptr)
    fields.IntInto("dimensions", 1, INT32_MAX, &out.dimensions.emplace());
  if (!fields.ok()) return fields.error();
  out.ignored = fields.Unread();
  return out;
}

ApiResult<ScoreRequest> ParseScore(std::string_view body, const ApiLimits& limits) {
  AISP_ASSIGN_OR_RETURN(const Value value, ParseBody(body, limits));
  return ParseScore(value.AsMap(), limits);
}

ApiResult<ScoreRequest> ParseScore(const Value::Map& body, const ApiLimits& limits) {
  Fields fields(&body);
  ScoreRequest out;
  ReadCommon(&fields, limits, &out);
  const int32_t most = limits.max_embedding_inputs / 2;
  ReadTexts(&fields, "text_1", /*alone=*/true, /*objects=*/false, most, &out.first);
  ReadTexts(&fields, "text_2", /*alone=*/true, /*objects=*/false, most, &out.second);
  if (fields.ok() && out.first.size() != 1 && out.first.size() != out.second.size()) {
    fields.Refuse("text_2", "text_1 must be one text, or as many as text_2; they have " +
                                std::to_string(out.first.size()) + " and " +
                                std::to_string(out.second.size()));
  }
  if (!fields.ok()) return fields.error();
  out.ignored = fields.Unread();
  return out;
}

ApiResult<RerankRequest> ParseRerank(std::string_view body, const ApiLimits& limits) {
  AISP_ASSIGN_OR_RETURN(const Value value, ParseBody(body, limits));
  return ParseRerank(value.AsMap(), limits);
}

ApiResult<RerankRequest> ParseRerank(const Value::Map& body, const ApiLimits& limits) {
  Fields fields(&body);
  RerankRequest out;
  ReadCommon(&fields, limits, &out);
  if (const Value* query = fields.Find("query"); query == nullptr) {
    fields.Refuse("query", "query is missing: a string");
  } else {
    ReadText(&fields, "query", *query, /*objects=*/true, &out.query);
  }
  ReadTexts(&fields, "documents", /*alone=*/false, /*objects=*/true,
            limits.max_embedding_inputs - 1, &out.documents);
  fields.IntInto("top_n", 0, INT32_MAX, &out.top_n);
  fields.Bool("return_documents", &out.return_documents);
  if (!fields.ok()) return fields.error();
  out.ignored = fields.Unread();
  return out;
}

}  // namespace aisp
