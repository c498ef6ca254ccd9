// The admin port's calls that load and unload LoRA adapters at runtime, compatible with vLLM's:
//
// POST /v1/load_lora_adapter     {"lora_name": NAME, "lora_path": FOLDER, "load_inplace": BOOL}
// POST /v1/unload_lora_adapter   {"lora_name": NAME}
//
// 200 when done; 400 with the reason when it cannot be loaded; 404 for an unknown name; 403 when
// the settings forbid it; 409 when the workers' files differ; 503 without workers. The I/O thread.
#pragma once

#include <memory>
#include <string_view>

#include "proto/http_exchange.h"
#include "router/router.h"

namespace aisp {

bool IsLoraAdminPath(std::string_view path);

// The caller is authorized. `allowed`: model.runtime_lora. The router outlives the exchange.
void AnswerLoraAdmin(const std::shared_ptr<HttpExchange>& exchange, Router* router, bool allowed);

}  // namespace aisp
