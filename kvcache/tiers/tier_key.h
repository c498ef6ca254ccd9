// TierKey: the name of a block's content in the tiers below the device pool.
//
// SHA-256 over the name of the block before it (or the prefix root) and its tokens, cut to 128
// bits. The device's index finds blocks by XXH3 and compares tokens and parents; a tier outlives
// the parents that could be compared, and XXH3 collides for whoever wants it to, so here the name
// alone has to say everything before the block. The root holds weights, KV dtype and the tenant's
// scope.
//
// One thread a hasher.
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
  // Appends the names of the whole blocks of `tokens` that `*keys` does not have yet; `tokens`
  // start at position 0, and the first keys->size() blocks of it are those named already.
  void Extend(const Hash128& root, std::span<const TokenId> tokens, int32_t block_tokens,
              std::vector<Hash128>* keys);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace aisp
