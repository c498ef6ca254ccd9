// The only check of fingerprints: between router and worker, between workers of one router, and
// between workers that exchange KV. Pure functions: any thread.
#pragma once

#include <string>
#include <string_view>

#include "common.pb.h"
#include "common/result.h"

namespace aisp {

// OK, or FAILED_PRECONDITION with the first field that differs and both sides' values. Ignores
// num_blocks, fields unset on a side, and arithmetic if both sides allow mixed precision. Block
// sizes may differ if convertible (kvcache/kv_conversion.h), with mixed precision also the KV
// dtype.
Status CheckFingerprints(const v1::Fingerprint& own, std::string_view own_name,
                         const v1::Fingerprint& peer, std::string_view peer_name);

// Represents weights and KV format in a prefix root (which then needs no dtype): KV is shared only
// if it is equal. With mixed precision it is one separate value for all formats.
std::string PrefixDigest(const v1::Fingerprint& fingerprint);

}  // namespace aisp
