// Loads and converts a worker's LoRA adapters off its engine thread.
#pragma once

#include <functional>

#include "config/config.h"
#include "model/model.h"
#include "net/grpc_links.h"
#include "server/work_pool.h"
#include "worker/adapter_keeper.h"

namespace aisp {

// `post` runs the results on the engine's thread. Without model.runtime_lora all loads are refused.
// `model` and `pool` outlive every load.
AdapterKeeper::Loader MakeAdapterLoader(const Config& config, const Model* model, WorkPool* pool,
                                        Poster post);

}  // namespace aisp
