// What must be equal between two workers that exchange KV, and the KV layout in its wire form. Pure functions: any thread.
#pragma once

#include "common.pb.h"
#include "common/result.h"
#include "kvcache/layout.h"

namespace aisp {

// OK, or FAILED_PRECONDITION that names the first field that differs and both values. kv_layout.num_blocks may differ.
Status MatchFingerprints(const v1::Fingerprint& own, const v1::Fingerprint& peer);

v1::KvLayoutDesc DescribeLayout(const KvLayout& layout);

// The layout of a peer's pool whose fingerprint matched: ours, with the peer's number of blocks.
KvLayout PeerLayout(const KvLayout& own, const v1::KvLayoutDesc& peer);

}  // namespace aisp
