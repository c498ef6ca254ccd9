#include "kvcache/prefix_index.h"

#include <algorithm>

#include "common/check.h"

namespace aisp {

PrefixIndex::PrefixIndex(int32_t num_blocks, int32_t block_tokens, UnitHashFunction unit_hash)
    : block_tokens_(block_tokens),
      units_(static_cast<size_t>(block_tokens / kHashUnitTokens)),
      unit_hash_(unit_hash),
      nodes_(static_cast<size_t>(num_blocks)),
      tokens_(nodes_.size() * static_cast<size_t>(block_tokens)),
      hashes_(nodes_.size() * units_),
      by_hash_(nodes_.size()),
      shared_units_(nodes_.size() * (units_ - 1)),
      roots_(nodes_.size()) {
  AISP_CHECK_MSG(block_tokens >= kHashUnitTokens && block_tokens <= kMaxBlockTokens &&
                     block_tokens % kHashUnitTokens == 0,
                 "block_tokens must be a multiple of 16 between 16 and 128");
}

size_t PrefixIndex::Index(int32_t block) const {
  AISP_CHECK_MSG(block >= 0 && static_cast<size_t>(block) < nodes_.size(),
                 "block id outside the pool");
  return static_cast<size_t>(block);
}

std::span<const TokenId> PrefixIndex::TokensOf(int32_t block) const {
  const size_t n = static_cast<size_t>(block_tokens_);
  return std::span(tokens_).subspan(Index(block) * n, n);
}

std::span<const Hash128> PrefixIndex::UnitsOf(int32_t block) const {
  return std::span(hashes_).subspan(Index(block) * units_, units_);
}

PrefixIndex::Position PrefixIndex::After(int32_t block) const {
  AISP_CHECK(Published(block));
  return {block, UnitsOf(block).back()};
}

PrefixIndex::UnitArray PrefixIndex::HashUnits(const Position& position,
                                              std::span<const TokenId> tokens) const {
  UnitArray units;
  Hash128 chain = position.chain;
  for (size_t i = 0; i < units_; ++i) {
    chain = unit_hash_(chain, tokens.subspan(i * kHashUnitTokens, kHashUnitTokens));
    units.hashes[i] = chain;
  }
  return units;
}

PrefixIndex::Found PrefixIndex::Step(Position* position, std::span<const TokenId> tokens,
                                     const UnitArray& units) const {
  const Hash128& key = units.hashes[units_ - 1];
  const int32_t block = by_hash_.Find(key);
  if (block == HashTable::kAbsent) return Found::kAbsent;
  const Node& node = nodes_[Index(block)];
  if (node.parent != position->block || node.before != position->chain ||
      !std::ranges::equal(TokensOf(block), tokens)) {
    return Found::kCollision;
  }
  *position = {block, key};
  return Found::kHit;
}

int32_t PrefixIndex::NewestAfter(const Position& position) const {
  return position.block != kNone ? nodes_[Index(position.block)].newest_child
                                 : roots_.Find(position.chain);
}

PrefixIndex::Nearest PrefixIndex::NearestAfter(const Position& position,
                                               std::span<const TokenId> tokens) const {
  if (tokens.size() == static_cast<size_t>(block_tokens_)) {
    Position behind = position;
    if (Step(&behind, tokens, HashUnits(position, tokens)) == Found::kHit)
      return {behind.block, block_tokens_};
  }
  Nearest nearest;
  int32_t block = NewestAfter(position);
  for (int looked = 0; block != kNone && looked < kMostSiblings; ++looked) {
    const std::span<const TokenId> held = TokensOf(block);
    const auto shared =
        static_cast<int32_t>(std::ranges::mismatch(held, tokens).in1 - held.begin());
    if (shared > nearest.tokens) nearest = {block, shared};
    block = nodes_[Index(block)].older;
  }
  return nearest;
}

void PrefixIndex::SetNewest(const Node& child, int32_t newest) {
  if (child.parent != kNone) {
    nodes_[Index(child.parent)].newest_child = newest;
  } else if (newest != kNone) {
    roots_.FindOrInsert(child.before) = newest;
  } else {
    roots_.Erase(child.before);
  }
}

void PrefixIndex::Link(int32_t block) {
  Node& node = nodes_[Index(block)];
  node.newer = kNone;
  node.older = NewestAfter({node.parent, node.before});
  if (node.older != kNone) nodes_[Index(node.older)].newer = block;
  SetNewest(node, block);
}

void PrefixIndex::Unlink(int32_t block) {
  const Node& node = nodes_[Index(block)];
  if (node.older != kNone) nodes_[Index(node.older)].newer = node.newer;
  if (node.newer != kNone) {
    nodes_[Index(node.newer)].older = node.older;
  } else {
    SetNewest(node, node.older);
  }
}

void PrefixIndex::Insert(int32_t block, Position* position, std::span<const TokenId> tokens,
                         const UnitArray& units) {
  const size_t index = Index(block);
  Node& node = nodes_[index];
  AISP_CHECK_MSG(!node.published, "a block is published under two prefixes");
  AISP_CHECK(tokens.size() == static_cast<size_t>(block_tokens_));
  node.published = true;
  ++node.generation;
  node.before = position->chain;
  node.parent = position->block;
  if (node.parent != kNone) ++nodes_[Index(node.parent)].children;
  std::ranges::copy(tokens, tokens_.begin() + static_cast<ptrdiff_t>(index * tokens.size()));
  std::copy_n(units.hashes.begin(), units_,
              hashes_.begin() + static_cast<ptrdiff_t>(index * units_));
  for (size_t i = 0; i + 1 < units_; ++i) {
    int32_t& count = shared_units_.FindOrInsert(units.hashes[i]);
    count = count == HashTable::kAbsent ? 1 : count + 1;
  }
  const Hash128& key = units.hashes[units_ - 1];
  int32_t& slot = by_hash_.FindOrInsert(key);
  AISP_CHECK(slot == HashTable::kAbsent);
  slot = block;
  Link(block);
  *position = {block, key};
}

void PrefixIndex::Erase(int32_t block, std::vector<Hash128>* gone) {
  Node& node = nodes_[Index(block)];
  AISP_CHECK_MSG(node.published && node.children == 0, "only a published leaf can be forgotten");
  Unlink(block);
  node.published = false;
  if (node.parent != kNone) --nodes_[Index(node.parent)].children;
  node.parent = kNone;
  const std::span<const Hash128> units = UnitsOf(block);
  for (const Hash128& unit : units.first(units_ - 1)) {
    int32_t& count = shared_units_.FindOrInsert(unit);
    if (--count > 0) continue;
    shared_units_.Erase(unit);
    gone->push_back(unit);
  }
  by_hash_.Erase(units.back());
  gone->push_back(units.back());
}

void PrefixIndex::Clear() {
  for (Node& node : nodes_) {
    node.published = false;
    node.parent = kNone;
    node.children = 0;
    node.newest_child = kNone;
    node.twin = kNone;
  }
  roots_.Clear();
  by_hash_.Clear();
  shared_units_.Clear();
}

std::vector<int32_t> PrefixIndex::Subtree(int32_t top) const {
  enum class Place : uint8_t { kUnknown, kInside, kOutside };
  std::vector<Place> places(nodes_.size(), Place::kUnknown);
  places[Index(top)] = Place::kInside;
  std::vector<int32_t> out{top};
  std::vector<int32_t> path;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].published) continue;
    int32_t block = static_cast<int32_t>(i);
    for (; block != kNone && places[Index(block)] == Place::kUnknown; block = Parent(block))
      path.push_back(block);
    const Place place = block == kNone ? Place::kOutside : places[Index(block)];
    for (; !path.empty(); path.pop_back()) {
      places[Index(path.back())] = place;
      if (place == Place::kInside) out.push_back(path.back());
    }
  }
  std::ranges::reverse(out);
  return out;
}

bool PrefixIndex::HoldsTokens(int32_t block, std::span<const TokenId> tokens) const {
  return std::ranges::equal(TokensOf(block), tokens);
}

void PrefixIndex::HashesOf(int32_t block, std::vector<Hash128>* out) const {
  const std::span<const Hash128> units = UnitsOf(block);
  out->insert(out->end(), units.begin(), units.end());
}

void PrefixIndex::SetTwin(int32_t block, int32_t twin) {
  Node& node = nodes_[Index(block)];
  node.twin = twin;
  node.twin_generation = nodes_[Index(twin)].generation;
}

int32_t PrefixIndex::Canonical(int32_t block) const {
  const Node& node = nodes_[Index(block)];
  if (node.published) return block;
  if (node.twin == kNone) return kNone;
  const Node& twin = nodes_[Index(node.twin)];
  return twin.published && twin.generation == node.twin_generation ? node.twin : kNone;
}

void PrefixIndex::CheckInvariants() const {
  std::vector<int32_t> children(nodes_.size(), 0);
  size_t published = 0, siblings = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (!node.published) continue;
    ++published;
    const int32_t block = static_cast<int32_t>(i);
    AISP_CHECK_MSG(by_hash_.Find(UnitsOf(block).back()) == block,
                   "a published block cannot be found");
    for (const Hash128& unit : UnitsOf(block).first(units_ - 1)) {
      AISP_CHECK(shared_units_.Find(unit) > 0);
    }
    const UnitArray units = HashUnits({node.parent, node.before}, TokensOf(block));
    AISP_CHECK_MSG(std::equal(UnitsOf(block).begin(), UnitsOf(block).end(), units.hashes.begin()),
                   "stored hashes do not belong to the stored tokens");
    if (node.newer == kNone) {
      int32_t listed = NewestAfter({node.parent, node.before});
      AISP_CHECK(listed == block);
      for (; listed != kNone; listed = nodes_[Index(listed)].older) ++siblings;
    }
    if (node.parent == kNone) continue;
    AISP_CHECK(Published(node.parent));
    AISP_CHECK(node.before == UnitsOf(node.parent).back());
    ++children[Index(node.parent)];
  }
  AISP_CHECK(published == by_hash_.size());
  AISP_CHECK_MSG(published == siblings, "a published block is in no list, or in two");
  for (size_t i = 0; i < nodes_.size(); ++i) AISP_CHECK(nodes_[i].children == children[i]);
}

}  // namespace aisp
