// KvConversion: how KV in the format of one pool becomes KV in that of another. Planned once, when
// a writer connects to a reader's pool; what cannot be converted is refused there.
//
// Blocks of another size hold the same rows (a row: one head's K or V of one token) in other
// places. Numbers of another format are rounded to nearest, ties to even; fp8 keeps to its largest
// value what is beyond it (448), as a pool of that format does with KV that is computed for it: it
// has no scales (all are 1), so none travel. Heads, their size and layers must be the same.
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
  // FAILED_PRECONDITION names what cannot be converted, and both values.
  static Result<KvConversion> Plan(const KvLayout& from, const KvLayout& to);

  const KvLayout& from() const { return from_; }
  const KvLayout& to() const { return to_; }
  // Blocks go as they are.
  bool whole() const { return from_.SameShape(to_); }
  // Numbers change: it takes memory in between.
  bool converts() const { return from_.dtype != to_.dtype; }
  // "f32 in blocks of 16 to bf16 in blocks of 64"; "" where blocks go as they are.
  std::string ToString() const;

  // One layer of a block of the reader's: the tokens [begin, end) of a sequence, from a boundary of
  // its blocks to at most the next. `source`: the sequence's blocks in `pool`, from token
  // `source_first` on. Writes to().LayerBlockBytes() to `out`; slots behind `end` are zeros.
  void MakeBlock(const std::byte* pool, int32_t layer, std::span<const BlockId> source,
                 int32_t begin, int32_t end, int32_t source_first, std::byte* out) const;

  // The check of each block of the reader's in [begin, end), as RowsCheck finds it there; `source`
  // from token 0 on.
  std::vector<uint64_t> Checks(const std::byte* pool, std::span<const BlockId> source,
                               int32_t begin, int32_t end) const;

 private:
  KvLayout from_;
  KvLayout to_;
};

// `n` numbers of f32, bf16 or fp8_e4m3 as numbers of another of them.
void ConvertNumbers(DType from, const std::byte* x, DType to, std::byte* y, size_t n);

// The check of a block's first `tokens` tokens in all layers, which says the same wherever their
// rows came from; kvcache/block_check.h has that of whole blocks.
uint64_t RowsCheck(const KvLayout& layout, const std::byte* pool, BlockId block, int32_t tokens);

}  // namespace aisp
