// Converts the KV layout to and from its wire form in fingerprints. Pure functions: any thread.
#pragma once

#include "common.pb.h"
#include "common/result.h"
#include "kvcache/layout.h"

namespace aisp {

v1::KvLayoutDesc DescribeLayout(const KvLayout& layout);

// The layout that a peer reports for its pool. INVALID_ARGUMENT: impossible values.
Result<KvLayout> PeerLayout(const v1::KvLayoutDesc& peer);

}  // namespace aisp
