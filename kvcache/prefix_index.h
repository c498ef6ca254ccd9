// PrefixIndex: which block holds which published prefix. Part of BlockManager; knows no pins.
//
// A block is found by the chain hash of its last unit. It is a hit only if its parent is the
// preceding block of the lookup, the chain value before it is equal, and its tokens are equal: a
// hash collision is a miss, never wrong content. Every published block's parent is published (the
// pool evicts children first), so a lookup from the root reaches all.
//
// Unit hashes: a block of k units has k of them. Blocks that differ late share the hashes of their
// first units, so those are counted, and reported as removed with the last block that has them.
//
// One thread; allocates only in the constructor (Erase and HashesOf append to the caller's vector).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "common/hash.h"
#include "common/ids.h"
#include "common/prefix_hash.h"
#include "kvcache/hash_table.h"

namespace aisp {

// The hash of one unit after `parent`; HashChain, except in tests of collisions.
using UnitHashFunction = Hash128 (*)(const Hash128& parent, std::span<const TokenId> unit);

class PrefixIndex {
 public:
  static constexpr int32_t kNone = -1;
  static constexpr int32_t kMaxBlockTokens = 128;

  PrefixIndex(int32_t num_blocks, int32_t block_tokens, UnitHashFunction unit_hash);
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // A position in a chain: after `block`, whose chain value is `chain`.
  struct Position {
    int32_t block = kNone;
    Hash128 chain;
  };
  static Position AtRoot(const Hash128& root) { return {kNone, root}; }
  // After a published block.
  Position After(int32_t block) const;

  struct UnitArray {
    std::array<Hash128, kMaxBlockTokens / kHashUnitTokens> hashes;
  };
  // The unit hashes of the block that follows `position` with these `block_tokens` tokens.
  UnitArray HashUnits(const Position& position, std::span<const TokenId> tokens) const;

  enum class Found { kHit, kAbsent, kCollision };
  // Looks up the block that holds `tokens` after `*position`; on a hit advances the position.
  Found Step(Position* position, std::span<const TokenId> tokens, const UnitArray& units) const;

  // The block published right after `position` that shares most leading tokens with `tokens`, and
  // their number. A block with all of them is always found; else the newest kMostSiblings are
  // compared.
  static constexpr int kMostSiblings = 64;
  struct Nearest {
    int32_t block = kNone;
    int32_t tokens = 0;  // 0: no block shares any
  };
  Nearest NearestAfter(const Position& position, std::span<const TokenId> tokens) const;

  // Publishes `block` after `*position` (Step returned kAbsent) and advances the position.
  void Insert(int32_t block, Position* position, std::span<const TokenId> tokens,
              const UnitArray& units);
  // Unpublishes a leaf. Appends the unit hashes that no published block has any more.
  void Erase(int32_t block, std::vector<Hash128>* gone);
  void Clear();
  // A published block and all its published descendants, children before parents.
  std::vector<int32_t> Subtree(int32_t top) const;

  bool Published(int32_t block) const { return nodes_[Index(block)].published; }
  int32_t Parent(int32_t block) const { return nodes_[Index(block)].parent; }
  bool HoldsTokens(int32_t block, std::span<const TokenId> tokens) const;
  // Appends all unit hashes of a published block.
  void HashesOf(int32_t block, std::vector<Hash128>* out) const;
  size_t size() const { return by_hash_.size(); }

  // Records that a private block has the content of the published `twin`, so that publishing its
  // successor need not start at the root.
  void SetTwin(int32_t block, int32_t twin);
  void ClearTwin(int32_t block) { nodes_[Index(block)].twin = kNone; }
  // The published block with the content of `block`: itself, its twin if still published, or kNone.
  int32_t Canonical(int32_t block) const;

  void CheckInvariants() const;

 private:
  struct Node {
    Hash128 before;  // the chain value before this block: the root, or the parent's last unit hash
    int32_t parent = kNone;
    int32_t children = 0;
    int32_t newest_child = kNone;
    // siblings
    int32_t newer = kNone, older = kNone;
    int32_t twin = kNone;
    uint32_t twin_generation = 0;
    uint32_t generation = 0;  // counts publications of this block
    bool published = false;
  };
  int32_t NewestAfter(const Position& position) const;
  void SetNewest(const Node& child, int32_t newest);
  void Link(int32_t block);
  void Unlink(int32_t block);
  size_t Index(int32_t block) const;
  std::span<const TokenId> TokensOf(int32_t block) const;
  std::span<const Hash128> UnitsOf(int32_t block) const;

  const int32_t block_tokens_;
  const size_t units_;
  const UnitHashFunction unit_hash_;
  std::vector<Node> nodes_;
  std::vector<TokenId> tokens_;  // [block][block_tokens]
  std::vector<Hash128> hashes_;  // [block][units]
  HashTable by_hash_;            // last unit's hash -> block
  HashTable shared_units_;       // other units' hashes -> number of published blocks that have them
  HashTable roots_;              // root -> the newest block after it
};

}  // namespace aisp
