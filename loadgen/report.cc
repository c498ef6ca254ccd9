#include "loadgen/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace aisp::loadgen {

std::vector<Metric> MetricsOf(const Summary& s) {
  return {{"ttft", "TTFT", "time to first token: first output - start", s.ttft_ms},
          {"tpot", "TPOT", "time per output token: (E2EL-TTFT)/(tokens-1)", s.tpot_ms},
          {"itl", "ITL", "inter-token latency: between chunks of a stream", s.itl_ms},
          {"e2el", "E2EL", "end-to-end latency: last output - start", s.e2el_ms}};
}

namespace {

constexpr size_t kWidth = 62;
constexpr double kBusyShare = 0.7;
constexpr double kBusyPeak = 0.9;

void Title(std::string_view text, char fill, std::string* out) {
  const std::string title = fmt::format(" {} ", text);
  const size_t left = (kWidth - title.size()) / 2;
  out->append(left, fill).append(title).append(kWidth - title.size() - left, fill).append("\n");
}
void Row(std::string_view name, const std::string& value, std::string* out) {
  *out += fmt::format("{:<{}}{:>14}\n", name, kWidth - 14, value);
}
void Row(std::string_view name, double value, std::string* out) {
  Row(name, fmt::format("{:.2f}", value), out);
}
void Row(std::string_view name, int64_t value, std::string* out) {
  Row(name, std::to_string(value), out);
}

void CountRows(const Options& o, const Summary& s, std::string* out) {
  Row("Successful requests:", s.completed, out);
  Row("Failed requests:", s.failed, out);
  if (s.cancelled > 0 || o.cancel_rate > 0) Row("Cancelled by this client:", s.cancelled, out);
  if (s.not_sent > 0) Row("Not sent:", s.not_sent, out);
  if (s.retries > 0 || o.retries > 0) Row("Retries (refused or 503):", s.retries, out);
  if (s.resent > 0) Row("Resent (kept-alive connection was gone):", s.resent, out);
  if (o.max_concurrency > 0) Row("Maximum request concurrency:", o.max_concurrency, out);
  if (o.request_rate && std::isfinite(*o.request_rate)) {
    Row("Request rate configured (RPS):", *o.request_rate, out);
  }
  Row("Benchmark duration (s):", s.duration_s, out);
  Row("Total input tokens:", s.total_input_tokens, out);
  if (s.cached_tokens > 0) Row("  of them from the server's prefix cache:", s.cached_tokens, out);
  if (s.shareable_tokens > 0) Row("  an earlier prompt began with:", s.shareable_tokens, out);
  Row("Total generated tokens:", s.total_output_tokens, out);
}

void RateRows(const Options& o, const Summary& s, std::string* out) {
  Row("Request throughput (req/s):", s.request_throughput, out);
  if (s.request_goodput >= 0) {
    Row("Request goodput (req/s):", s.request_goodput, out);
    *out += fmt::format("  within {}\n", o.goodput.ToString());
    Row("  good requests:", fmt::format("{} of {}", s.good_requests, s.requests), out);
    for (const auto& [limit, count] : s.missed_limits) {
      Row(fmt::format("  completed beyond the limit of {}:", limit), count, out);
    }
  }
  Row("Output token throughput (tok/s):", s.output_throughput, out);
  Row("Peak output token throughput (tok/s):", s.peak_output_throughput, out);
  Row("Total token throughput (tok/s):", s.total_token_throughput, out);
  Row("Output tok/s per user, median (1000/TPOT):", s.per_user_tps.median, out);
  Row("Peak concurrent requests:", s.peak_concurrency, out);
}

void DistributionRows(const Options& o, const Metric& metric, std::string* out) {
  Title(fmt::format("{}, ms", metric.title), '-', out);
  *out += fmt::format("({})\n", metric.formula);
  if (metric.values.count == 0) {
    *out += "no request gave a value\n";
    return;
  }
  Row(fmt::format("Mean {} (ms):", metric.title), metric.values.mean, out);
  Row(fmt::format("Median {} (ms):", metric.title), metric.values.median, out);
  for (size_t i = 0; i < o.percentiles.size(); ++i) {
    std::string name = PercentileName(o.percentiles[i]);
    name[0] = 'P';
    Row(fmt::format("{} {} (ms):", name, metric.title), metric.values.percentiles[i], out);
  }
}

// Latencies from the other of the two possible starts.
void StartRows(const Summary& s, bool from_sent, std::string* out) {
  const Distribution& ttft = from_sent ? s.ttft_from_intended_ms : s.ttft_from_sent_ms;
  const Distribution& e2el = from_sent ? s.e2el_from_intended_ms : s.e2el_from_sent_ms;
  if (ttft.count == 0) return;
  Title(from_sent ? "The same from when they should have been sent" : "The same from the sending",
        '-', out);
  Row("TTFT, median / P99 (ms):", fmt::format("{:.2f} / {:.2f}", ttft.median, ttft.p99), out);
  Row("E2EL, median / P99 (ms):", fmt::format("{:.2f} / {:.2f}", e2el.median, e2el.p99), out);
}

void SpeculationRows(const Summary& s, std::string* out) {
  if (s.speculation.drafted <= 0) return;
  Title("Speculative decoding", '-', out);
  Row("Acceptance rate (%):", 100 * s.speculation.acceptance(), out);
  Row("Acceptance length:", s.speculation.acceptance_length(), out);
  Row("Draft tokens:", static_cast<int64_t>(s.speculation.drafted), out);
  Row("Accepted tokens:", static_cast<int64_t>(s.speculation.accepted), out);
}

// The server's own numbers; milliseconds as distributions, counts also as totals.
void ServerRows(const Summary& s, std::string* out) {
  if (s.server.empty()) return;
  Title("What the server says (usage.aisp)", '-', out);
  *out += fmt::format("{:<26}{:>9}{:>9}{:>9}{:>9}\n", "", "mean", "median", "P99", "total");
  for (const auto& [name, value] : s.server) {
    const bool time = name.ends_with("_ms");
    *out += fmt::format("{:<26}{:>9.2f}{:>9.2f}{:>9.2f}{:>9}\n", name, value.values.mean,
                        value.values.median, value.values.p99,
                        time ? "" : fmt::format("{:g}", value.total));
  }
}

void TurnRows(const Summary& s, std::string* out) {
  if (s.turns.empty()) return;
  Title("By turn of the conversation", '-', out);
  *out += fmt::format("{:<8}{:>8}{:>14}{:>14}{:>10}{:>10}\n", "turn", "done", "input tokens",
                      "of it cached", "TTFT p50", "p99 (ms)");
  for (size_t i = 0; i < s.turns.size(); ++i) {
    const Summary::Turn& turn = s.turns[i];
    if (turn.completed == 0) continue;
    const auto share = [&](int64_t part) {
      return static_cast<double>(part) /
             static_cast<double>(std::max<int64_t>(turn.input_tokens, 1));
    };
    *out +=
        fmt::format("{:<8}{:>8}{:>14.1f}{:>12.1f} %{:>10.1f}{:>10.1f}\n", i + 1, turn.completed,
                    static_cast<double>(turn.input_tokens) / static_cast<double>(turn.completed),
                    100 * share(turn.cached_tokens), turn.ttft_ms.median, turn.ttft_ms.p99);
  }
}

void FailureRows(const Summary& s, std::string* out) {
  if (s.failures.empty()) return;
  Title("Failures", '-', out);
  std::vector<std::pair<int64_t, std::string>> sorted;
  sorted.reserve(s.failures.size());
  for (const auto& [reason, count] : s.failures) sorted.emplace_back(count, reason);
  std::sort(sorted.rbegin(), sorted.rend());
  constexpr size_t kShown = 8;
  for (size_t i = 0; i < std::min(sorted.size(), kShown); ++i) {
    *out += fmt::format("{:>6} x {}\n", sorted[i].first, sorted[i].second);
  }
  if (sorted.size() > kShown) {
    *out += fmt::format("       and {} other reasons (--csv has each request)\n",
                        sorted.size() - kShown);
  }
}

}  // namespace

std::string_view StatusName(RequestStatus status) {
  switch (status) {
    case RequestStatus::kPending:
      return "pending";
    case RequestStatus::kCompleted:
      return "completed";
    case RequestStatus::kFailed:
      return "failed";
    case RequestStatus::kCancelled:
      return "cancelled";
    case RequestStatus::kNotSent:
      return "not sent";
  }
  return "";
}

std::string PercentileName(double percentile) { return fmt::format("p{:g}", percentile); }

std::string Table(const Options& o, const Summary& s, const Environment& e) {
  std::string out;
  Title("Serving Benchmark Result", '=', &out);
  CountRows(o, s, &out);
  RateRows(o, s, &out);
  for (const Metric& metric : MetricsOf(s)) {
    const auto& wanted = o.percentile_metrics;
    if (std::find(wanted.begin(), wanted.end(), metric.name) != wanted.end()) {
      DistributionRows(o, metric, &out);
    }
  }
  StartRows(s, o.latency_from_sent, &out);
  TurnRows(s, &out);
  SpeculationRows(s, &out);
  ServerRows(s, &out);
  FailureRows(s, &out);
  Title("This client", '-', &out);
  Row("Schedule lag, mean (sent - intended, ms):", s.lag_ms.mean, &out);
  Row("Schedule lag, P99 (ms):", s.lag_ms.p99, &out);
  Row("CPU of its I/O thread (% of a core):", 100 * e.cpu_share, &out);
  Row("  in its busiest second (%):", 100 * e.peak_cpu_share, &out);
  Row("Its timers came late by, P99 / worst (ms):",
      fmt::format("{:.2f} / {:.2f}", e.loop_lag_p99_ms, e.loop_lag_max_ms), &out);
  out += std::string(kWidth, '=') + "\n";
  if (!o.latency_from_sent) {
    out += "start: when a request should have been sent (--latency-from intended)\n";
  } else {
    out += "start: when a request was sent (--latency-from sent)\n";
  }
  if (s.without_usage > 0) {
    out += fmt::format(
        "note: {} answers had no usage: their tokens are counted as chunks, their input as it was "
        "made\n",
        s.without_usage);
  }
  for (const auto& [reason, count] : s.routes) {
    out += fmt::format("route: {} x {}\n", count, reason);
  }
  return out;
}

std::string ClientWarnings(const Options& o, const Summary& s, const Environment& e) {
  std::string out;
  if (e.cpu_share > kBusyShare || e.peak_cpu_share > kBusyPeak) {
    out += fmt::format(
        "WARNING: this client used {:.0f} % of a core ({:.0f} % in its busiest second): latencies "
        "are its own as "
        "much as the server's.\n         Run several clients with a part of the load each.\n",
        100 * e.cpu_share, 100 * e.peak_cpu_share);
  }
  constexpr double kLateLoopMs = 20;
  if (e.loop_lag_p99_ms > kLateLoopMs) {
    out += fmt::format(
        "WARNING: this client got its turn on a core up to {:.0f} ms late (P99): the machine is "
        "too busy for it, or it for itself.\n",
        e.loop_lag_p99_ms);
  }
  const bool open_loop = o.max_concurrency == 0;
  constexpr double kLateMs = 20;
  if (open_loop && s.lag_ms.p99 > kLateMs) {
    out += fmt::format(
        "WARNING: requests were sent late ({:.1f} ms at P99). The lag is part of the latencies "
        "above.\n",
        s.lag_ms.p99);
  }
  if (!open_loop && o.request_rate && std::isfinite(*o.request_rate) && s.lag_ms.p99 > kLateMs) {
    out += fmt::format(
        "note: requests waited for a free slot of --max-concurrency ({:.1f} ms at P99); the wait "
        "is part of the "
        "latencies\n      unless --latency-from sent.\n",
        s.lag_ms.p99);
  }
  return out;
}

}  // namespace aisp::loadgen
