#include "frontend/live_stats.h"

#include <algorithm>
#include <cmath>

namespace aisp {
namespace {

constexpr double kFirstMs = 0.1;
constexpr double kGrowth = 1.25;

void AddTo(const uint64_t tokens, const uint64_t requests, const uint64_t errors, double seconds,
           LiveStats::Rates* rates) {
  rates->tokens_per_s += static_cast<double>(tokens) / seconds;
  rates->requests_per_s += static_cast<double>(requests) / seconds;
  rates->errors_per_s += static_cast<double>(errors) / seconds;
}

}  // namespace

void LatencyCounts::Add(double ms) {
  const double bucket = ms <= kFirstMs ? 0 : std::log(ms / kFirstMs) / std::log(kGrowth) + 1;
  ++counts_[std::min(static_cast<size_t>(bucket), kBuckets - 1)];
  ++total_;
}

void LatencyCounts::Add(const LatencyCounts& other) {
  for (size_t i = 0; i < kBuckets; ++i) counts_[i] += other.counts_[i];
  total_ += other.total_;
}

double LatencyCounts::PercentileMs(double fraction) const {
  if (total_ == 0) return 0;
  const auto wanted = static_cast<uint64_t>(std::ceil(fraction * static_cast<double>(total_)));
  uint64_t seen = 0;
  size_t bucket = 0;
  while (bucket + 1 < kBuckets && (seen += counts_[bucket]) < std::max<uint64_t>(1, wanted))
    ++bucket;
  // The (logarithmic) middle of the bucket.
  return kFirstMs * std::pow(kGrowth, static_cast<double>(bucket) - 0.5);
}

LiveStats::Second& LiveStats::Now() {
  const int64_t number = Number();
  Second& second = seconds_[static_cast<size_t>(number % (kSeconds + 1))];
  if (second.number != number) {
    second = {};
    second.number = number;
  }
  return second;
}

const LiveStats::Second* LiveStats::At(int64_t number) const {
  if (number < 0) return nullptr;
  const Second& second = seconds_[static_cast<size_t>(number % (kSeconds + 1))];
  return second.number == number ? &second : nullptr;
}

void LiveStats::Finished(const Ended& ended) {
  if (active_ > 0) --active_;
  Second& now = Now();
  ++now.requests;
  if (!ended.ok && !ended.cancelled) ++now.errors;
  if (ended.ttft_ms >= 0) now.ttft.Add(ended.ttft_ms);
  if (ended.tpot_ms >= 0) now.tpot.Add(ended.tpot_ms);
}

void LiveStats::Moved(const std::string& from, const std::string& to, const std::string& transport,
                      uint32_t blocks) {
  // Bounds the map: workers come and go under new names.
  if (paths_.size() >= kMaxPaths) paths_.clear();
  Path& path = paths_[{from, to, transport}];
  ++path.requests;
  path.blocks += blocks;
}

LiveStats::Rates LiveStats::Over(int64_t seconds) const {
  Rates rates;
  const int64_t now = Number();
  for (int64_t number = now - seconds; number < now; ++number) {
    const Second* second = At(number);
    if (second == nullptr) continue;
    AddTo(second->tokens, second->requests, second->errors, static_cast<double>(seconds), &rates);
    rates.ttft.Add(second->ttft);
    rates.tpot.Add(second->tpot);
  }
  return rates;
}

std::vector<LiveStats::Rates> LiveStats::Series(int64_t seconds) const {
  std::vector<Rates> out;
  const int64_t now = Number();
  for (int64_t number = now - std::min(seconds, kSeconds); number < now; ++number) {
    Rates& rates = out.emplace_back();
    const Second* second = At(number);
    if (second == nullptr) continue;
    AddTo(second->tokens, second->requests, second->errors, 1, &rates);
  }
  // One second of a quiet server holds too few requests for a percentile, so several are merged.
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t number = now - static_cast<int64_t>(out.size() - i);
    for (int64_t at = number - kSmoothSeconds + 1; at <= number; ++at) {
      const Second* second = At(at);
      if (second == nullptr) continue;
      out[i].ttft.Add(second->ttft);
      out[i].tpot.Add(second->tpot);
    }
  }
  return out;
}

}  // namespace aisp
