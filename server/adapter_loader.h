// How a worker reads and converts LoRA adapters beside its engine thread.
#pragma once

#include <functional>

#include "config/config.h"
#include "model/model.h"
#include "net/grpc_links.h"
#include "server/work_pool.h"
#include "worker/adapter_keeper.h"

namespace aisp {

// `post` brings answers to the engine's thread. Without model.runtime_lora everything is refused.
// Model and pool outlive what was asked of it.
AdapterKeeper::Loader MakeAdapterLoader(const Config& config, const Model* model, WorkPool* pool,
                                        Poster post);

}  // namespace aisp
