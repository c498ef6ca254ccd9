#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/strings.h"
#include "loadgen/report.h"

namespace aisp::loadgen {
namespace {

using Json = nlohmann::ordered_json;

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
              {"conversation", r.conversation >= 0 ? Json(r.conversation) : Json()},
              {"turn", r.turn},
              {"intended_s", r.intended_s},
              {"sent_s", r.sent_s},
              {"end_s", r.end_s},
              {"retries", r.retries},
              {"resent", r.resent},
              {"route", r.route},
              {"texts", r.texts}};
  for (const auto& [name, value] : r.server) out["server"][name] = value;
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
          {"turns_per_conversation", o.turns},
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
  (*out)["goodput_limits_ms"] = Json::object();
  for (const auto& [name, limit] : o.goodput.Limits()) (*out)["goodput_limits_ms"][name] = limit;
  for (const auto& [key, value] : o.metadata) (*out)[key] = value;
}

}  // namespace

// Long: a table of the fields of the result, in the order in which they are written.
std::string ResultJson(const Options& o, const Summary& s, const Environment& e,
                       const std::vector<RequestRecord>& records) {
  Json out;
  AddSettings(o, e, &out);
  out["num_prompts"] = s.requests;
  out["duration"] = s.duration_s;
  out["completed"] = s.completed;
  out["failed"] = s.failed;
  out["cancelled"] = s.cancelled;
  out["not_sent"] = s.not_sent;
  out["total_input_tokens"] = s.total_input_tokens;
  out["total_output_tokens"] = s.total_output_tokens;
  out["total_cached_tokens"] = s.cached_tokens;
  out["shareable_prefix_tokens"] = s.shareable_tokens >= 0 ? Json(s.shareable_tokens) : Json();
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
  AddDistribution("ttft_from_intended_ms", s.ttft_from_intended_ms, o.percentiles, &out);
  AddDistribution("ttft_from_sent_ms", s.ttft_from_sent_ms, o.percentiles, &out);
  AddDistribution("e2el_from_intended_ms", s.e2el_from_intended_ms, o.percentiles, &out);
  AddDistribution("e2el_from_sent_ms", s.e2el_from_sent_ms, o.percentiles, &out);
  AddDistribution("output_throughput_per_user", s.per_user_tps, o.percentiles, &out);
  AddDistribution("schedule_lag_ms", s.lag_ms, o.percentiles, &out);
  for (const Summary::Turn& turn : s.turns) {
    out["turns"].push_back({{"completed", turn.completed},
                            {"input_tokens", turn.input_tokens},
                            {"cached_tokens", turn.cached_tokens},
                            {"median_ttft_ms", turn.ttft_ms.median},
                            {"p99_ttft_ms", turn.ttft_ms.p99}});
  }
  if (s.speculation.drafted > 0) {
    out["spec_decode_acceptance_rate"] = 100 * s.speculation.acceptance();
    out["spec_decode_acceptance_length"] = s.speculation.acceptance_length();
    out["spec_decode_num_drafts"] = s.speculation.drafts;
    out["spec_decode_draft_tokens"] = s.speculation.drafted;
    out["spec_decode_accepted_tokens"] = s.speculation.accepted;
  }
  for (const auto& [name, value] : s.server) {
    Json& entry = out["server"][name];
    entry["count"] = value.values.count;
    entry["total"] = value.total;
    AddDistribution("value", value.values, o.percentiles, &entry);
  }
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
  out["client_loop_lag_p99_ms"] = e.loop_lag_p99_ms;
  out["client_loop_lag_max_ms"] = e.loop_lag_max_ms;
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
      "route,conversation,turn\n";
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
    out += fmt::format(",{},{},{},{},{},{}\n", r.chunks, r.retries, r.resent, CsvField(r.route),
                       r.conversation, r.turn);
  }
  return out;
}

namespace {

// Where two texts first differ, with the surrounding text.
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

// The difference at request `index`, "" if none; increments `compared` if it was compared.
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
