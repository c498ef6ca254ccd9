// The KV layout in its wire form, as fingerprints carry it. Pure functions: any thread.
#pragma once

#include "common.pb.h"
#include "common/result.h"
#include "kvcache/layout.h"

namespace aisp {

v1::KvLayoutDesc DescribeLayout(const KvLayout& layout);

// The layout of a peer's pool whose fingerprint matched: ours, with the peer's number of blocks.
KvLayout PeerLayout(const KvLayout& own, const v1::KvLayoutDesc& peer);

}  // namespace aisp
