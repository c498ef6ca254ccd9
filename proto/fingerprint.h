// The one check of fingerprints: between a router and a worker, between workers of one router, and
// between two workers that exchange KV. Pure functions: any thread.
#pragma once

#include <string>
#include <string_view>

#include "common.pb.h"
#include "common/result.h"

namespace aisp {

// OK, or FAILED_PRECONDITION that names the first field that differs, both sides and both values.
// Not compared: num_blocks, what a side leaves open, and the arithmetic of two sides that both
// allow mixed precision. Blocks may be of other sizes where they can be converted
// (kvcache/kv_conversion.h), and with mixed precision KV of other dtypes.
Status CheckFingerprints(const v1::Fingerprint& own, std::string_view own_name,
                         const v1::Fingerprint& peer, std::string_view peer_name);

// What stands for the weights and the format of KV in a prefix root (which then needs no dtype):
// KV of equal tokens is shared only where this is equal. With mixed precision that is a root of its
// own, apart from that of any pure pool, and one for all formats.
std::string PrefixDigest(const v1::Fingerprint& fingerprint);

}  // namespace aisp
