// /v1/responses: converts a request to a chat, its answer to a response object, and serves stored
// responses (frontend/response_store.h). Any thread; arguments outlive the result.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "frontend/prepared_request.h"
#include "frontend/response_store.h"

namespace aisp {

// `tenant`: owns the responses that may be referenced, and this one.
ApiResult<PreparedRequest> PrepareResponse(const TextModel& model,
                                           std::shared_ptr<ResponseStore> store,
                                           const std::string& tenant, const std::string& body);

// The bodies of GET and DELETE /v1/responses/ID; NOT_FOUND names the id.
ApiResult<std::string> StoredResponseBody(ResponseStore& store, const std::string& tenant,
                                          const std::string& id);
// The body of GET /v1/responses/ID/input_items: one page of the response's input. `query`: limit (1
// to 100, default 20), order (desc, asc), after (an item's id).
ApiResult<std::string> InputItemsBody(ResponseStore& store, const std::string& tenant,
                                      const std::string& id, std::string_view query);
ApiResult<std::string> DeleteResponse(ResponseStore& store, const std::string& tenant,
                                      const std::string& id);

// The body of POST /v1/responses/input_tokens: the number of prompt tokens of such a request.
ApiResult<std::string> CountInputTokens(const TextModel& model, ResponseStore& store,
                                        const std::string& tenant, const std::string& body);

}  // namespace aisp
