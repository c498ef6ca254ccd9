#include "loadgen/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

#include "common/strings.h"
#include "loadgen/html_report.h"
#include "loadgen/options.h"
#include "loadgen/replay_server.h"
#include "loadgen/report.h"
#include "loadgen/session.h"
#include "loadgen/sweep.h"
#include "loadgen/versus.h"

namespace aisp::loadgen {
namespace {

constexpr int kFailedExit = 1;
constexpr int kUsageExit = 2;
constexpr int kInterruptedExit = 130;

int Complain(const Error& error, int code) {
  fmt::print(stderr, "aisp-loadgen: {}\n", error.message);
  return code;
}

Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) return Unavailable(fmt::format("{} cannot be written", path));
  return {};
}

Result<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return NotFound(fmt::format("{} cannot be read", path));
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::string ResultPath(const Options& o, const Session& session) {
  std::string name = o.result_filename;
  if (name.empty()) {
    std::string model = session.model();
    std::replace(model.begin(), model.end(), '/', '-');
    const std::string rate = o.request_rate ? fmt::format("{:g}qps", *o.request_rate) : "infqps";
    name = fmt::format("aisp-{}-{}-{}.json", rate, model, session.date());
  }
  if (o.result_dir.empty() || name.starts_with('/')) return name;
  return o.result_dir + "/" + name;
}

// Finds problems with files before the first request.
Status CheckFiles(const Options& o, const std::string& result_path) {
  for (const std::string& path : {o.save_result ? result_path : std::string(), o.csv, o.html}) {
    if (path.empty()) continue;
    std::ofstream out(path, std::ios::app);
    if (!out) return InvalidArgument(fmt::format("{} cannot be written", path));
  }
  return {};
}

Status WriteResults(const Options& o, const std::string& path, const Outcome& run) {
  if (o.save_result) {
    AISP_RETURN_IF_ERROR(WriteFile(path, ResultJson(o, run.summary, run.environment, run.records)));
    fmt::print("result: {}\n", path);
  }
  if (!o.csv.empty()) {
    AISP_RETURN_IF_ERROR(WriteFile(o.csv, RequestsCsv(run.records, o.latency_from_sent)));
    fmt::print("requests: {}\n", o.csv);
  }
  if (!o.html.empty()) {
    AISP_RETURN_IF_ERROR(WriteFile(o.html, RunPage(run)));
    fmt::print("report: {}\n", o.html);
  }
  return {};
}

// Prints the result of --compare to stdout; false: texts differ.
Result<bool> Compare(const Options& o, const std::string& baseline,
                     const std::vector<RequestRecord>& records) {
  if (o.compare.empty()) return true;
  const auto compared = CompareTexts(baseline, records);
  if (compared) {
    fmt::print("compare: {}\n", *compared);
    return true;
  }
  const Error error = compared.error().WithContext("--compare " + o.compare);
  if (compared.error().code != Code::kDataLoss) return tl::unexpected(error);
  fmt::print("compare: TEXTS DIFFER: {}\n", compared.error().message);
  return false;
}

// A new seed, short enough to be typed.
uint64_t FreshSeed() { return std::random_device()() % 1'000'000'000; }

// A comparison reuses its baseline's seed.
uint64_t SeedOf(const std::string& baseline) {
  const auto json = nlohmann::json::parse(baseline, nullptr, /*allow_exceptions=*/false);
  const bool known = json.is_object() && json.contains("seed") && json["seed"].is_number_unsigned();
  return known ? json["seed"].get<uint64_t>() : FreshSeed();
}

// Writes the files of a sweep or comparison.
Status WriteMany(const Options& o, const std::string& path, const std::string& json,
                 const std::string& csv, const std::string& html) {
  if (o.save_result) {
    AISP_RETURN_IF_ERROR(WriteFile(path, json));
    fmt::print("result: {}\n", path);
  }
  if (!o.csv.empty()) {
    AISP_RETURN_IF_ERROR(WriteFile(o.csv, csv));
    fmt::print("runs: {}\n", o.csv);
  }
  if (!o.html.empty()) {
    AISP_RETURN_IF_ERROR(WriteFile(o.html, html));
    fmt::print("report: {}\n", o.html);
  }
  return {};
}

Result<int> MeasureSweep(const Options& o, Session* session, const std::string& path) {
  AISP_ASSIGN_OR_RETURN(const SweepResult sweep, RunSweep(session, o));
  fmt::print("\n{}", SweepTable(o, sweep));
  AISP_RETURN_IF_ERROR(
      WriteMany(o, path, SweepJson(o, sweep), SweepCsv(sweep), SweepPage(o, sweep)));
  if (sweep.interrupted) return kInterruptedExit;
  return o.sweep && !sweep.best ? kFailedExit : 0;
}

Result<int> MeasureVersus(const Options& o, Session* a, const std::vector<std::string>& args,
                          const std::string& path) {
  Options of_b = o;
  of_b.base_url = o.ab_url;
  AISP_ASSIGN_OR_RETURN(Session b, Session::Open(of_b, args));
  AISP_ASSIGN_OR_RETURN(const VersusResult versus, RunVersus(a, &b, o, of_b));
  fmt::print("\n{}", VersusTable(o, versus));
  AISP_RETURN_IF_ERROR(WriteMany(o, path, VersusJson(o, versus), "", VersusPage(o, versus)));
  if (versus.interrupted) return kInterruptedExit;
  const auto failed = [](const std::vector<Outcome>& runs) {
    return std::any_of(runs.begin(), runs.end(),
                       [](const Outcome& run) { return run.summary.failed > 0; });
  };
  return failed(versus.a) || failed(versus.b) ? kFailedExit : 0;
}

Result<int> Measure(Options o, const std::vector<std::string>& args) {
  std::string baseline;
  if (!o.compare.empty()) {
    AISP_ASSIGN_OR_RETURN(baseline, ReadFile(o.compare));
  }
  if (!o.seed_given) o.seed = o.compare.empty() ? FreshSeed() : SeedOf(baseline);
  AISP_ASSIGN_OR_RETURN(Session session, Session::Open(o, args));
  const std::string path = ResultPath(o, session);
  AISP_RETURN_IF_ERROR(CheckFiles(o, path));
  if (o.many_runs()) return MeasureSweep(o, &session, path);
  if (!o.ab_url.empty()) return MeasureVersus(o, &session, args, path);
  AISP_ASSIGN_OR_RETURN(const Outcome run, session.Run(o));
  const Summary& summary = run.summary;
  fmt::print("{}{}", Table(o, summary, run.environment),
             ClientWarnings(o, summary, run.environment));
  AISP_RETURN_IF_ERROR(WriteResults(o, path, run));
  AISP_ASSIGN_OR_RETURN(const bool equal, Compare(o, baseline, run.records));
  if (!summary.adds_up()) {
    return Internal(fmt::format(
        "the counts do not add up: {} completed + {} failed + {} cancelled + {} not "
        "sent of {} requests; this is a bug of aisp-loadgen",
        summary.completed, summary.failed, summary.cancelled, summary.not_sent, summary.requests));
  }
  if (run.interrupted) return kInterruptedExit;
  return equal && summary.failed == 0 ? 0 : kFailedExit;
}

}  // namespace

int RunLoadgen(const std::vector<std::string>& args) {
  const auto options = ParseOptions(args);
  if (!options) return Complain(options.error(), kUsageExit);
  if (options->help) {
    fmt::print("{}", HelpText());
    return 0;
  }
  if (options->version) {
    fmt::print("aisp-loadgen {}\n", AISP_VERSION);
    return 0;
  }
  const Options& o = *options;
  if (o.serve_replay) {
    const Status served = ServeReplay({.host = o.host,
                                       .port = static_cast<uint16_t>(o.port_given ? o.port : 0),
                                       .ttft_ms = o.replay_ttft_ms,
                                       .tpot_ms = o.replay_tpot_ms,
                                       .chunk_tokens = o.replay_chunk_tokens,
                                       .max_streams = o.replay_max_streams,
                                       .cut_after = o.replay_cut_after},
                                      o.replay_file);
    return served ? 0 : Complain(served.error(), kFailedExit);
  }
  const auto code = Measure(o, args);
  if (!code) return Complain(code.error(), kFailedExit);
  return *code;
}

}  // namespace aisp::loadgen
