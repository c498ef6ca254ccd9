#include "loadgen/html_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "loadgen/svg_chart.h"

namespace aisp::loadgen {
namespace {

constexpr std::string_view kStyle = R"(
:root{--bg:#fff;--fg:#1c2430;--dim:#5b6675;--line:#dfe4ea;--card:#f7f9fb;
--c0:#1f6feb;--c1:#d1571b;--c2:#1a7f4b;--c3:#8250df;--c4:#b08800;--c5:#cf222e}
@media(prefers-color-scheme:dark){:root{--bg:#10151c;--fg:#e4e9f0;--dim:#9aa6b5;--line:#2b3440;
--card:#18202a;--c0:#58a6ff;--c1:#f0883e;--c2:#56d364;--c3:#bc8cff;--c4:#e3b341;--c5:#ff7b72}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1240px;padding:24px 16px 48px;background:var(--bg);
color:var(--fg);font:15px/1.5 system-ui,sans-serif}h1{font-size:24px;margin:0 0 4px}
h2{font-size:18px;margin:32px 0 8px}p,.dim{color:var(--dim);margin:4px 0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:16px 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px}
.tile b{display:block;font-size:22px}.tile span{color:var(--dim);font-size:13px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(420px,100%),1fr));gap:16px}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px}
figcaption{font-weight:600}svg{width:100%;height:auto;display:block}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:13px;color:var(--dim)}
.legend i{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:6px;vertical-align:-1px}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:5px 8px;font-size:14px;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left;white-space:normal}th{color:var(--dim);font-weight:600}
tr.best td{font-weight:700}.warn{border-left:4px solid var(--c5);padding:6px 12px;background:var(--card)}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--card);border:1px solid var(--line);
border-radius:8px;padding:10px}.axis{fill:var(--dim);font-size:11px}.grid{stroke:var(--line)}
.mark{stroke:var(--c5);stroke-dasharray:5 4}polyline{fill:none;stroke-width:2;stroke-linejoin:round}
)";

void AddColours(std::string* out) {
  for (int i = 0; i < 6; ++i) {
    *out += fmt::format(
        ".s{0}{{stroke:var(--c{0})}}.d{0}{{fill:var(--c{0})}}.b{0}{{background:var(--c{0})}}", i);
  }
}

std::string Page(const std::string& title, const std::string& body) {
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
      "<meta name=\"color-scheme\" content=\"light dark\"><title>" +
      EscapeHtml(title) + "</title><style>";
  out += kStyle;
  AddColours(&out);
  return out + "</style></head><body>\n" + body + "</body></html>\n";
}

std::string Tile(const std::string& value, const std::string& what) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>", value, what);
}

std::string Row(const std::vector<std::string>& cells, const char* tag,
                const std::string& row_class = "") {
  std::string out = row_class.empty() ? "<tr>" : "<tr class=\"" + row_class + "\">";
  for (const std::string& cell : cells) {
    out += fmt::format("<{0}>{1}</{0}>", tag, EscapeHtml(cell));
  }
  return out + "</tr>\n";
}

std::string F(double value) { return fmt::format("{:.2f}", value); }

using Values = std::vector<double>;

// A value from each completed request with output.
Values Gather(const std::vector<RequestRecord>& records,
              const std::function<void(const RequestRecord&, Values*)>& add) {
  Values out;
  for (const RequestRecord& r : records) {
    if (r.status == RequestStatus::kCompleted && r.first_s >= 0) add(r, &out);
  }
  return out;
}

Values TtftOf(const std::vector<RequestRecord>& records, bool from_sent) {
  return Gather(records,
                [=](const RequestRecord& r, Values* out) { out->push_back(r.ttft_ms(from_sent)); });
}
Values E2elOf(const std::vector<RequestRecord>& records, bool from_sent) {
  return Gather(records,
                [=](const RequestRecord& r, Values* out) { out->push_back(r.e2el_ms(from_sent)); });
}
Values TpotOf(const std::vector<RequestRecord>& records) {
  return Gather(records, [](const RequestRecord& r, Values* out) {
    if (r.output_tokens > 1) out->push_back(r.tpot_ms());
  });
}
Values ItlOf(const std::vector<RequestRecord>& records) {
  return Gather(records, [](const RequestRecord& r, Values* out) {
    out->insert(out->end(), r.gaps_ms.begin(), r.gaps_ms.end());
  });
}

Chart Cdf(const std::string& title, const std::vector<std::pair<std::string, Values>>& of,
          std::optional<double> limit) {
  Chart chart{
      .title = title, .x_label = "ms", .y_label = "% at or below", .log_x = true, .y_max = 100};
  int color = 0;
  for (const auto& [name, values] : of) {
    chart.series.push_back({name, CumulativePoints(values), color++, false});
  }
  if (limit) chart.x_marks.emplace_back(*limit, fmt::format("limit {:g} ms", *limit));
  return chart;
}

// Running requests over time, one point per change, thinned.
std::vector<std::pair<double, double>> InFlight(const std::vector<RequestRecord>& records) {
  std::vector<std::pair<double, int>> changes;
  for (const RequestRecord& r : records) {
    if (r.sent_s < 0) continue;
    changes.emplace_back(r.sent_s, 1);
    changes.emplace_back(r.end_s, -1);
  }
  std::sort(changes.begin(), changes.end());
  std::vector<std::pair<double, double>> out;
  constexpr size_t kMost = 800;
  const size_t step = changes.size() / kMost + 1;
  int now = 0;
  for (size_t i = 0; i < changes.size(); ++i) {
    now += changes[i].second;
    if (i % step == 0 || i + 1 == changes.size()) out.emplace_back(changes[i].first, now);
  }
  return out;
}

std::string Timeline(const std::vector<RequestRecord>& records, bool from_sent) {
  Chart tokens{.title = "Output over time", .x_label = "seconds", .y_label = "tokens per second"};
  Series rate{"output tokens per second", {}, 0, false};
  const auto seconds = TokensPerSecond(records);
  for (size_t i = 0; i < seconds.size(); ++i) {
    rate.points.emplace_back(static_cast<double>(i), seconds[i]);
  }
  tokens.series.push_back(std::move(rate));
  Chart flight{.title = "Requests under way", .x_label = "seconds", .y_label = "requests"};
  flight.series.push_back({"sent and not ended", InFlight(records), 2, false});
  Chart ttft{.title = "TTFT of each request over time",
             .x_label = "second in which it was due",
             .y_label = "ms"};
  Series done{"completed", {}, 0, true}, lost{"failed (time to the failure)", {}, 5, true};
  for (const RequestRecord& r : records) {
    if (r.status == RequestStatus::kCompleted && r.first_s >= 0) {
      done.points.emplace_back(r.intended_s, r.ttft_ms(from_sent));
    } else if (r.status == RequestStatus::kFailed) {
      lost.points.emplace_back(r.intended_s, 1e3 * (r.end_s - r.intended_s));
    }
  }
  ttft.series = {std::move(done), std::move(lost)};
  return ChartFigure(tokens) + ChartFigure(flight) + ChartFigure(ttft);
}

std::string LatencyTable(const Options& o, const Summary& s) {
  std::vector<std::string> head = {"Latency (ms)", "mean", "median"};
  for (const double p : o.percentiles) head.push_back(PercentileName(p));
  head.insert(head.end(), {"worst", "values"});
  std::string out = "<div class=\"scroll\"><table>" + Row(head, "th");
  for (const Metric& metric : MetricsOf(s)) {
    std::vector<std::string> cells = {fmt::format("{}: {}", metric.title, metric.formula),
                                      F(metric.values.mean), F(metric.values.median)};
    for (const double p : metric.values.percentiles) cells.push_back(F(p));
    cells.insert(cells.end(), {F(metric.values.max), std::to_string(metric.values.count)});
    out += Row(cells, "td");
  }
  return out + "</table></div>\n";
}

std::string ServerTable(const Summary& s) {
  if (s.server.empty()) return "";
  std::string out = "<h2>What the server says (usage.aisp)</h2><div class=\"scroll\"><table>" +
                    Row({"", "mean", "median", "p99", "total"}, "th");
  for (const auto& [name, value] : s.server) {
    out += Row({name, F(value.values.mean), F(value.values.median), F(value.values.p99),
                name.ends_with("_ms") ? "" : fmt::format("{:g}", value.total)},
               "td");
  }
  return out + "</table></div>\n";
}

std::string FailureTable(const Summary& s) {
  if (s.failures.empty()) return "";
  std::string out =
      "<h2>Failures</h2><div class=\"scroll\"><table>" + Row({"Reason", "requests"}, "th");
  for (const auto& [reason, count] : s.failures) {
    out += Row({reason, std::to_string(count)}, "td");
  }
  return out + "</table></div>\n";
}

std::string About(const Environment& e) {
  std::string out = "<h2>How it was measured</h2><p>" + EscapeHtml(e.client_host) + "; " +
                    EscapeHtml(e.date) + "; aisp-loadgen " AISP_VERSION "</p><pre>" +
                    EscapeHtml(e.command_line) + "</pre>";
  for (const std::string& note : e.notes) out += "<p>note: " + EscapeHtml(note) + "</p>";
  return out;
}

std::string Heading(const Environment& e, const std::string& what) {
  return fmt::format("<h1>{}</h1><p>{} at {}{}</p>\n", EscapeHtml(what), EscapeHtml(e.model),
                     EscapeHtml(e.server), EscapeHtml(e.target));
}

std::string Limits(const Options& o, const Summary& s) {
  if (s.request_goodput < 0) return "";
  return Tile(fmt::format("{:.2f}", s.request_goodput),
              "good requests per second<br>" + EscapeHtml(o.goodput.ToString()));
}

std::string Tiles(const Options& o, const Summary& s, const Environment& e) {
  return "<div class=\"tiles\">" + Tile(std::to_string(s.completed), "completed") +
         Tile(std::to_string(s.failed), "failed") +
         (s.cancelled + s.not_sent > 0
              ? Tile(fmt::format("{} / {}", s.cancelled, s.not_sent), "cancelled / not sent")
              : "") +
         Tile(F(s.duration_s), "seconds") + Tile(F(s.request_throughput), "requests per second") +
         Limits(o, s) +
         Tile(fmt::format("{:.1f}", s.output_throughput), "output tokens per second") +
         Tile(F(s.ttft_ms.median), "median TTFT, ms") +
         Tile(F(s.tpot_ms.median), "median TPOT, ms") +
         Tile(fmt::format("{:.0f} %", 100 * e.cpu_share), "of a core used by this client") +
         "</div>\n";
}

std::string Warnings(const Options& o, const Summary& s, const Environment& e) {
  const std::string text = ClientWarnings(o, s, e);
  return text.empty() ? "" : "<p class=\"warn\">" + EscapeHtml(text) + "</p>";
}

}  // namespace

std::string RunPage(const Outcome& run) {
  const Options& o = run.options;
  const Summary& s = run.summary;
  const bool sent = o.latency_from_sent;
  std::string body = Heading(run.environment, "Load test of " + run.environment.date);
  body += Tiles(o, s, run.environment) + Warnings(o, s, run.environment);
  body += fmt::format("<p>Latencies start when a request {}.</p>",
                      sent ? "was sent" : "should have been sent");
  body += LatencyTable(o, s) + "<h2>Distributions</h2><div class=\"charts\">";
  body += ChartFigure(Cdf("TTFT",
                          {{"from when it was due", TtftOf(run.records, false)},
                           {"from the sending", TtftOf(run.records, true)}},
                          o.goodput.ttft_ms));
  body += ChartFigure(Cdf(
      "TPOT and ITL",
      {{"TPOT of each request", TpotOf(run.records)}, {"ITL of each chunk", ItlOf(run.records)}},
      o.goodput.tpot_ms));
  body += ChartFigure(Cdf("E2EL",
                          {{"from when it was due", E2elOf(run.records, false)},
                           {"from the sending", E2elOf(run.records, true)}},
                          o.goodput.e2el_ms));
  body += "</div><h2>Timeline</h2><div class=\"charts\">" + Timeline(run.records, sent) + "</div>";
  body += ServerTable(s) + FailureTable(s) + About(run.environment);
  return Page("aisp-loadgen: " + run.environment.model, body);
}

namespace {

std::string SweepTiles(const Options& o, const SweepResult& sweep, const std::string& swept) {
  if (!sweep.best) return "";
  const SweepPoint& best = sweep.points[*sweep.best];
  const Summary& s = best.outcome.summary;
  return "<div class=\"tiles\">" +
         Tile(F(best.value),
              "highest " + swept + " that kept<br>" + EscapeHtml(o.goodput.ToString())) +
         Tile(F(s.request_goodput), "good requests per second there") +
         Tile(fmt::format("{:.1f}", s.output_throughput), "output tokens per second there") +
         "</div>";
}

std::string SweepRows(const SweepResult& sweep, const std::string& swept) {
  std::string out = "<div class=\"scroll\"><table>" +
                    Row({swept, "completed", "failed", "good", "good/s", "req/s", "tok/s",
                         "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "tok/s per user"},
                        "th");
  for (size_t i = 0; i < sweep.points.size(); ++i) {
    const SweepPoint& p = sweep.points[i];
    const Summary& s = p.outcome.summary;
    const std::string good = p.attainment < 0 ? "-"
                                              : fmt::format("{:.1f} %{}", 100 * p.attainment,
                                                            p.stopped ? " (stopped)" : "");
    out +=
        Row({F(p.value), std::to_string(s.completed), std::to_string(s.failed), good,
             s.request_goodput < 0 ? "-" : F(s.request_goodput), F(s.request_throughput),
             fmt::format("{:.1f}", s.output_throughput), F(s.ttft_ms.median), F(s.ttft_ms.p99),
             F(s.tpot_ms.median), F(s.tpot_ms.p99), fmt::format("{:.1f}", s.per_user_tps.median)},
            "td", sweep.best && i == *sweep.best ? "best" : "");
  }
  return out + "</table></div>";
}

using OfPoint = std::function<double(const SweepPoint&)>;

Series SweepLine(const SweepResult& sweep, const char* name, int color, const OfPoint& y,
                 const OfPoint& x) {
  Series out{name, {}, color, false};
  for (const SweepPoint& p : sweep.points) {
    // A stopped run has no meaningful throughput or latency.
    if (!p.stopped) out.points.emplace_back(x(p), y(p));
  }
  return out;
}

std::string SweepCharts(const Options& o, const SweepResult& sweep, const std::string& swept) {
  const OfPoint value = [](const SweepPoint& p) { return p.value; };
  const auto of = [](auto get) -> OfPoint {
    return [get](const SweepPoint& p) { return get(p.outcome.summary); };
  };
  const auto line = [&](const char* name, int color, const OfPoint& y) {
    return SweepLine(sweep, name, color, y, value);
  };
  const auto chart = [&](const char* title, const char* unit) {
    return Chart{.title = title, .x_label = swept, .y_label = unit};
  };
  const OfPoint throughput = of([](const Summary& s) { return s.output_throughput; });
  Chart tokens = chart("Throughput", "output tokens per second");
  tokens.series = {line("output tokens per second", 0, throughput)};
  Chart requests = chart("Requests", "requests per second");
  requests.series = {
      line("completed per second", 0, of([](const Summary& s) { return s.request_throughput; }))};
  if (o.goodput.any()) {
    requests.series.push_back(
        line("good per second", 2, of([](const Summary& s) { return s.request_goodput; })));
  }
  Chart ttft = chart("TTFT", "ms");
  ttft.series = {line("median", 0, of([](const Summary& s) { return s.ttft_ms.median; })),
                 line("P99", 1, of([](const Summary& s) { return s.ttft_ms.p99; }))};
  Chart tpot = chart("TPOT", "ms");
  tpot.series = {line("median", 0, of([](const Summary& s) { return s.tpot_ms.median; })),
                 line("P99", 1, of([](const Summary& s) { return s.tpot_ms.p99; }))};
  Chart frontier = chart("All users against one user", "output tokens per second of all");
  frontier.x_label = "tokens per second of one user (median)";
  frontier.series = {SweepLine(sweep, "one run each", 3, throughput,
                               of([](const Summary& s) { return s.per_user_tps.median; }))};
  std::string out = "<h2>Charts</h2><div class=\"charts\">";
  for (const Chart& each : {tokens, requests, ttft, tpot, frontier}) out += ChartFigure(each);
  return out + "</div>";
}

}  // namespace

std::string SweepPage(const Options& o, const SweepResult& sweep) {
  if (sweep.points.empty()) return Page("aisp-loadgen", "<p>No run was completed.</p>");
  const Environment& e = sweep.points.front().outcome.environment;
  const std::string swept = sweep.of_rates ? "requests per second" : "requests at a time";
  return Page("aisp-loadgen: sweep of " + e.model,
              Heading(e, "Sweep of " + e.date) + SweepTiles(o, sweep, swept) +
                  SweepRows(sweep, swept) + SweepCharts(o, sweep, swept) + About(e));
}

std::string VersusPage(const Options& o, const VersusResult& versus) {
  if (versus.a.empty()) return Page("aisp-loadgen", "<p>No round was completed.</p>");
  const Environment& e = versus.a.front().environment;
  std::string body = "<h1>A against B</h1><p>A = " + EscapeHtml(versus.name_a) +
                     "<br>B = " + EscapeHtml(versus.name_b) + "</p>";
  if (!o.ab_gpus.empty()) {
    body += fmt::format("<p>{:g} and {:g} GPUs</p>", o.ab_gpus[0], o.ab_gpus[1]);
  }
  body += "<div class=\"scroll\"><table>" +
          Row({"mean over rounds", "A", "B", "B/A", "lowest", "highest", "rounds B better"}, "th");
  for (const VersusRow& row : versus.rows) {
    body += Row({row.name, F(row.a), F(row.b), fmt::format("{:.3f}", row.ratio),
                 fmt::format("{:.3f}", row.low), fmt::format("{:.3f}", row.high),
                 fmt::format("{} of {}", row.b_better, row.rounds)},
                "td");
  }
  body +=
      "</table></div><p>B/A is the geometric mean of the rounds' ratios.</p>"
      "<h2>Distributions over all rounds</h2><div class=\"charts\">";
  const auto pooled = [](const std::vector<Outcome>& runs,
                         const std::function<Values(const std::vector<RequestRecord>&)>& of) {
    Values out;
    for (const Outcome& run : runs) {
      const Values some = of(run.records);
      out.insert(out.end(), some.begin(), some.end());
    }
    return out;
  };
  const bool sent = o.latency_from_sent;
  const auto add = [&](const char* title, std::optional<double> limit,
                       const std::function<Values(const std::vector<RequestRecord>&)>& of) {
    body +=
        ChartFigure(Cdf(title, {{"A", pooled(versus.a, of)}, {"B", pooled(versus.b, of)}}, limit));
  };
  add("TTFT", o.goodput.ttft_ms, [=](const auto& records) { return TtftOf(records, sent); });
  add("TPOT", o.goodput.tpot_ms, [](const auto& records) { return TpotOf(records); });
  add("ITL", std::nullopt, [](const auto& records) { return ItlOf(records); });
  add("E2EL", o.goodput.e2el_ms, [=](const auto& records) { return E2elOf(records, sent); });
  return Page("aisp-loadgen: A against B", body + "</div>" + About(e));
}

}  // namespace aisp::loadgen
