#include "frontend/messages_service.h"

#include <utility>

#include "api/messages_encoder.h"
#include "api/messages_request.h"
#include "frontend/answer_ids.h"

namespace aisp {

ApiResult<PreparedRequest> PrepareMessage(const TextModel& model, const std::string& body,
                                          const std::string& request_id) {
  AISP_ASSIGN_OR_RETURN(ChatRequest chat, ParseMessages(body, model.limits, MessagesUse::kAnswer));
  auto prepared = Prepare(model, std::move(chat));
  if (!prepared) return tl::unexpected(InMessagesWords(std::move(prepared).error()));
  const std::string id = NewAnswerId("msg_");
  prepared->call_seed = id;
  prepared->make_encoder = [id, name = prepared->model_name, request_id] {
    return std::make_unique<MessagesEncoder>(id, name, request_id);
  };
  return std::move(*prepared);
}

ApiResult<std::string> CountTokens(const TextModel& model, const std::string& body) {
  AISP_ASSIGN_OR_RETURN(const ChatRequest chat,
                        ParseMessages(body, model.limits, MessagesUse::kCount));
  // Makes all checks of a real request except the room in the context.
  AISP_RETURN_IF_ERROR(model.CheckName(chat.model));
  const auto tokens = model.RenderChat(chat);
  if (!tokens) return tl::unexpected(InMessagesWords(tokens.error()));
  return TokenCountBody(tokens->size());
}

}  // namespace aisp
