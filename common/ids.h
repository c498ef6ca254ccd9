// Strong ids: one type per kind of number, so that a block id is never passed where a sequence id
// is meant.
#pragma once

#include <cstdint>
#include <functional>

namespace aisp {

// A typed integer: `Tag` makes ids of the same width different types.
template <typename Tag, typename Rep>
struct StrongId {
  Rep value{};

  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep v) : value(v) {}
  friend constexpr auto operator<=>(const StrongId&, const StrongId&) = default;
};

using TokenId = int32_t;

// A sequence inside one engine; unique for the life of the process.
using SequenceId = StrongId<struct SequenceTag, uint64_t>;
// A block of one BlockManager's pool, 0 <= value < num_blocks.
using BlockId = StrongId<struct BlockTag, int32_t>;
// A grant of blocks to a remote writer; unique for the life of the granting process, never reused.
using Epoch = StrongId<struct EpochTag, uint64_t>;

}  // namespace aisp

template <typename Tag, typename Rep>
struct std::hash<aisp::StrongId<Tag, Rep>> {
  size_t operator()(const aisp::StrongId<Tag, Rep>& id) const noexcept {
    return std::hash<Rep>{}(id.value);
  }
};
