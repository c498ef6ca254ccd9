#include "loadgen/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/strings.h"

namespace aisp::loadgen {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kWidth = 62;
constexpr double kBusyShare = 0.7;
constexpr double kBusyPeak = 0.9;

struct Metric {
  std::string_view name;
  std::string_view title;
  std::string_view formula;
  const Distribution& values;
};

std::vector<Metric> MetricsOf(const Summary& s) {
  return {{"ttft", "TTFT", "time to first token: first output - start", s.ttft_ms},
          {"tpot", "TPOT", "time per output token: (E2EL-TTFT)/(tokens-1)", s.tpot_ms},
          {"itl", "ITL", "inter-token latency: between chunks of a stream", s.itl_ms},
          {"e2el", "E2EL", "end-to-end latency: last output - start", s.e2el_ms}};
}

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
  if (s.retries > 0 || o.retries > 0) Row("Retries (refused or 503):", s.retries, out);
  if (s.resent > 0) Row("Resent (kept-alive connection was gone):", s.resent, out);
  if (o.max_concurrency > 0) Row("Maximum request concurrency:", o.max_concurrency, out);
  if (o.request_rate && std::isfinite(*o.request_rate)) {
    Row("Request rate configured (RPS):", *o.request_rate, out);
  }
  Row("Benchmark duration (s):", s.duration_s, out);
  Row("Total input tokens:", s.total_input_tokens, out);
  if (s.cached_tokens > 0) Row("  of them from the server's prefix cache:", s.cached_tokens, out);
  Row("Total generated tokens:", s.total_output_tokens, out);
}

void RateRows(const Summary& s, std::string* out) {
  Row("Request throughput (req/s):", s.request_throughput, out);
  if (s.request_goodput >= 0) Row("Request goodput (req/s):", s.request_goodput, out);
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

void AddDistribution(std::string_view name, const Distribution& d,
                     const std::vector<double>& percentiles, Json* out) {
  (*out)[fmt::format("mean_{}", name)] = d.mean;
  (*out)[fmt::format("median_{}", name)] = d.median;
  (*out)[fmt::format("std_{}", name)] = d.std;
  for (size_t i = 0; i < percentiles.size(); ++i) {
    (*out)[fmt::format("{}_{}", PercentileName(percentiles[i]), name)] = d.percentiles[i];
  }
  (*out)[fmt::format("p99_{}", name)] = d.p99;
}

Json RequestJson(const RequestRecord& r, size_t index, bool from_sent) {
  Json out = {{"index", index},
              {"status", StatusName(r.status)},
              {"reason", r.reason},
              {"http_status", r.http_status},
              {"finish_reason", r.finish_reason},
              {"input_tokens", r.input_tokens},
              {"output_tokens", r.output_tokens},
              {"cached_tokens", r.cached_tokens},
              {"intended_s", r.intended_s},
              {"sent_s", r.sent_s},
              {"end_s", r.end_s},
              {"retries", r.retries},
              {"resent", r.resent},
              {"route", r.route},
              {"texts", r.texts}};
  if (r.first_s >= 0) {
    out["ttft_ms"] = r.ttft_ms(from_sent);
    out["e2el_ms"] = r.e2el_ms(from_sent);
    out["itls_ms"] = r.gaps_ms;
  }
  return out;
}

std::string CsvField(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + '"';
}

void AddSettings(const Options& o, const Environment& e, Json* out) {
  *out = {{"date", e.date},
          {"backend", o.kind() == BackendKind::kGrpc   ? "aisp-grpc"
                      : o.kind() == BackendKind::kChat ? "openai-chat"
                                                       : "openai"},
          {"endpoint_type", e.target},
          {"base_url", e.server},
          {"model_id", e.model},
          {"max_model_len", e.max_model_len},
          {"label", o.label},
          {"client_version", AISP_VERSION},
          {"client_host", e.client_host},
          {"command_line", e.command_line},
          {"dataset_name", o.dataset},
          {"dataset_path", o.dataset_path},
          {"seed", o.seed},
          {"ignore_eos", o.ignore_eos},
          {"burstiness", o.burstiness},
          {"max_concurrency", o.max_concurrency > 0 ? Json(o.max_concurrency) : Json()},
          {"cancel_rate", o.cancel_rate},
          {"latency_from", o.latency_from_sent ? "sent" : "intended"}};
  if (o.request_rate && std::isfinite(*o.request_rate)) {
    (*out)["request_rate"] = *o.request_rate;
  } else {
    (*out)["request_rate"] = !o.ramp_up.empty() ? o.ramp_up : e.of_trace ? "trace" : "inf";
  }
  if (!o.ramp_up.empty()) {
    (*out)["ramp_up_start_rps"] = o.ramp_up_start_rps;
    (*out)["ramp_up_end_rps"] = o.ramp_up_end_rps;
  }
  for (const auto& [key, value] : o.metadata) (*out)[key] = value;
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
  }
  return "";
}

std::string PercentileName(double percentile) { return fmt::format("p{:g}", percentile); }

std::string Table(const Options& o, const Summary& s, const Environment& e) {
  std::string out;
  Title("Serving Benchmark Result", '=', &out);
  CountRows(o, s, &out);
  RateRows(s, &out);
  for (const Metric& metric : MetricsOf(s)) {
    const auto& wanted = o.percentile_metrics;
    if (std::find(wanted.begin(), wanted.end(), metric.name) != wanted.end()) {
      DistributionRows(o, metric, &out);
    }
  }
  FailureRows(s, &out);
  Title("This client", '-', &out);
  Row("Schedule lag, mean (sent - intended, ms):", s.lag_ms.mean, &out);
  Row("Schedule lag, P99 (ms):", s.lag_ms.p99, &out);
  Row("CPU of its I/O thread (% of a core):", 100 * e.cpu_share, &out);
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

std::string ResultJson(const Options& o, const Summary& s, const Environment& e,
                       const std::vector<RequestRecord>& records) {
  Json out;
  AddSettings(o, e, &out);
  out["num_prompts"] = s.requests;
  out["duration"] = s.duration_s;
  out["completed"] = s.completed;
  out["failed"] = s.failed;
  out["cancelled"] = s.cancelled;
  out["total_input_tokens"] = s.total_input_tokens;
  out["total_output_tokens"] = s.total_output_tokens;
  out["total_cached_tokens"] = s.cached_tokens;
  out["cancelled_output_tokens"] = s.cancelled_output_tokens;
  out["tokens_counted_as_chunks"] = s.without_usage;
  out["request_throughput"] = s.request_throughput;
  out["request_goodput"] = s.request_goodput >= 0 ? Json(s.request_goodput) : Json();
  out["good_requests"] = s.request_goodput >= 0 ? Json(s.good_requests) : Json();
  out["output_throughput"] = s.output_throughput;
  out["total_token_throughput"] = s.total_token_throughput;
  out["max_output_tokens_per_s"] = s.peak_output_throughput;
  out["max_concurrent_requests"] = s.peak_concurrency;
  for (const Metric& metric : MetricsOf(s)) {
    AddDistribution(fmt::format("{}_ms", metric.name), metric.values, o.percentiles, &out);
  }
  AddDistribution("output_throughput_per_user", s.per_user_tps, o.percentiles, &out);
  AddDistribution("schedule_lag_ms", s.lag_ms, o.percentiles, &out);
  out["retries"] = s.retries;
  out["resent"] = s.resent;
  out["failures"] = s.failures;
  for (const auto& [status, count] : s.failed_by_status) {
    out["failed_by_http_status"][std::to_string(status)] = count;
  }
  out["finish_reasons"] = s.finishes;
  out["routes"] = s.routes;
  out["client_cpu_share"] = e.cpu_share;
  out["client_peak_cpu_share"] = e.peak_cpu_share;
  out["client_process_cpu_s"] = e.process_cpu_s;
  out["notes"] = e.notes;
  if (o.save_detailed) {
    out["requests"] = Json::array();
    for (size_t i = 0; i < records.size(); ++i) {
      out["requests"].push_back(RequestJson(records[i], i, o.latency_from_sent));
    }
  }
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string RequestsCsv(const std::vector<RequestRecord>& records, bool from_sent) {
  std::string out =
      "index,status,reason,http_status,finish_reason,input_tokens,output_tokens,cached_tokens,"
      "asked_input_tokens,"
      "asked_output_tokens,intended_s,sent_s,end_s,ttft_ms,tpot_ms,e2el_ms,chunks,retries,resent,"
      "route\n";
  for (size_t i = 0; i < records.size(); ++i) {
    const RequestRecord& r = records[i];
    out +=
        fmt::format("{},{},{},{},{},{},{},{},{},{},{:.6f},{:.6f},{:.6f},", i, StatusName(r.status),
                    CsvField(r.reason), r.http_status, CsvField(r.finish_reason), r.input_tokens,
                    r.output_tokens, r.cached_tokens, r.asked_input_tokens, r.asked_output_tokens,
                    r.intended_s, r.sent_s, r.end_s);
    if (r.first_s >= 0) {
      out += fmt::format("{:.3f},{:.3f},{:.3f}", r.ttft_ms(from_sent), r.tpot_ms(),
                         r.e2el_ms(from_sent));
    } else {
      out += ",,";
    }
    out += fmt::format(",{},{},{},{}\n", r.chunks, r.retries, r.resent, CsvField(r.route));
  }
  return out;
}

namespace {

// Where two texts part, with what stands there.
std::string Difference(const std::string& a, const std::string& b) {
  const auto at = static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(std::min(a.size(), b.size())),
                    b.begin())
          .first -
      a.begin());
  const size_t from = at > 20 ? at - 20 : 0;
  return fmt::format("from byte {} on: '{}' there, '{}' now", at, Excerpt(a.substr(from), 60),
                     Excerpt(b.substr(from), 60));
}

// What is wrong with request `index`, "" if nothing; counts it in `compared` if it was compared.
std::string CompareOne(const Json& then, const RequestRecord& now, size_t index, size_t* compared) {
  if (then.value("status", "") == "cancelled" || now.status == RequestStatus::kCancelled) return "";
  if (then.value("status", "") != "completed") return "";
  if (now.status != RequestStatus::kCompleted) {
    return fmt::format("request {} failed now: {}", index, now.reason);
  }
  ++*compared;
  const auto texts = then.value("texts", std::vector<std::string>());
  if (texts == now.texts) return "";
  for (size_t c = 0; c < std::min(texts.size(), now.texts.size()); ++c) {
    if (texts[c] != now.texts[c]) {
      return fmt::format("request {} differs {}", index, Difference(texts[c], now.texts[c]));
    }
  }
  return fmt::format("request {} had {} texts and has {} now", index, texts.size(),
                     now.texts.size());
}

}  // namespace

Result<std::string> CompareTexts(const std::string& baseline_json,
                                 const std::vector<RequestRecord>& records) {
  const Json baseline = Json::parse(baseline_json, nullptr, /*allow_exceptions=*/false);
  if (!baseline.is_object() || !baseline.contains("requests") || !baseline["requests"].is_array()) {
    return InvalidArgument("it is no result of --save-detailed: there is no list 'requests'");
  }
  const Json& requests = baseline["requests"];
  if (requests.size() != records.size()) {
    return InvalidArgument(fmt::format(
        "it has {} requests, this run {}: compare runs of the same dataset, seed and --num-prompts",
        requests.size(), records.size()));
  }
  size_t compared = 0, wrong = 0;
  std::string first;
  for (size_t i = 0; i < records.size(); ++i) {
    const std::string problem = CompareOne(requests[i], records[i], i, &compared);
    if (problem.empty()) continue;
    ++wrong;
    if (first.empty()) first = problem;
  }
  if (wrong > 0) {
    return Fail(Code::kDataLoss, fmt::format("{} of {} requests differ; the first: {}", wrong,
                                             records.size(), first));
  }
  if (compared == 0) return InvalidArgument("no request was completed in both runs");
  return fmt::format("{} of {} texts compared, all equal", compared, records.size());
}

}  // namespace aisp::loadgen
