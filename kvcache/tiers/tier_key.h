// TierKey: identifies a block's content in the tiers below the device pool.
//
// SHA-256 over the preceding block's key (or the prefix root) and the block's tokens, cut to 128
// bits. The device's index uses XXH3 and compares tokens and parents. A tier outlives the parents
// it could compare with, and XXH3 collisions can be forged, so here the key alone must identify the
// whole prefix. The root covers weights, KV dtype and the tenant's scope.
//
// One thread per hasher.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "common/hash.h"
#include "common/ids.h"

namespace aisp {

class TierHasher {
 public:
  TierHasher();
  ~TierHasher();

  Hash128 Next(const Hash128& before, std::span<const TokenId> block);
  // Appends the keys of whole blocks of `tokens` that `*keys` lacks; `tokens` start at position 0,
  // and `*keys` already holds those of the first keys->size() blocks.
  void Extend(const Hash128& root, std::span<const TokenId> tokens, int32_t block_tokens,
              std::vector<Hash128>* keys);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace aisp
