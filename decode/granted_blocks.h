// Handling of blocks granted to a writer. Pure except for the transport: the engine thread.
#pragma once

#include <cstddef>
#include <span>

#include <google/protobuf/repeated_field.h>

#include "common/ids.h"
#include "common/result.h"
#include "kvcache/layout.h"
#include "kvcache/transport/kv_transport.h"

namespace aisp {

// Allows writes to `blocks` in all layers of the pool that `transport` serves, under `epoch`.
void AllowWrites(const KvLayout& layout, std::span<const BlockId> blocks, Epoch epoch,
                 KvTransport* transport);

// Reported as written: `tokens` in `blocks` of `pool`.
struct Arrived {
  std::span<const BlockId> blocks;
  int32_t tokens = 0;
  bool converted = false;  // in transit; then it is checked row by row
};
// DATA_LOSS: a block of `pool` does not match its writer's check.
Status CheckArrived(const KvLayout& layout, const std::byte* pool, const Arrived& arrived,
                    const google::protobuf::RepeatedField<uint64_t>& checks);

}  // namespace aisp
