// What a worker computes in, once its device is open: the part of its fingerprint that decides the
// bits of its KV. Whoever adds a setting that changes those bits adds it here. Any thread.
#pragma once

#include <string>

#include "config/config.h"
#include "server/backend.h"
#include "server/served_model.h"

namespace aisp {

// "cuda bf16; weights nvfp4; activations bf16; kv fp8_e4m3 x 1".
std::string ArithmeticOf(const Config& config, const ServedModel& served, const Backend& backend);

// The served model's with the arithmetic and the KV layout of this worker.
v1::Fingerprint WorkerFingerprint(const Config& config, const ServedModel& served,
                                  const Backend& backend);

}  // namespace aisp
