#include "server/overview_json.h"

#include <fmt/format.h>

#include <functional>

#include "api/response.h"
#include "common/version.h"
#include "proto/role.h"

namespace aisp {
namespace {

// Period of the rates and percentiles shown as "now".
constexpr int64_t kNowSeconds = 10;

// Quotes text that a worker sent.
std::string Quoted(std::string_view text) {
  std::string out;
  AppendJsonString(text, &out);
  return out;
}

std::string Percentile(const LatencyCounts& counts, double fraction) {
  return counts.total() == 0 ? "null" : fmt::format("{:.4g}", counts.PercentileMs(fraction));
}

std::string Percentiles(const LatencyCounts& counts) {
  return fmt::format(R"({{"p50":{},"p90":{},"p99":{}}})", Percentile(counts, 0.5),
                     Percentile(counts, 0.9), Percentile(counts, 0.99));
}

std::string Array(const std::vector<LiveStats::Rates>& series,
                  const std::function<std::string(const LiveStats::Rates&)>& value) {
  std::string out;
  for (const LiveStats::Rates& rates : series) {
    if (!out.empty()) out += ',';
    out += value(rates);
  }
  return "[" + out + "]";
}

std::string SeriesJson(const LiveStats& stats) {
  const auto series = stats.Series(LiveStats::kSeconds);
  const auto number = [](double value) { return fmt::format("{:.6g}", value); };
  using Rates = LiveStats::Rates;
  return fmt::format(
      R"({{"seconds":{},"tokens_per_s":{},"requests_per_s":{},"errors_per_s":{},"ttft_p50_ms":{},)"
      R"("ttft_p99_ms":{},"tpot_p50_ms":{},"tpot_p99_ms":{}}})",
      series.size(), Array(series, [&](const Rates& r) { return number(r.tokens_per_s); }),
      Array(series, [&](const Rates& r) { return number(r.requests_per_s); }),
      Array(series, [&](const Rates& r) { return number(r.errors_per_s); }),
      Array(series, [](const Rates& r) { return Percentile(r.ttft, 0.5); }),
      Array(series, [](const Rates& r) { return Percentile(r.ttft, 0.99); }),
      Array(series, [](const Rates& r) { return Percentile(r.tpot, 0.5); }),
      Array(series, [](const Rates& r) { return Percentile(r.tpot, 0.99); }));
}

std::string MovesJson(const LiveStats& stats) {
  std::string out;
  for (const auto& [path, moved] : stats.paths()) {
    if (!out.empty()) out += ',';
    out += fmt::format(R"({{"from":{},"to":{},"transport":{},"requests":{},"blocks":{}}})",
                       Quoted(path[0]), Quoted(path[1]), Quoted(path[2]), moved.requests,
                       moved.blocks);
  }
  return "[" + out + "]";
}

// Step times in milliseconds; null if not measured.
std::string CostJson(const WorkerStatus& w) {
  if (w.fitted_steps == 0) return "null";
  const StepCost::Decode& d = w.cost.decode;
  const StepCost::Prefill& p = w.cost.prefill;
  return fmt::format(
      R"({{"steps":{},"decode_step_ms":{{"base":{:.6g},"per_row":{:.6g},"per_context_token":{:.6g}}},)"
      R"("prompt_step_ms":{{"base":{:.6g},"per_token":{:.6g},"per_position_read":{:.6g},)"
      R"("per_row":{:.6g},"per_context_token":{:.6g}}}}})",
      w.fitted_steps, d.base_ms, d.per_row_ms, d.per_context_ms, p.base_ms, p.per_token_ms,
      p.per_prefill_context_ms, p.per_row_ms, p.per_context_ms);
}

std::string RolesJson(const std::vector<v1::Role>& roles) {
  std::string out;
  for (const v1::Role role : roles)
    out += fmt::format(R"({}"{}")", out.empty() ? "" : ",", RoleName(role));
  return "[" + out + "]";
}

}  // namespace

std::string WorkerJson(const WorkerStatus& w) {
  return fmt::format(
      R"({{"id":{},"role":"{}","role_epoch":{},"roles":{},"becoming":{},"state":"{}","reason":{},"incarnation":"{:016x}","host":{},"address":{},)"
      R"("pid":{},"admin_url":{},"version":{},"running":{},"waiting":{},"awaiting_kv":{},"streams":{},)"
      R"("free_blocks":{},"total_blocks":{},"quarantined_blocks":{},"queued_prefill_tokens":{},)"
      R"("steps":{},"preemptions":{},"transfer_bytes_per_s":{:.0f},"chunk_tokens":{},"launched_ahead":{},"max_batch_tokens":{},"max_running":{},)"
      R"("block_tokens":{},"num_layers":{},"kv_bytes_per_token":{:.0f},"cost":{}}})",
      Quoted(w.id), RoleName(w.role), w.role_epoch, RolesJson(w.roles),
      w.becoming == v1::ROLE_UNSPECIFIED ? "null" : Quoted(RoleName(w.becoming)),
      WorkerStateName(w.state), Quoted(w.unready_reason), w.incarnation, Quoted(w.host_id),
      Quoted(w.address), w.pid, Quoted(w.admin_url), Quoted(w.version), w.running, w.waiting,
      w.awaiting_kv, w.streams, w.free_blocks, w.total_blocks, w.quarantined_blocks,
      w.queued_prefill_tokens, w.steps, w.preemptions, w.transfer_bytes_per_s, w.chunk_tokens,
      w.launched_ahead, w.max_batch_tokens, w.max_running, w.block_tokens, w.num_layers,
      w.kv_bytes_per_token, CostJson(w));
}

namespace {

std::string ListJson(const std::vector<WorkerStatus>& workers) {
  std::string out;
  for (const WorkerStatus& worker : workers) {
    if (!out.empty()) out += ',';
    out += WorkerJson(worker);
  }
  return "\"workers\":[" + out + "]";
}

}  // namespace

std::string WorkersJson(const std::vector<WorkerStatus>& workers, const RouterTotals& totals) {
  return fmt::format(R"({{{},"totals":{{"requests":{},"prompt_tokens":{},"placed_tokens":{},)"
                     R"("uncached_tokens":{},"finished":{},"new_tokens":{}}}}})",
                     ListJson(workers), totals.requests, totals.prompt_tokens, totals.placed_tokens,
                     totals.uncached_tokens, totals.finished, totals.new_tokens);
}

std::string OverviewJson(std::string_view model, const Status& ready, const LiveStats& stats,
                         const std::vector<WorkerStatus>& workers) {
  const LiveStats::Rates now = stats.Over(kNowSeconds);
  const std::string list = ListJson(workers);
  return fmt::format(
      R"({{"model":{},"version":"{}","ready":{},"reason":{},"uptime_s":{:.0f},"active":{},)"
      R"("now":{{"seconds":{},"tokens_per_s":{:.6g},"requests_per_s":{:.6g},"errors_per_s":{:.6g},)"
      R"("ttft_ms":{},"tpot_ms":{}}},"series":{},"moves":{},{}}})",
      Quoted(model), Version(), ready.has_value(), Quoted(ready ? "" : ready.error().message),
      ToSeconds(stats.uptime()), stats.active(), kNowSeconds, now.tokens_per_s, now.requests_per_s,
      now.errors_per_s, Percentiles(now.ttft), Percentiles(now.tpot), SeriesJson(stats),
      MovesJson(stats), list);
}

}  // namespace aisp
