// The KV layout in its wire form, as fingerprints carry it. Pure functions: any thread.
#pragma once

#include "common.pb.h"
#include "common/result.h"
#include "kvcache/layout.h"

namespace aisp {

v1::KvLayoutDesc DescribeLayout(const KvLayout& layout);

// The layout that a peer says its pool has. INVALID_ARGUMENT: no pool is like that.
Result<KvLayout> PeerLayout(const v1::KvLayoutDesc& peer);

}  // namespace aisp
