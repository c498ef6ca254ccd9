// KvLayout: where a KV value is in a pool. One layout per layer group; all its layers have the same
// shape.
//
// A pool is [layer][block][kv_head][K|V][slot][head_dim]: a (layer, block) is contiguous, and so is
// any run of heads in it, which a tensor-parallel peer of another width needs. Pure values: any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/ids.h"
#include "kernels/device/dtype.h"

namespace aisp {

struct KvLayout {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_tokens = 16;  // 16..128, a multiple of kHashUnitTokens
  DType dtype = DType::kF32;
  int32_t num_blocks = 0;

  // Bytes of one (layer, block).
  size_t LayerBlockBytes() const {
    return size_t{2} * static_cast<size_t>(num_kv_heads) * static_cast<size_t>(head_dim) *
           static_cast<size_t>(block_tokens) * DTypeBytes(dtype);
  }
  size_t BlockBytes() const { return LayerBlockBytes() * static_cast<size_t>(num_layers); }
  size_t PoolBytes() const { return BlockBytes() * static_cast<size_t>(num_blocks); }
  size_t BytesPerToken() const { return BlockBytes() / static_cast<size_t>(block_tokens); }
  size_t Offset(int32_t layer, BlockId block) const {
    return (static_cast<size_t>(layer) * static_cast<size_t>(num_blocks) +
            static_cast<size_t>(block.value)) *
           LayerBlockBytes();
  }
  int32_t BlocksFor(int32_t tokens) const { return (tokens + block_tokens - 1) / block_tokens; }

  // Whether blocks can be copied between the pools unchanged (all but num_blocks equal).
  bool SameShape(const KvLayout& o) const {
    return num_layers == o.num_layers && num_kv_heads == o.num_kv_heads && head_dim == o.head_dim &&
           block_tokens == o.block_tokens && dtype == o.dtype;
  }
};

}  // namespace aisp
