// KvConversion: converts KV between the formats of two pools. Planned once, when a writer connects
// to a reader's pool; unsupported conversions are refused then.
//
// Blocks of another size hold the same rows (one head's K or V of one token) at other offsets.
// Numbers are rounded to nearest, ties to even; fp8 saturates at its largest value (448), as
// computed KV in an fp8 pool does. There are no scales (all are 1). Layers, heads and head size
// must be equal.
//
// Pure functions over pools in host memory: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"
#include "kvcache/layout.h"

namespace aisp {

class KvConversion {
 public:
  KvConversion() = default;
  // FAILED_PRECONDITION: names what cannot be converted, and both values.
  static Result<KvConversion> Plan(const KvLayout& from, const KvLayout& to);

  const KvLayout& from() const { return from_; }
  const KvLayout& to() const { return to_; }
  // Blocks are copied unchanged.
  bool whole() const { return from_.SameShape(to_); }
  // The number format changes, which needs an intermediate buffer.
  bool converts() const { return from_.dtype != to_.dtype; }
  // "f32 in blocks of 16 to bf16 in blocks of 64"; "" if blocks are copied unchanged.
  std::string ToString() const;

  // One layer of a reader's block: tokens [begin, end) of a sequence, starting at a block boundary
  // and ending at most at the next. `source`: the sequence's blocks in `pool`, from token
  // `source_first` on. Writes to().LayerBlockBytes() bytes to `out`; slots from `end` on are zero.
  void MakeBlock(const std::byte* pool, int32_t layer, std::span<const BlockId> source,
                 int32_t begin, int32_t end, int32_t source_first, std::byte* out) const;

  // The RowsCheck of each of the reader's blocks in [begin, end); `source` starts at token 0.
  std::vector<uint64_t> Checks(const std::byte* pool, std::span<const BlockId> source,
                               int32_t begin, int32_t end) const;

 private:
  KvLayout from_;
  KvLayout to_;
};

// Converts `n` numbers between f32, bf16 and fp8_e4m3.
void ConvertNumbers(DType from, const std::byte* x, DType to, std::byte* y, size_t n);

// Checksum of a block's first `tokens` tokens in all layers, independent of the rows' origin;
// kvcache/block_check.h is the one for whole blocks.
uint64_t RowsCheck(const KvLayout& layout, const std::byte* pool, BlockId block, int32_t tokens);

}  // namespace aisp
