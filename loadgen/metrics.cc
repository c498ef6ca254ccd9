#include "loadgen/metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace aisp::loadgen {
namespace {

// "decode=d prefill=p reason=remote-prefill" -> "remote-prefill"
std::string RouteReason(const std::string& route) {
  const size_t at = route.find("reason=");
  if (at == std::string::npos) return "";
  return route.substr(at + 7, route.find(' ', at) - at - 7);
}

struct Samples {
  std::vector<double> ttft, tpot, itl, e2el, per_user, lag;
};

void AddCompleted(const RequestRecord& r, const MetricOptions& options, Samples* samples,
                  Summary* out) {
  out->total_input_tokens += r.input_tokens;
  out->total_output_tokens += r.output_tokens;
  out->cached_tokens += r.cached_tokens;
  out->without_usage += r.tokens_from_usage ? 0 : 1;
  ++out->finishes[r.finish_reason];
  if (const std::string reason = RouteReason(r.route); !reason.empty()) ++out->routes[reason];
  if (r.first_s < 0) return;
  samples->ttft.push_back(r.ttft_ms(options.latency_from_sent));
  samples->e2el.push_back(r.e2el_ms(options.latency_from_sent));
  if (r.output_tokens > 1) {
    samples->tpot.push_back(r.tpot_ms());
    if (r.tpot_ms() > 0) samples->per_user.push_back(1e3 / r.tpot_ms());
  }
  samples->itl.insert(samples->itl.end(), r.gaps_ms.begin(), r.gaps_ms.end());
  if (IsGood(r, options.goodput, options.latency_from_sent)) ++out->good_requests;
}

void AddRecord(const RequestRecord& r, const MetricOptions& options, Samples* samples,
               Summary* out) {
  out->retries += r.retries;
  out->resent += r.resent;
  if (r.sent_s >= 0) samples->lag.push_back(std::max(0.0, 1e3 * (r.sent_s - r.intended_s)));
  switch (r.status) {
    case RequestStatus::kPending:
      ++out->pending;
      break;
    case RequestStatus::kCompleted:
      ++out->completed;
      AddCompleted(r, options, samples, out);
      break;
    case RequestStatus::kFailed:
      ++out->failed;
      ++out->failures[r.reason];
      ++out->failed_by_status[r.http_status];
      out->cancelled_output_tokens += r.output_tokens;
      break;
    case RequestStatus::kCancelled:
      ++out->cancelled;
      out->cancelled_output_tokens += r.output_tokens;
      break;
  }
}

}  // namespace

double Percentile(const std::vector<double>& sorted, double p) {
  if (sorted.empty()) return 0;
  const double rank = p / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (rank - static_cast<double>(below));
}

Distribution Describe(std::vector<double> values, const std::vector<double>& percentiles) {
  Distribution out;
  out.percentiles.assign(percentiles.size(), 0);
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  out.count = values.size();
  out.min = values.front();
  out.max = values.back();
  out.mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double v : values) squares += (v - out.mean) * (v - out.mean);
  out.std = std::sqrt(squares / n);
  out.median = Percentile(values, 50);
  out.p99 = Percentile(values, 99);
  for (size_t i = 0; i < percentiles.size(); ++i) {
    out.percentiles[i] = Percentile(values, percentiles[i]);
  }
  return out;
}

bool IsGood(const RequestRecord& r, const Goodput& limits, bool latency_from_sent) {
  if (r.status != RequestStatus::kCompleted || r.first_s < 0) return false;
  if (limits.ttft_ms && r.ttft_ms(latency_from_sent) > *limits.ttft_ms) return false;
  if (limits.tpot_ms && r.tpot_ms() > *limits.tpot_ms) return false;
  return !limits.e2el_ms || r.e2el_ms(latency_from_sent) <= *limits.e2el_ms;
}

int64_t PeakConcurrency(const std::vector<RequestRecord>& records) {
  std::vector<std::pair<double, int>> changes;
  for (const RequestRecord& r : records) {
    if (r.sent_s < 0) continue;
    changes.emplace_back(r.sent_s, 1);
    changes.emplace_back(r.end_s, -1);
  }
  // At equal times ends come first: the one after the other is no overlap.
  std::sort(changes.begin(), changes.end());
  int64_t now = 0, peak = 0;
  for (const auto& [time, change] : changes) peak = std::max(peak, now += change);
  return peak;
}

std::vector<double> TokensPerSecond(const std::vector<RequestRecord>& records) {
  std::vector<double> seconds;
  for (const RequestRecord& r : records) {
    if (r.first_s < 0 || r.output_tokens == 0) continue;
    const double each =
        static_cast<double>(r.output_tokens) / static_cast<double>(r.gaps_ms.size() + 1);
    double at = r.first_s;
    const auto count = [&] {
      const auto second = static_cast<size_t>(std::max(at, 0.0));
      if (second >= seconds.size()) seconds.resize(second + 1, 0.0);
      seconds[second] += each;
    };
    count();
    for (const float gap : r.gaps_ms) {
      at += 1e-3 * static_cast<double>(gap);
      count();
    }
  }
  return seconds;
}

Summary Summarize(const std::vector<RequestRecord>& records, const MetricOptions& options) {
  Summary out;
  Samples samples;
  out.requests = static_cast<int64_t>(records.size());
  out.duration_s = options.duration_s;
  for (const RequestRecord& r : records) AddRecord(r, options, &samples, &out);
  const double per_second = options.duration_s > 0 ? 1 / options.duration_s : 0;
  const auto rate = [&](int64_t count) { return static_cast<double>(count) * per_second; };
  out.request_throughput = rate(out.completed);
  if (options.goodput.any()) out.request_goodput = rate(out.good_requests);
  out.output_throughput = rate(out.total_output_tokens);
  out.total_token_throughput = rate(out.total_input_tokens + out.total_output_tokens);
  for (const double tokens : TokensPerSecond(records)) {
    out.peak_output_throughput = std::max(out.peak_output_throughput, tokens);
  }
  out.peak_concurrency = PeakConcurrency(records);
  out.ttft_ms = Describe(std::move(samples.ttft), options.percentiles);
  out.tpot_ms = Describe(std::move(samples.tpot), options.percentiles);
  out.itl_ms = Describe(std::move(samples.itl), options.percentiles);
  out.e2el_ms = Describe(std::move(samples.e2el), options.percentiles);
  out.per_user_tps = Describe(std::move(samples.per_user), options.percentiles);
  out.lag_ms = Describe(std::move(samples.lag), options.percentiles);
  return out;
}

}  // namespace aisp::loadgen
