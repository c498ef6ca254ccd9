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

// The limits that a completed request with output missed.
std::vector<std::string_view> MissedLimits(const RequestRecord& r, const Goodput& limits,
                                           bool latency_from_sent) {
  std::vector<std::string_view> out;
  if (limits.ttft_ms && r.ttft_ms(latency_from_sent) > *limits.ttft_ms) out.push_back("ttft");
  if (limits.tpot_ms && r.tpot_ms() > *limits.tpot_ms) out.push_back("tpot");
  if (limits.e2el_ms && r.e2el_ms(latency_from_sent) > *limits.e2el_ms) out.push_back("e2el");
  return out;
}

// Calls `each(second, tokens)` for each chunk with output; a request's tokens are spread evenly
// over its chunks.
template <typename Fn>
void ForEachChunk(const std::vector<RequestRecord>& records, Fn each) {
  for (const RequestRecord& r : records) {
    if (r.first_s < 0 || r.output_tokens == 0) continue;
    const double tokens =
        static_cast<double>(r.output_tokens) / static_cast<double>(r.gaps_ms.size() + 1);
    double at = r.first_s;
    each(at, tokens);
    for (const float gap : r.gaps_ms) each(at += 1e-3 * static_cast<double>(gap), tokens);
  }
}

struct Samples {
  std::vector<double> ttft[2], tpot, itl, e2el[2], per_user,
      lag;  // index 0: from intended, 1: from sent
  std::map<std::string, std::vector<double>> server;
};

// Servers that do not report the number of drafts report the mean acceptance length.
void AddSpeculation(const ServerValues& server, Summary::Speculation* out) {
  const auto value = [&server](std::string_view name) {
    const auto at = std::find_if(server.begin(), server.end(),
                                 [name](const auto& each) { return each.first == name; });
    return at == server.end() ? 0.0 : at->second;
  };
  const double accepted = value("speculation.accepted");
  const double more = value("speculation.mean_acceptance_length") - 1;
  const double drafts = value("speculation.drafts");
  out->drafted += value("speculation.drafted");
  out->accepted += accepted;
  out->drafts += drafts > 0 ? drafts : more > 0 ? accepted / more : 0;
}

void AddCompleted(const RequestRecord& r, const MetricOptions& options, Samples* samples,
                  Summary* out) {
  out->total_input_tokens += r.input_tokens;
  out->total_output_tokens += r.output_tokens;
  out->cached_tokens += r.cached_tokens;
  out->without_usage += r.tokens_from_usage ? 0 : 1;
  ++out->finishes[r.finish_reason];
  if (const std::string reason = RouteReason(r.route); !reason.empty()) ++out->routes[reason];
  for (const auto& [name, value] : r.server) samples->server[name].push_back(value);
  AddSpeculation(r.server, &out->speculation);
  if (r.first_s < 0) return;
  for (const bool from_sent : {false, true}) {
    samples->ttft[from_sent].push_back(r.ttft_ms(from_sent));
    samples->e2el[from_sent].push_back(r.e2el_ms(from_sent));
  }
  if (r.output_tokens > 1) {
    samples->tpot.push_back(r.tpot_ms());
    if (r.tpot_ms() > 0) samples->per_user.push_back(1e3 / r.tpot_ms());
  }
  samples->itl.insert(samples->itl.end(), r.gaps_ms.begin(), r.gaps_ms.end());
  const auto missed = MissedLimits(r, options.goodput, options.latency_from_sent);
  for (const std::string_view limit : missed) ++out->missed_limits[std::string(limit)];
  if (missed.empty()) ++out->good_requests;
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
    case RequestStatus::kNotSent:
      ++out->not_sent;
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

int64_t BadSoFar(const std::vector<RequestRecord>& records, const MetricOptions& options,
                 double now_s) {
  int64_t bad = 0;
  RequestRecord r;  // only its times
  for (const RequestRecord& record : records) {
    if (record.sent_s < 0 || record.status == RequestStatus::kCancelled) continue;
    r.intended_s = record.intended_s;
    r.sent_s = record.sent_s;
    r.first_s = record.first_s;
    r.last_s = record.last_s;
    r.output_tokens = record.output_tokens;
    r.status = record.status;
    if (r.status == RequestStatus::kPending) {
      // As if it ended now, the earliest possible.
      if (r.first_s < 0) r.first_s = now_s;
      r.last_s = now_s;
      r.output_tokens = 0;
    }
    const bool failed = r.status == RequestStatus::kFailed;
    bad += failed || !MissedLimits(r, options.goodput, options.latency_from_sent).empty() ? 1 : 0;
  }
  return bad;
}

int64_t PeakConcurrency(const std::vector<RequestRecord>& records) {
  std::vector<std::pair<double, int>> changes;
  for (const RequestRecord& r : records) {
    if (r.sent_s < 0) continue;
    changes.emplace_back(r.sent_s, 1);
    changes.emplace_back(r.end_s, -1);
  }
  // At equal times ends come first: back-to-back requests do not overlap.
  std::sort(changes.begin(), changes.end());
  int64_t now = 0, peak = 0;
  for (const auto& [time, change] : changes) peak = std::max(peak, now += change);
  return peak;
}

std::vector<double> TokensPerSecond(const std::vector<RequestRecord>& records) {
  std::vector<double> seconds;
  ForEachChunk(records, [&](double at, double tokens) {
    const auto second = static_cast<size_t>(std::max(at, 0.0));
    if (second >= seconds.size()) seconds.resize(second + 1, 0.0);
    seconds[second] += tokens;
  });
  return seconds;
}

double PeakOutputThroughput(const std::vector<RequestRecord>& records, double duration_s) {
  if (duration_s <= 0) return 0;
  const double window_s = duration_s / std::max(1.0, std::floor(duration_s));
  std::vector<std::pair<double, double>> chunks;
  ForEachChunk(records, [&](double at, double tokens) { chunks.emplace_back(at, tokens); });
  std::sort(chunks.begin(), chunks.end());
  double within = 0, most = 0;
  size_t oldest = 0;
  // Tolerance, so that rounding does not drop a chunk from the window of an even stream.
  const double reach_s = window_s * (1 + 1e-9);
  for (const auto& [at, tokens] : chunks) {
    within += tokens;
    while (chunks[oldest].first < at - reach_s) within -= chunks[oldest++].second;
    most = std::max(most, within);
  }
  return most / window_s;
}

namespace {

std::vector<Summary::Turn> ByTurn(const std::vector<RequestRecord>& records,
                                  const MetricOptions& options) {
  std::vector<Summary::Turn> out;
  std::vector<std::vector<double>> ttft;
  for (const RequestRecord& r : records) {
    if (r.conversation < 0 || r.status != RequestStatus::kCompleted || r.first_s < 0) continue;
    const auto turn = static_cast<size_t>(r.turn);
    if (out.size() <= turn) out.resize(turn + 1);
    ttft.resize(out.size());
    ++out[turn].completed;
    out[turn].input_tokens += r.input_tokens;
    out[turn].cached_tokens += r.cached_tokens;
    ttft[turn].push_back(r.ttft_ms(options.latency_from_sent));
  }
  for (size_t i = 0; i < out.size(); ++i) {
    out[i].ttft_ms = Describe(std::move(ttft[i]), options.percentiles);
  }
  return out;
}

}  // namespace

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
  out.peak_output_throughput = PeakOutputThroughput(records, options.duration_s);
  out.peak_concurrency = PeakConcurrency(records);
  const auto describe = [&](const std::vector<double>& of) {
    return Describe(of, options.percentiles);
  };
  out.ttft_from_intended_ms = describe(samples.ttft[0]);
  out.ttft_from_sent_ms = describe(samples.ttft[1]);
  out.e2el_from_intended_ms = describe(samples.e2el[0]);
  out.e2el_from_sent_ms = describe(samples.e2el[1]);
  const bool from_sent = options.latency_from_sent;
  out.ttft_ms = from_sent ? out.ttft_from_sent_ms : out.ttft_from_intended_ms;
  out.e2el_ms = from_sent ? out.e2el_from_sent_ms : out.e2el_from_intended_ms;
  out.tpot_ms = Describe(std::move(samples.tpot), options.percentiles);
  out.itl_ms = Describe(std::move(samples.itl), options.percentiles);
  out.per_user_tps = Describe(std::move(samples.per_user), options.percentiles);
  out.lag_ms = Describe(std::move(samples.lag), options.percentiles);
  out.turns = ByTurn(records, options);
  for (auto& [name, values] : samples.server) {
    const double total = std::accumulate(values.begin(), values.end(), 0.0);
    out.server[name] = {describe(values), total};
  }
  return out;
}

}  // namespace aisp::loadgen
