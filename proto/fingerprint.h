// The one check of fingerprints: between a router and a worker, between workers of one router, and
// between two workers that exchange KV. Pure functions: any thread.
#pragma once

#include <string>
#include <string_view>

#include "common.pb.h"
#include "common/result.h"

namespace aisp {

// OK, or FAILED_PRECONDITION that names the first field that differs, both sides and both values.
// Not compared: kv_layout.num_blocks; what a side leaves open (a router knows no arithmetic, block
// size or KV dtype of its own); the arithmetic of two sides that both allow mixed precision.
Status CheckFingerprints(const v1::Fingerprint& own, std::string_view own_name,
                         const v1::Fingerprint& peer, std::string_view peer_name);

// What stands for the weights in a prefix root: KV of equal tokens is shared only where this is
// equal. With mixed precision that is a root of its own, apart from that of any pure pool.
std::string PrefixDigest(const v1::Fingerprint& fingerprint);

}  // namespace aisp
