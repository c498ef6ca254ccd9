#include "engine/feature_cache.h"

#include <algorithm>
#include <iterator>

namespace aisp {
namespace {

std::span<const TokenId> UnitOf(std::span<const TokenId> tokens, int32_t unit) {
  constexpr auto kSize = static_cast<size_t>(FeatureCache::kUnit);
  return tokens.subspan(static_cast<size_t>(unit) * kSize, kSize);
}

}  // namespace

FeatureCache::FeatureCache(int32_t size, size_t most_bytes)
    : size_(static_cast<size_t>(size)), most_bytes_(most_bytes) {}

void FeatureCache::Append(const Hash128& root, std::span<const TokenId> tokens, int32_t begin,
                          std::span<const float> rows, FeatureTail* tail) {
  const auto known = static_cast<int32_t>(tail->rows.size() / size_);
  const int32_t seen = tail->begin + known;
  const int32_t end = begin + static_cast<int32_t>(rows.size() / size_);
  if (end <= seen) return;
  if (begin > seen) {
    tail->rows.clear();
    tail->begin = begin;
  } else {
    rows = rows.subspan(static_cast<size_t>(seen - begin) * size_);
  }
  tail->rows.insert(tail->rows.end(), rows.begin(), rows.end());
  const int32_t whole = std::min(end, static_cast<int32_t>(tokens.size())) / kUnit;
  size_t done = 0;
  for (int32_t unit = tail->begin / kUnit; unit < whole; ++unit) {
    if (tail->chained == 0) tail->chain = root;
    for (; tail->chained <= unit; ++tail->chained)
      tail->chain = HashChain(tail->chain, UnitOf(tokens, tail->chained));
    const auto count = static_cast<size_t>((unit + 1) * kUnit - tail->begin);
    Keep(tail->chain, std::span<const float>(tail->rows).subspan(done, count * size_));
    done += count * size_;
    tail->begin += static_cast<int32_t>(count);
  }
  tail->rows.erase(tail->rows.begin(), tail->rows.begin() + static_cast<ptrdiff_t>(done));
}

FeatureRun FeatureCache::Before(const Hash128& root, std::span<const TokenId> tokens, int32_t begin,
                                int32_t end) {
  FeatureRun run{end, {}};
  const int32_t units = (end + kUnit - 1) / kUnit;
  if (begin >= end || std::ssize(tokens) < units * kUnit) return run;
  std::vector<Hash128> keys;
  keys.reserve(static_cast<size_t>(units));
  Hash128 chain = root;
  for (int32_t unit = 0; unit < units; ++unit)
    keys.push_back(chain = HashChain(chain, UnitOf(tokens, unit)));
  std::vector<std::span<const float>> parts;  // in reverse order
  for (int32_t unit = units - 1; unit >= begin / kUnit; --unit) {
    const std::span<const float> rows = Find(keys[static_cast<size_t>(unit)]);
    const int32_t last = (unit + 1) * kUnit;
    const int32_t known = last - static_cast<int32_t>(rows.size() / size_);
    const int32_t from = std::max(begin, known), to = std::min(end, last);
    if (from >= to) break;
    parts.push_back(rows.subspan(static_cast<size_t>(from - known) * size_,
                                 static_cast<size_t>(to - from) * size_));
    run.begin = from;
    if (from > unit * kUnit) break;
  }
  for (auto part = parts.rbegin(); part != parts.rend(); ++part)
    run.rows.insert(run.rows.end(), part->begin(), part->end());
  return run;
}

void FeatureCache::Keep(const Hash128& key, std::span<const float> rows) {
  if (Find(key).size() >= rows.size() || rows.size_bytes() > most_bytes_) return;
  Unit& unit = units_[key];
  if (unit.rows.empty()) unit.used = used_.insert(used_.begin(), key);
  bytes_ += rows.size_bytes() - unit.rows.size() * sizeof(float);
  unit.rows.assign(rows.begin(), rows.end());
  for (; bytes_ > most_bytes_; used_.pop_back()) {
    const auto oldest = units_.find(used_.back());
    bytes_ -= oldest->second.rows.size() * sizeof(float);
    units_.erase(oldest);
  }
}

std::span<const float> FeatureCache::Find(const Hash128& key) {
  const auto it = units_.find(key);
  if (it == units_.end()) return {};
  used_.splice(used_.begin(), used_, it->second.used);
  return it->second.rows;
}

}  // namespace aisp
