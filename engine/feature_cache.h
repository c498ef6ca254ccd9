// FeatureCache: features of positions whose KV may be in the prefix cache, for proposers: on a
// prefix hit those positions are not computed again. Keyed by content in units of a few tokens,
// independent of the KV; least recently used first out. Host memory. Engine thread only.
#pragma once

#include <cstddef>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/hash.h"

namespace aisp {

// A sequence's newest rows, of a unit that is not complete yet.
struct FeatureTail {
  int32_t begin = 0;  // the first row's position
  std::vector<float> rows;
  // Hash of all tokens of the first `chained` units.
  Hash128 chain;
  int32_t chained = 0;
};

struct FeatureRun {
  int32_t begin = 0;        // the first row's position
  std::vector<float> rows;  // [positions, size]
};

class FeatureCache {
 public:
  static constexpr int32_t kUnit = 16;  // tokens; KV blocks are multiples of it

  // `size`: elements of a row; `most_bytes`: limit of all rows together.
  FeatureCache(int32_t size, size_t most_bytes);

  // Adds rows of positions from `begin` on of the sequence `tokens` under `root`. Positions already
  // in `tail` are skipped; after a gap `tail` starts anew.
  void Append(const Hash128& root, std::span<const TokenId> tokens, int32_t begin,
              std::span<const float> rows, FeatureTail* tail);
  // The known rows of positions in [begin, end) that reach `end` without a gap; empty if the last
  // one is unknown, or if `tokens` do not cover its whole unit.
  FeatureRun Before(const Hash128& root, std::span<const TokenId> tokens, int32_t begin,
                    int32_t end);

  size_t bytes() const { return bytes_; }

 private:
  struct Unit {
    std::vector<float> rows;  // of its last positions
    std::list<Hash128>::iterator used;
  };
  void Keep(const Hash128& key, std::span<const float> rows);
  // The unit's rows, of its last positions; empty: unknown.
  std::span<const float> Find(const Hash128& key);

  const size_t size_, most_bytes_;
  size_t bytes_ = 0;
  std::unordered_map<Hash128, Unit> units_;
  std::list<Hash128> used_;  // newest first
};

}  // namespace aisp
