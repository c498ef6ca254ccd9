// FeatureCache: features of positions whose KV a prefix cache may hold, for proposers that read
// them: a prompt that begins like one of before is not computed again there, so its features would
// be missing. Kept by content, in units of a few tokens, whatever becomes of the KV; what was used
// longest ago goes first. In the host's memory. Engine thread only.
#pragma once

#include <cstddef>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/hash.h"

namespace aisp {

// A sequence's newest rows, of a unit that is not whole yet.
struct FeatureTail {
  int32_t begin = 0;  // the first row's position
  std::vector<float> rows;
  // Stands for all tokens of the first `chained` units.
  Hash128 chain;
  int32_t chained = 0;
};

struct FeatureRun {
  int32_t begin = 0;        // the first row's position
  std::vector<float> rows;  // [positions, size]
};

class FeatureCache {
 public:
  static constexpr int32_t kUnit = 16;  // tokens; blocks of KV are multiples of it

  // `size`: elements of a row; `most_bytes`: of all rows together.
  FeatureCache(int32_t size, size_t most_bytes);

  // Rows of positions from `begin` on of the sequence `tokens` under `root`. Positions that `tail`
  // has seen are left out; behind a gap it begins anew.
  void Append(const Hash128& root, std::span<const TokenId> tokens, int32_t begin,
              std::span<const float> rows, FeatureTail* tail);
  // What is known without gap of positions in [begin, end), up to the last of them; no row where
  // that one is not known.
  FeatureRun Before(const Hash128& root, std::span<const TokenId> tokens, int32_t begin,
                    int32_t end);

  size_t bytes() const { return bytes_; }

 private:
  struct Unit {
    std::vector<float> rows;  // of its last positions
    std::list<Hash128>::iterator used;
  };
  void Keep(const Hash128& key, std::span<const float> rows);
  // The unit's rows, of its last positions; empty: not known.
  std::span<const float> Find(const Hash128& key);

  const size_t size_, most_bytes_;
  size_t bytes_ = 0;
  std::unordered_map<Hash128, Unit> units_;
  std::list<Hash128> used_;  // the newest first
};

}  // namespace aisp
