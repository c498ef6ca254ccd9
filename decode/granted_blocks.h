// What a decode worker does with blocks that it grants to a writer, whatever for. Pure but for the
// transport: the engine thread.
#pragma once

#include <cstddef>
#include <span>

#include <google/protobuf/repeated_field.h>

#include "common/ids.h"
#include "common/result.h"
#include "kvcache/layout.h"
#include "kvcache/transport/kv_transport.h"

namespace aisp {

// `transport` may write `blocks` of the pool that it serves, in all layers, under `epoch`.
void AllowWrites(const KvLayout& layout, std::span<const BlockId> blocks, Epoch epoch,
                 KvTransport* transport);

// What has arrived, by its writer's word: `tokens` in `blocks` of `pool`.
struct Arrived {
  std::span<const BlockId> blocks;
  int32_t tokens = 0;
  bool converted = false;  // on the way; then it is checked row by row
};
// DATA_LOSS: a block of `pool` is not what its writer sent, by the checks that it took.
Status CheckArrived(const KvLayout& layout, const std::byte* pool, const Arrived& arrived,
                    const google::protobuf::RepeatedField<uint64_t>& checks);

}  // namespace aisp
