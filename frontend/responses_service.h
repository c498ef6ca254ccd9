// /v1/responses: a request for a response as a chat, its answer as a response object, and those
// that are kept for later (frontend/response_store.h). Any thread; what they are given outlives
// them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "frontend/prepared_request.h"
#include "frontend/response_store.h"

namespace aisp {

// `tenant`: whose responses may be named, and who may name this one.
ApiResult<PreparedRequest> PrepareResponse(const TextModel& model,
                                           std::shared_ptr<ResponseStore> store,
                                           const std::string& tenant, const std::string& body);

// The bodies of GET and DELETE /v1/responses/ID; NOT_FOUND names the id.
ApiResult<std::string> StoredResponseBody(ResponseStore& store, const std::string& tenant,
                                          const std::string& id);
// The body of GET /v1/responses/ID/input_items: what the response was made from, as a page of a
// list. `query`: limit (1 to 100, 20), order (desc, asc), after (an item's id).
ApiResult<std::string> InputItemsBody(ResponseStore& store, const std::string& tenant,
                                      const std::string& id, std::string_view query);
ApiResult<std::string> DeleteResponse(ResponseStore& store, const std::string& tenant,
                                      const std::string& id);

// The body of POST /v1/responses/input_tokens: the tokens of the prompt that such a request makes.
ApiResult<std::string> CountInputTokens(const TextModel& model, ResponseStore& store,
                                        const std::string& tenant, const std::string& body);

}  // namespace aisp
