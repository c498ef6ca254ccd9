// The admin port's calls that load and unload LoRA adapters while requests run, as clients of vLLM
// know them:
//
//   POST /v1/load_lora_adapter     {"lora_name": NAME, "lora_path": FOLDER, "load_inplace": BOOL}
//   POST /v1/unload_lora_adapter   {"lora_name": NAME}
//
// 200 when it is done; 400 for what cannot be loaded, with why; 404 for an unknown name; 403 where
// the settings do not allow it; 409 where the workers' files differ; 503 without workers. The I/O
// thread.
#pragma once

#include <memory>
#include <string_view>

#include "proto/http_exchange.h"
#include "router/router.h"

namespace aisp {

bool IsLoraAdminPath(std::string_view path);

// Who calls may. `allowed`: model.runtime_lora. The router outlives the exchange.
void AnswerLoraAdmin(const std::shared_ptr<HttpExchange>& exchange, Router* router, bool allowed);

}  // namespace aisp
