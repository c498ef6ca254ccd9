#include "loadgen/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace aisp::loadgen {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kFewest = 10;        // requests per run
constexpr int64_t kRoundsOfASlot = 8;  // requests per slot of a closed loop
constexpr double kLowest = 1e-3;       // a server that misses its limits at this rate has no
                                       // sustainable rate
constexpr double kHighest = 1e6;

Options PointOptions(const Options& o, bool of_rates, double value, size_t index) {
  Options out = o;
  out.seed = o.seed + 1 + index;  // different prompts, so that one run does not warm the cache for
                                  // the next
  int64_t count = 0;
  if (of_rates) {
    out.request_rate = value;
    count = static_cast<int64_t>(std::ceil(value * o.sweep_duration_s));
  } else {
    out.max_concurrency = static_cast<int64_t>(value);
    count = kRoundsOfASlot * out.max_concurrency;
  }
  if (o.num_prompts == 0) out.num_prompts = std::max(kFewest, count);
  out.stop_when_hopeless = o.sweep;
  return out;
}

std::string PointLine(const SweepPoint& p) {
  const Summary& s = p.outcome.summary;
  std::string out = fmt::format("{:>10.2f}{:>9}{:>9}", p.value, s.completed, s.failed);
  out +=
      p.attainment < 0 ? fmt::format("{:>9}", "-") : fmt::format("{:>8.1f}%", 100 * p.attainment);
  out += s.request_goodput < 0 ? fmt::format("{:>9}", "-")
                               : fmt::format("{:>9.2f}", s.request_goodput);
  out += fmt::format("{:>9.2f}{:>10.1f}{:>9.1f}{:>9.1f}{:>9.2f}{:>9.2f}{:>9.1f}",
                     s.request_throughput, s.output_throughput, s.ttft_ms.median, s.ttft_ms.p99,
                     s.tpot_ms.median, s.tpot_ms.p99, s.per_user_tps.median);
  if (p.stopped) out += "  stopped early";
  if (p.outcome.environment.cpu_share > 0.7) out += "  CLIENT BUSY";
  return out + "\n";
}

std::string HeadLine(bool of_rates) {
  return fmt::format("{:>10}{:>9}{:>9}{:>9}{:>9}{:>9}{:>10}{:>9}{:>9}{:>9}{:>9}{:>9}\n",
                     of_rates ? "rate" : "at a time", "done", "failed", "good", "good/s", "req/s",
                     "tok/s", "TTFT p50", "p99 ms", "TPOT p50", "p99 ms", "tok/s/us");
}

Result<SweepPoint> RunPoint(Session* session, const Options& o, bool of_rates, double value,
                            size_t index) {
  SweepPoint point;
  point.value = value;
  AISP_ASSIGN_OR_RETURN(point.outcome, session->Run(PointOptions(o, of_rates, value, index)));
  const Summary& s = point.outcome.summary;
  point.stopped = point.outcome.stopped;
  if (o.goodput.any()) {
    // Deliberately cancelled requests are not judged, unless the run stopped because the server was
    // lost.
    const int64_t judged = s.requests - (point.stopped ? 0 : s.cancelled + s.not_sent);
    point.attainment =
        judged > 0 ? static_cast<double>(s.good_requests) / static_cast<double>(judged) : 0;
    point.kept = !point.stopped && point.attainment >= o.slo_attainment;
  }
  if (index == 0) fmt::print("{}", HeadLine(of_rates));
  fmt::print("{}", PointLine(point));
  std::fflush(stdout);
  return point;
}

}  // namespace

std::optional<double> RateSearch::Next() const {
  if (runs_ >= kMaxRuns) return std::nullopt;
  if (!low_ && !high_) return start_;
  if (!high_) return *low_ * 2 > kHighest ? std::nullopt : std::optional(*low_ * 2);
  if (!low_) return *high_ / 2 < kLowest ? std::nullopt : std::optional(*high_ / 2);
  if (*high_ <= *low_ * (1 + precision_)) return std::nullopt;
  return std::sqrt(*low_ * *high_);
}

void RateSearch::Record(double rate, bool kept) {
  ++runs_;
  if (kept) {
    low_ = std::max(rate, low_.value_or(rate));
  } else {
    high_ = std::min(rate, high_.value_or(rate));
  }
}

Result<SweepResult> RunSweep(Session* session, const Options& o) {
  SweepResult out;
  out.of_rates = o.sweep_concurrency.empty();
  const std::vector<double>& list = out.of_rates ? o.sweep_rates : o.sweep_concurrency;
  RateSearch search(o.sweep_start, o.sweep_precision);
  for (size_t i = 0;; ++i) {
    std::optional<double> next;
    if (o.sweep) {
      next = search.Next();
    } else if (i < list.size()) {
      next = list[i];
    }
    if (!next) break;
    AISP_ASSIGN_OR_RETURN(SweepPoint point, RunPoint(session, o, out.of_rates, *next, i));
    out.interrupted = point.outcome.interrupted;
    if (out.interrupted) break;
    search.Record(*next, point.kept);
    out.points.push_back(std::move(point));
  }
  std::stable_sort(out.points.begin(), out.points.end(),
                   [](const SweepPoint& a, const SweepPoint& b) { return a.value < b.value; });
  for (size_t i = 0; i < out.points.size(); ++i) {
    if (out.points[i].kept) out.best = i;
  }
  return out;
}

std::string SweepTable(const Options& o, const SweepResult& sweep) {
  std::string out = HeadLine(sweep.of_rates);
  for (const SweepPoint& point : sweep.points) out += PointLine(point);
  out +=
      "good: share of the requests that kept all limits; good/s: those per second of the run; TTFT "
      "and "
      "TPOT in ms;\ntok/s/us: 1000/TPOT of the median request, what one user sees\n";
  if (!o.goodput.any()) return out;
  const std::string what =
      fmt::format("{} for {:g} % of the requests", o.goodput.ToString(), 100 * o.slo_attainment);
  const char* unit = sweep.of_rates ? "req/s" : "requests at a time";
  if (!sweep.best) {
    return out +
           fmt::format("no {} of these kept {}\n", sweep.of_rates ? "rate" : "concurrency", what);
  }
  const SweepPoint& best = sweep.points[*sweep.best];
  out +=
      fmt::format("highest that kept {}: {:.2f} {} ({:.2f} good requests/s, {:.1f} output tok/s)\n",
                  what, best.value, unit, best.outcome.summary.request_goodput,
                  best.outcome.summary.output_throughput);
  if (*sweep.best + 1 == sweep.points.size()) {
    out += "note: nothing higher was tried that failed: the limit lies above\n";
  }
  return out;
}

std::string SweepJson(const Options& o, const SweepResult& sweep) {
  Json out;
  out["kind"] = "sweep";
  out["swept"] = sweep.of_rates ? "request_rate" : "max_concurrency";
  out["slo_attainment"] = o.slo_attainment;
  out["best"] = sweep.best ? Json(sweep.points[*sweep.best].value) : Json();
  out["best_goodput"] =
      sweep.best ? Json(sweep.points[*sweep.best].outcome.summary.request_goodput) : Json();
  out["points"] = Json::array();
  for (const SweepPoint& point : sweep.points) {
    const Outcome& run = point.outcome;
    Json entry = {{"value", point.value},
                  {"attainment", point.attainment >= 0 ? Json(point.attainment) : Json()},
                  {"kept", point.kept},
                  {"stopped_early", point.stopped}};
    entry["result"] =
        Json::parse(ResultJson(run.options, run.summary, run.environment, run.records));
    out["points"].push_back(std::move(entry));
  }
  return out.dump(2) + "\n";
}

std::string SweepCsv(const SweepResult& sweep) {
  std::string out = fmt::format(
      "{},completed,failed,attainment,kept,stopped_early,request_goodput,request_throughput,"
      "output_throughput,median_ttft_ms,p99_ttft_ms,median_tpot_ms,p99_tpot_ms,median_e2el_ms,"
      "p99_e2el_ms,median_output_throughput_per_user\n",
      sweep.of_rates ? "request_rate" : "max_concurrency");
  for (const SweepPoint& p : sweep.points) {
    const Summary& s = p.outcome.summary;
    out += fmt::format(
        "{},{},{},{:.4f},{},{},{:.4f},{:.4f},{:.3f},{:.3f},{:.3f},{:.3f},{:.3f},{:.3f},"
        "{:.3f},{:.3f}\n",
        p.value, s.completed, s.failed, p.attainment, p.kept ? 1 : 0, p.stopped ? 1 : 0,
        s.request_goodput, s.request_throughput, s.output_throughput, s.ttft_ms.median,
        s.ttft_ms.p99, s.tpot_ms.median, s.tpot_ms.p99, s.e2el_ms.median, s.e2el_ms.p99,
        s.per_user_tps.median);
  }
  return out;
}

}  // namespace aisp::loadgen
