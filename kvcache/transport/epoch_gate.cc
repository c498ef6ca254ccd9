#include "kvcache/transport/epoch_gate.h"

#include <fmt/format.h>

#include <algorithm>

namespace aisp {

void EpochGate::Allow(Epoch epoch, std::span<const BlockCopy> allowed) {
  std::vector<Range>& ranges = ranges_[epoch];
  for (const BlockCopy& copy : allowed)
    ranges.push_back({copy.dst_offset, copy.dst_offset + copy.bytes});
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  size_t merged = 0;
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin <= ranges[merged].end) {
      ranges[merged].end = std::max(ranges[merged].end, ranges[i].end);
    } else {
      ranges[++merged] = ranges[i];
    }
  }
  if (!ranges.empty()) ranges.resize(merged + 1);
}

Status EpochGate::Check(Epoch epoch, uint64_t offset, uint64_t bytes) const {
  const auto it = ranges_.find(epoch);
  if (it == ranges_.end()) {
    return FailedPrecondition(fmt::format("epoch {} was revoked or never granted", epoch.value));
  }
  const std::vector<Range>& ranges = it->second;
  auto after =
      std::upper_bound(ranges.begin(), ranges.end(), offset,
                       [](uint64_t value, const Range& range) { return value < range.begin; });
  if (after != ranges.begin()) {
    const Range& range = *std::prev(after);
    if (bytes <= range.end - range.begin && offset <= range.end - bytes) return {};
  }
  return Fail(Code::kOutOfRange, fmt::format("{} bytes at {} were not granted to epoch {}", bytes,
                                             offset, epoch.value));
}

}  // namespace aisp
