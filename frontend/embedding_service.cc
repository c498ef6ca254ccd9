#include "frontend/embedding_service.h"

#include <fmt/format.h>

#include <utility>

#include "api/inference_request.h"
#include "api/vector_message.h"

namespace aisp {
namespace {

ApiResult<PreparedRequest> PrepareInputs(const TextModel& model, GenerationOptions options,
                                         const std::vector<Prompt>& inputs) {
  AISP_RETURN_IF_ERROR(model.CheckName(options.model));
  if (model.pooling == v1::POOL_NONE)
    return tl::unexpected(ApiError(Code::kUnimplemented, model.no_embeddings));
  PreparedRequest out;
  out.pooling = model.pooling;
  out.options = std::move(options);
  for (const Prompt& input : inputs) {
    if (const auto* text = std::get_if<std::string>(&input))
      AISP_RETURN_IF_ERROR(model.CheckTextSize(text->size(), "input"));
    AISP_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, model.EncodePrompt(input));
    out.prompts.push_back(std::move(tokens));
  }
  return Checked(model, std::move(out));
}

enum class Form { kJson, kMessage };

ApiResult<PreparedRequest> Embedding(const TextModel& model, const EmbeddingRequest& request,
                                     Form form) {
  const auto size = static_cast<uint32_t>(model.hidden);
  if (request.dimensions && *request.dimensions > size) {
    return tl::unexpected(ApiError(
        Code::kInvalidArgument,
        fmt::format("dimensions must be at most {}, which this model's embeddings have, but is {}",
                    size, *request.dimensions),
        "dimensions"));
  }
  AISP_ASSIGN_OR_RETURN(PreparedRequest out, PrepareInputs(model, request, request.inputs));
  const size_t inputs = request.inputs.size();
  out.vectors =
      form == Form::kJson
          ? MakeEmbeddingsEncoder(out.model_name, inputs, request.base64, request.dimensions)
          : MakeEmbedMessageEncoder(out.model_name, inputs, request.dimensions);
  return out;
}

ApiResult<PreparedRequest> Score(const TextModel& model, const ScoreRequest& request, Form form) {
  std::vector<Prompt> inputs(request.first.begin(), request.first.end());
  inputs.insert(inputs.end(), request.second.begin(), request.second.end());
  AISP_ASSIGN_OR_RETURN(PreparedRequest out, PrepareInputs(model, request, inputs));
  const auto make = form == Form::kJson ? MakeScoresEncoder : MakeScoreMessageEncoder;
  out.vectors = make(out.model_name, request.first.size(), request.second.size());
  return out;
}

ApiResult<PreparedRequest> Rerank(const TextModel& model, RerankRequest request, Form form) {
  std::vector<Prompt> inputs = {request.query};
  inputs.insert(inputs.end(), request.documents.begin(), request.documents.end());
  AISP_ASSIGN_OR_RETURN(PreparedRequest out, PrepareInputs(model, request, inputs));
  const auto make = form == Form::kJson ? MakeRerankEncoder : MakeRerankMessageEncoder;
  out.vectors = make(out.model_name, std::move(request));
  return out;
}

}  // namespace

ApiResult<PreparedRequest> PrepareEmbedding(const TextModel& model, std::string_view body) {
  AISP_ASSIGN_OR_RETURN(EmbeddingRequest request, ParseEmbedding(body, model.limits));
  return Embedding(model, std::move(request), Form::kJson);
}

ApiResult<PreparedRequest> PrepareEmbedding(const TextModel& model, const v1::EmbedRequest& body) {
  AISP_ASSIGN_OR_RETURN(EmbeddingRequest request, ParseEmbedding(body, model.limits));
  return Embedding(model, std::move(request), Form::kMessage);
}

ApiResult<PreparedRequest> PrepareScore(const TextModel& model, std::string_view body) {
  AISP_ASSIGN_OR_RETURN(ScoreRequest request, ParseScore(body, model.limits));
  return Score(model, std::move(request), Form::kJson);
}

ApiResult<PreparedRequest> PrepareScore(const TextModel& model, const v1::ScoreRequest& body) {
  AISP_ASSIGN_OR_RETURN(ScoreRequest request, ParseScore(body, model.limits));
  return Score(model, std::move(request), Form::kMessage);
}

ApiResult<PreparedRequest> PrepareRerank(const TextModel& model, std::string_view body) {
  AISP_ASSIGN_OR_RETURN(RerankRequest request, ParseRerank(body, model.limits));
  return Rerank(model, std::move(request), Form::kJson);
}

ApiResult<PreparedRequest> PrepareRerank(const TextModel& model, const v1::RerankRequest& body) {
  AISP_ASSIGN_OR_RETURN(RerankRequest request, ParseRerank(body, model.limits));
  return Rerank(model, std::move(request), Form::kMessage);
}

}  // namespace aisp
