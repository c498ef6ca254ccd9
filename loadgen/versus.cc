#include "loadgen/versus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>

namespace aisp::loadgen {
namespace {

using Json = nlohmann::ordered_json;

struct Measure {
  std::string_view name;
  bool more_is_better;
  std::function<double(const Summary&)> of;  // returns 0 for no value
};

std::vector<Measure> Measures(const Options& o) {
  std::vector<Measure> out = {
      {"Request throughput (req/s)", true, [](const Summary& s) { return s.request_throughput; }},
      {"Output throughput (tok/s)", true, [](const Summary& s) { return s.output_throughput; }}};
  if (o.goodput.any()) {
    out.push_back(
        {"Request goodput (req/s)", true, [](const Summary& s) { return s.request_goodput; }});
  }
  const auto add = [&out](std::string_view name, double Distribution::*what,
                          Distribution Summary::*metric) {
    out.push_back({name, false, [=](const Summary& s) { return s.*metric.*what; }});
  };
  add("Median TTFT (ms)", &Distribution::median, &Summary::ttft_ms);
  add("P99 TTFT (ms)", &Distribution::p99, &Summary::ttft_ms);
  add("Median TPOT (ms)", &Distribution::median, &Summary::tpot_ms);
  add("P99 TPOT (ms)", &Distribution::p99, &Summary::tpot_ms);
  add("P99 ITL (ms)", &Distribution::p99, &Summary::itl_ms);
  add("Median E2EL (ms)", &Distribution::median, &Summary::e2el_ms);
  add("P99 E2EL (ms)", &Distribution::p99, &Summary::e2el_ms);
  return out;
}

std::string Verdict(const VersusRow& row) {
  if (row.rounds == 0) return "no values";
  if (row.b_better == row.rounds) return "B better in every round";
  if (row.b_better == 0) return "A better in every round";
  return fmt::format("B better in {} of {}", row.b_better, row.rounds);
}

}  // namespace

std::vector<VersusRow> CompareRounds(const Options& o, const std::vector<Outcome>& a,
                                     const std::vector<Outcome>& b) {
  std::vector<VersusRow> out;
  const double gpus = o.ab_gpus.empty() ? 1 : o.ab_gpus[0] / o.ab_gpus[1];
  for (const Measure& measure : Measures(o)) {
    VersusRow row;
    row.name = measure.name;
    row.more_is_better = measure.more_is_better;
    double logs = 0;
    // With unequal GPUs throughput is compared per GPU; latencies are as users see them.
    const double scale = measure.more_is_better ? gpus : 1;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      const double of_a = measure.of(a[i].summary);
      const double of_b = measure.of(b[i].summary);
      row.a += of_a / static_cast<double>(a.size());
      row.b += of_b / static_cast<double>(b.size());
      if (of_a <= 0 || of_b <= 0) continue;
      const double ratio = of_b / of_a * scale;
      logs += std::log(ratio);
      row.low = row.rounds == 0 ? ratio : std::min(row.low, ratio);
      row.high = std::max(row.high, ratio);
      row.b_better += (ratio > 1) == measure.more_is_better && ratio != 1 ? 1 : 0;
      ++row.rounds;
    }
    if (row.rounds > 0) row.ratio = std::exp(logs / static_cast<double>(row.rounds));
    out.push_back(std::move(row));
  }
  return out;
}

Result<VersusResult> RunVersus(Session* a, Session* b, const Options& of_a, const Options& of_b) {
  VersusResult out;
  out.name_a = a->server();
  out.name_b = b->server();
  if (out.name_a == out.name_b) {
    return InvalidArgument(
        fmt::format("A and B are both {}: the second run would find a warm cache", out.name_a));
  }
  for (int64_t round = 0; round < of_a.ab_rounds && !out.interrupted; ++round) {
    for (const bool first : {true, false}) {
      const bool is_a = first == (round % 2 == 0);
      Options options = is_a ? of_a : of_b;
      options.seed = of_a.seed + static_cast<uint64_t>(round);
      AISP_ASSIGN_OR_RETURN(Outcome run, (is_a ? a : b)->Run(options));
      const Summary& s = run.summary;
      fmt::print(
          "round {} {}: {} done, {} failed, {:.2f} req/s, {:.1f} tok/s, TTFT {:.1f} / {:.1f} ms, "
          "TPOT "
          "{:.2f} / {:.2f} ms (median / P99)\n",
          round + 1, is_a ? 'A' : 'B', s.completed, s.failed, s.request_throughput,
          s.output_throughput, s.ttft_ms.median, s.ttft_ms.p99, s.tpot_ms.median, s.tpot_ms.p99);
      std::fflush(stdout);
      out.interrupted |= run.interrupted;
      (is_a ? out.a : out.b).push_back(std::move(run));
      if (out.interrupted) break;
    }
  }
  // An interrupted round has only one side.
  const size_t whole = std::min(out.a.size(), out.b.size());
  out.a.resize(whole);
  out.b.resize(whole);
  out.rows = CompareRounds(of_a, out.a, out.b);
  return out;
}

std::string VersusTable(const Options& o, const VersusResult& versus) {
  std::string out = fmt::format(
      "A = {}, B = {}, {} rounds{}\n", versus.name_a, versus.name_b, versus.a.size(),
      o.ab_gpus.empty() ? "; GPUs not given (--ab-gpus A,B)"
                        : fmt::format(", {:g} and {:g} GPUs", o.ab_gpus[0], o.ab_gpus[1]));
  out += fmt::format("{:<28}{:>11}{:>11}{:>8}  {:<15}\n", "mean over rounds", "A", "B", "B/A",
                     "of the rounds");
  for (const VersusRow& row : versus.rows) {
    out += fmt::format("{:<28}{:>11.2f}{:>11.2f}{:>8.3f}  {:.3f} to {:.3f}  {}\n", row.name, row.a,
                       row.b, row.ratio, row.low, row.high, Verdict(row));
  }
  if (!o.ab_gpus.empty()) {
    for (const bool of_b : {false, true}) {
      const double gpus = o.ab_gpus[of_b ? 1 : 0];
      const VersusRow& tokens = versus.rows[1];
      out += fmt::format("{}: {:.1f} output tok/s per GPU\n", of_b ? 'B' : 'A',
                         (of_b ? tokens.b : tokens.a) / gpus);
    }
  }
  out += "B/A: geometric mean of the rounds' ratios";
  if (!o.ab_gpus.empty() && o.ab_gpus[0] != o.ab_gpus[1]) out += "; of throughputs per GPU";
  return out + "\n";
}

std::string VersusJson(const Options& o, const VersusResult& versus) {
  Json out;
  out["kind"] = "versus";
  out["a"] = versus.name_a;
  out["b"] = versus.name_b;
  out["gpus"] = o.ab_gpus;
  out["rows"] = Json::array();
  for (const VersusRow& row : versus.rows) {
    out["rows"].push_back({{"name", row.name},
                           {"more_is_better", row.more_is_better},
                           {"a", row.a},
                           {"b", row.b},
                           {"ratio", row.ratio},
                           {"lowest_ratio", row.low},
                           {"highest_ratio", row.high},
                           {"rounds", row.rounds},
                           {"b_better", row.b_better}});
  }
  for (const bool of_b : {false, true}) {
    Json& runs = out[of_b ? "runs_b" : "runs_a"] = Json::array();
    for (const Outcome& run : of_b ? versus.b : versus.a) {
      runs.push_back(
          Json::parse(ResultJson(run.options, run.summary, run.environment, run.records)));
    }
  }
  return out.dump(2) + "\n";
}

}  // namespace aisp::loadgen
