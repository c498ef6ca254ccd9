#include "frontend/text_service.h"

#include <fmt/format.h>

namespace aisp {
namespace {

// Checked before the answer is written, which takes several times the text's memory.
ApiResult<void> CheckAnswerSize(const TextModel& model, const TokenizeRequest& request,
                                const std::vector<TokenId>& tokens) {
  size_t bytes = 0;
  for (const TokenId token : tokens) {
    bytes += fmt::formatted_size("{},", token);
    // two quotes and a comma
    constexpr size_t kAround = 3;
    if (request.return_token_strs) bytes += model.tokenizer->IdToPiece(token).size() + kAround;
  }
  if (bytes <= model.max_answer_bytes) return {};
  return tl::unexpected(
      ApiError(Code::kOutOfRange,
               fmt::format("the {} tokens of this text take {} bytes, more than the {} that an "
                           "answer may have (http.max_answer); send the text in parts{}",
                           tokens.size(), bytes, model.max_answer_bytes,
                           request.return_token_strs ? ", or without return_token_strs" : ""),
               request.chat ? "messages" : "prompt"));
}

}  // namespace

ApiResult<Tokenized> Tokenize(const TextModel& model, const TokenizeRequest& request) {
  AISP_RETURN_IF_ERROR(model.CheckName(request.model));
  Tokenized out;
  if (request.chat) {
    AISP_ASSIGN_OR_RETURN(out.tokens, model.RenderChat(*request.chat, request.add_special_tokens));
  } else {
    AISP_ASSIGN_OR_RETURN(out.tokens,
                          model.EncodePrompt(Prompt(request.prompt), request.add_special_tokens));
  }
  AISP_RETURN_IF_ERROR(CheckAnswerSize(model, request, out.tokens));
  if (!request.return_token_strs) return out;
  for (const TokenId token : out.tokens) {
    out.pieces.emplace_back(model.tokenizer->IdToPiece(token));
  }
  return out;
}

ApiResult<std::string> Detokenize(const TextModel& model, const DetokenizeRequest& request) {
  AISP_RETURN_IF_ERROR(model.CheckName(request.model));
  if (!model.tokenizer) {
    return tl::unexpected(ApiError(
        Code::kFailedPrecondition,
        "the model '" + model.name + "' has no tokenizer: its tokens have no text", "tokens"));
  }
  size_t bytes = 0;
  for (const TokenId token : request.tokens) bytes += model.tokenizer->IdToPiece(token).size();
  if (bytes > model.max_answer_bytes) {
    return tl::unexpected(
        ApiError(Code::kOutOfRange,
                 "the text of these tokens takes up to " + std::to_string(bytes) +
                     " bytes, more than the " + std::to_string(model.max_answer_bytes) +
                     " that an answer may have (http.max_answer); send them in parts",
                 "tokens"));
  }
  return model.tokenizer->Decode(request.tokens, /*skip_special=*/false);
}

}  // namespace aisp
