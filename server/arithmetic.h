// The number formats that a worker computes in, once its device is open: the part of its
// fingerprint that determines the bits of its KV. Every setting that changes those bits must be
// added here. Any thread.
#pragma once

#include <string>

#include "config/config.h"
#include "server/backend.h"
#include "server/served_model.h"

namespace aisp {

// "cuda bf16; weights nvfp4; activations bf16; kv fp8_e4m3 x 1".
std::string ArithmeticOf(const Config& config, const ServedModel& served, const Backend& backend);

// The served model's fingerprint with this worker's arithmetic and KV layout.
v1::Fingerprint WorkerFingerprint(const Config& config, const ServedModel& served,
                                  const Backend& backend);

}  // namespace aisp
