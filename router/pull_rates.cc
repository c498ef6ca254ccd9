#include "router/pull_rates.h"

#include <algorithm>

namespace aisp {
namespace {

// Slow links, within a host and between hosts; assumed without samples.
constexpr double kFixedMs = 4;
constexpr double kSameHostMsPerMb = 1;    // 1 GB/s
constexpr double kOtherHostMsPerMb = 10;  // 100 MB/s
// Fast links between GPUs or hosts; assumed for a trial. A wrong guess costs one prompt per
// kTrialEvery, within the pull's limits.
constexpr double kHopedFixedMs = 1;
constexpr double kHopedMsPerMb = 0.02;  // 50 GB/s
// Factor on the estimate of other pairs, for a pair without samples.
constexpr double kDoubt = 1.5;
constexpr uint64_t kKnownSamples = 2;

constexpr Duration kLeastBackoff = std::chrono::milliseconds(500);
constexpr Duration kMostBackoff = std::chrono::seconds(60);

// Larger reports are ignored.
constexpr double kMostMb = 1 << 20;
constexpr double kMostMs = 60e3;

}  // namespace

PullRates::Pair::Pair() : fit({kFixedMs, kSameHostMsPerMb}, {1, 10}) {}
PullRates::Kind::Kind() : fit({kFixedMs, kSameHostMsPerMb}, {1, 10}) {}

bool PullRates::SameHost(const WorkerView& holder, const WorkerView& decode) {
  return !holder.host_id.empty() && holder.host_id == decode.host_id;
}

std::optional<double> PullRates::PredictMs(const WorkerView& holder, const WorkerView& decode,
                                           double bytes, Instant now) const {
  const auto it = pairs_.find(Names{holder.worker_id, decode.worker_id});
  const double mb = bytes * 1e-6;
  if (it != pairs_.end() && now < it->second.not_before) return std::nullopt;
  if (it != pairs_.end() && it->second.fit.samples() >= kKnownSamples)
    return it->second.fit.Predict({1, mb});
  // Holders answer during their steps, so their queues do not add to the wait.
  const bool same_host = SameHost(holder, decode);
  const Kind& kind = kinds_[same_host ? 1 : 0];
  if (kind.fit.samples() >= kKnownSamples) return kDoubt * kind.fit.Predict({1, mb});
  if (now >= kind.next_trial) return kHopedFixedMs + mb * kHopedMsPerMb;
  return kFixedMs + mb * (same_host ? kSameHostMsPerMb : kOtherHostMsPerMb);
}

PullRates::Pair& PullRates::Of(std::string_view holder, std::string_view decode, Instant now) {
  const Names names{holder, decode};
  if (pairs_.size() >= kMaxPairs && pairs_.find(names) == pairs_.end()) {
    pairs_.erase(std::min_element(pairs_.begin(), pairs_.end(), [](const auto& a, const auto& b) {
      return a.second.used < b.second.used;
    }));
  }
  Pair& pair = pairs_[names];
  pair.used = now;
  return pair;
}

void PullRates::Started(const WorkerView& holder, const WorkerView& decode, Instant now) {
  const bool same_host = SameHost(holder, decode);
  Of(holder.worker_id, decode.worker_id, now).same_host = same_host;
  kinds_[same_host ? 1 : 0].next_trial = now + kTrialEvery;
}

void PullRates::Learn(std::string_view holder, std::string_view decode, const v1::PrefixPull& pull,
                      Instant now) {
  Pair& pair = Of(holder, decode, now);
  if (pull.result() == v1::PrefixPull::FILLED) {
    const double mb = static_cast<double>(pull.bytes()) * 1e-6;
    // Loading from tiers depends on the holder and is predicted apart.
    const auto promoted =
        std::clamp<int64_t>(pull.promotion_ns(), 0, std::max<int64_t>(0, pull.duration_ns()));
    const double ms = static_cast<double>(pull.duration_ns() - promoted) * 1e-6;
    if (mb > kMostMb || ms < 0 || ms > kMostMs) return;
    pair.fit.Observe({1, mb}, ms);
    kinds_[pair.same_host ? 1 : 0].fit.Observe({1, mb}, ms);
    pair.backoff = Duration{};
    return;
  }
  const bool slow =
      pull.result() == v1::PrefixPull::LATE || pull.result() == v1::PrefixPull::FAILED;
  if (!slow && pull.result() != v1::PrefixPull::REFUSED) return;
  pair.backoff = std::clamp(pair.backoff * 2, kLeastBackoff, kMostBackoff);
  pair.not_before = now + pair.backoff;
}

}  // namespace aisp
