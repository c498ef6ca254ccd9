// /v1/responses: a request for a response as a chat, its answer as a response object, and those
// that are kept for later (frontend/response_store.h). Any thread; what they are given outlives
// them.
#pragma once

#include <memory>
#include <string>

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
ApiResult<std::string> DeleteResponse(ResponseStore& store, const std::string& tenant,
                                      const std::string& id);

}  // namespace aisp
