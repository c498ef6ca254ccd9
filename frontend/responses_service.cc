#include "frontend/responses_service.h"

#include <fmt/format.h>

#include <utility>

#include "api/responses_encoder.h"
#include "api/responses_request.h"
#include "common/strings.h"
#include "frontend/answer_ids.h"

namespace aisp {
namespace {

ApiError NotKept(const std::string& id, const char* param) {
  return ApiError(
      Code::kNotFound,
      fmt::format("no response '{}' is kept here: it was never stored, was deleted, had "
                  "to make room for others (http.max_stored_responses), or another "
                  "router has it; send the conversation in input",
                  Excerpt(id)),
      param, "response_not_found");
}

}  // namespace

ApiResult<PreparedRequest> PrepareResponse(const TextModel& model,
                                           std::shared_ptr<ResponseStore> store,
                                           const std::string& tenant, const std::string& body) {
  const auto find = [&](const std::string& id) -> ApiResult<Value::List> {
    const auto kept = store->Find(tenant, id);
    if (kept == nullptr) return tl::unexpected(NotKept(id, "previous_response_id"));
    return kept->conversation;
  };
  AISP_ASSIGN_OR_RETURN(ResponsesRequest request, ParseResponses(body, model.limits, find));
  auto prepared = Prepare(model, std::move(request.chat));
  if (!prepared) return tl::unexpected(InResponsesWords(std::move(prepared).error()));
  ResponsesHead head;
  head.id = NewAnswerId("resp_");
  head.model = prepared->model_name;
  head.created_s = UnixTimeS();
  head.echo = std::move(request.echo);
  if (request.store) {
    head.keep = [store = std::move(store), tenant, id = head.id, items = std::move(request.items)](
                    const std::string& json, const Value::List& output) {
      Value::List conversation = items;
      conversation.insert(conversation.end(), output.begin(), output.end());
      store->Put(tenant, id, {json, std::move(conversation)});
    };
  }
  prepared->call_seed = head.id;
  prepared->gathers_answer = true;
  prepared->make_encoder = [head = std::move(head)] {
    return std::make_unique<ResponsesEncoder>(head);
  };
  return std::move(*prepared);
}

ApiResult<std::string> StoredResponseBody(ResponseStore& store, const std::string& tenant,
                                          const std::string& id) {
  const auto kept = store.Find(tenant, id);
  if (kept == nullptr) return tl::unexpected(NotKept(id, "response_id"));
  return kept->json;
}

ApiResult<std::string> DeleteResponse(ResponseStore& store, const std::string& tenant,
                                      const std::string& id) {
  if (!store.Erase(tenant, id)) return tl::unexpected(NotKept(id, "response_id"));
  std::string quoted;
  AppendJsonString(id, &quoted);
  return fmt::format(R"({{"id":{},"object":"response","deleted":true}})", quoted);
}

}  // namespace aisp
