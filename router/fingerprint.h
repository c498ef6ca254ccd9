// What must be equal between a router and its workers, compared field by field. Pure functions: any thread.
#pragma once

#include "common/result.h"
#include "worker.pb.h"

namespace aisp {

// OK, or FAILED_PRECONDITION naming the first field that differs with both values. kv_layout.num_blocks may differ.
Status CheckFingerprint(const v1::Fingerprint& expected, const v1::Fingerprint& actual);

}  // namespace aisp
