// `aisp simulate`: runs the router over simulated workers, to plan and to compare policies.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "commands/admin_client.h"
#include "commands/commands.h"
#include "common/log.h"
#include "common/random.h"
#include "common/strings.h"
#include "loadgen/arrivals.h"
#include "loadgen/dataset.h"
#include "loadgen/sweep.h"
#include "server/process.h"
#include "simulate/bound.h"
#include "simulate/cluster.h"
#include "simulate/report.h"

namespace aisp {
namespace {

constexpr char kHelp[] =
    R"(aisp simulate --workers SPEC (--trace FILE | --dataset-name NAME) [flags]

Plays a load through the real router over workers in simulated time: what would so many workers do, and which
routing policy serves more of it in time? No server and no GPU is needed.

  --workers SPEC      PROFILE:2P2D: two prefill and two decode workers; PROFILE:4D: four that prefill their own
                      prompts; groups are joined by '+'. PROFILE is a .json file or one that is shipped:
                      h100-llama-3.1-8b-fp8, h200-llama-3.1-8b-fp8
  --policy LIST       cost, least-loaded, round-robin, power-of-two, prefix or all (default cost)
  --trace FILE        a Mooncake trace (.jsonl) or an Azure or BurstGPT one (.csv), at its own times
  --find-rate         the highest rate at which enough requests keep the --goodput limits, for each policy
  --routers N         replicas of the router, asked in turn; they share nothing but the workers
  --objectives        requests ask for the --goodput limits: what is not predicted to keep them is refused at once
  --prefill WHERE     auto (default), remote or local: where prompts are computed, for comparisons
  --prefix-pulls WHEN off (default), auto or always: beginnings that another worker has cached are fetched
  --class-share LIST  of the requests whose trace names no class: batch=0.3,best-effort=0.1; the rest is interactive
  --planner           workers change their roles as `aisp planner` would have them, decided four times a second
  --up-planner        likewise, as the planner that `aisp up` starts: none is parked, and while little is asked no
                      worker prefills for others
  --budget N          with --planner: at most so many workers prefill or decode at a time, the others are parked
  --max-inflight N    requests that the router has at a time; more are refused (default 1000000)
  --learn URL         writes a profile: what the router at this admin URL has learnt of its workers (--key-file FILE
                      where it wants a key); nothing is simulated then
  --bound             instead: the rate at which all workers compute without a pause, with a cache that has all that came
                      before; no policy serves all requests of this load at a higher one for long
  --csv FILE          one line for each request (of one policy)
  --json              one JSON object for each policy, with the points of the latencies' distributions

The load is described by the flags of aisp-loadgen (see its --help): --dataset-name, --dataset-path, --num-prompts,
--input-len, --output-len, --request-rate, --burstiness, --time-scale, --length-scale, --seed, --goodput and so on.
Columns: good: requests within the limits, of all that came; P, D: how busy the workers were; cached: part of the
prompts that no worker computed; us/place and p99: CPU time that the router took for one request.
)";

struct SimulateFlags {
  std::string workers, learn, key_file;
  std::string policies = "cost";
  bool find_rate = false, bound = false, objectives = false, planner = false, up_planner = false,
       json = false, help = false;
  PrefillPreference prefill = PrefillPreference::kAuto;
  PrefixPulls pulls = PrefixPulls::kOff;
  double batch = 0, best_effort = 0;  // fractions of all requests
  int64_t budget = 0, routers = 1;
  int64_t max_inflight = 1'000'000;
  std::vector<std::string> load;  // flags of aisp-loadgen
};

Result<PrefillPreference> ParsePrefill(std::string_view where) {
  if (where == "auto") return PrefillPreference::kAuto;
  if (where == "remote") return PrefillPreference::kRemote;
  if (where == "local") return PrefillPreference::kLocal;
  return InvalidArgument(fmt::format("--prefill: '{}' is none of auto, remote, local", where));
}

Result<PrefixPulls> ParsePulls(std::string_view when) {
  const auto* known = std::find(std::begin(kPrefixPulls), std::end(kPrefixPulls), when);
  if (known != std::end(kPrefixPulls))
    return static_cast<PrefixPulls>(known - std::begin(kPrefixPulls));
  return InvalidArgument(
      fmt::format("--prefix-pulls: '{}' is none of {}", when, fmt::join(kPrefixPulls, ", ")));
}

Status ParseClassShare(std::string_view list, SimulateFlags* flags) {
  for (const std::string_view each : Split(list, ',')) {
    const size_t equals = std::min(each.find('='), each.size());
    const auto part = ParseDouble(each.substr(std::min(equals + 1, each.size())));
    const auto named = ServiceClassNamed(Trim(each.substr(0, equals)));
    if (!part || !named || *part < 0 || *part > 1 || !Yields(*named)) {
      return InvalidArgument(fmt::format(
          "--class-share: '{}' is no class with its part, as in batch=0.3,best-effort=0.1", each));
    }
    (*named == ServiceClass::kBatch ? flags->batch : flags->best_effort) = *part;
  }
  if (flags->batch + flags->best_effort <= 1) return {};
  return InvalidArgument("--class-share: the parts are more than the whole");
}

// Draws other classes for a part of the interactive requests.
void DrawClasses(const SimulateFlags& flags, uint64_t seed, std::vector<loadgen::WorkItem>* items) {
  SplitMix64 random(seed ^ 0xC1A55);
  for (loadgen::WorkItem& item : *items) {
    const double drawn = random.Uniform();
    if (Yields(item.service_class) || drawn >= flags.batch + flags.best_effort) continue;
    item.service_class = drawn < flags.batch ? ServiceClass::kBatch : ServiceClass::kBestEffort;
  }
}

// Long: one branch for each flag. Flags "--flag value" or "--flag=value" of other names describe
// the load.
Result<SimulateFlags> ParseFlags(const std::vector<std::string>& args) {
  SimulateFlags flags;
  for (size_t i = 0; i < args.size(); ++i) {
    const size_t equals = args[i].find('=');
    const std::string name = args[i].substr(0, equals);
    const auto value = [&]() -> Result<std::string> {
      if (equals != std::string::npos) return args[i].substr(equals + 1);
      if (i + 1 == args.size()) return InvalidArgument(name + " needs a value");
      return args[++i];
    };
    if (name == "--help" || name == "-h") {
      flags.help = true;
    } else if (name == "--find-rate") {
      flags.find_rate = true;
    } else if (name == "--bound") {
      flags.bound = true;
    } else if (name == "--objectives") {
      flags.objectives = true;
    } else if (name == "--planner") {
      flags.planner = true;
    } else if (name == "--up-planner") {
      flags.planner = flags.up_planner = true;
    } else if (name == "--budget") {
      AISP_ASSIGN_OR_RETURN(const std::string text, value());
      const auto number = ParseIntInRange(text, 1, 1'000'000);
      if (!number) return InvalidArgument("--budget: " + number.error().message);
      flags.budget = *number;
    } else if (name == "--routers") {
      AISP_ASSIGN_OR_RETURN(const std::string text, value());
      const auto number = ParseIntInRange(text, 1, 64);
      if (!number) return InvalidArgument("--routers: " + number.error().message);
      flags.routers = *number;
    } else if (name == "--prefill") {
      AISP_ASSIGN_OR_RETURN(const std::string text, value());
      AISP_ASSIGN_OR_RETURN(flags.prefill, ParsePrefill(text));
    } else if (name == "--prefix-pulls") {
      AISP_ASSIGN_OR_RETURN(const std::string text, value());
      AISP_ASSIGN_OR_RETURN(flags.pulls, ParsePulls(text));
    } else if (name == "--class-share") {
      AISP_ASSIGN_OR_RETURN(const std::string text, value());
      AISP_RETURN_IF_ERROR(ParseClassShare(text, &flags));
    } else if (name == "--json") {
      flags.json = true;
    } else if (name == "--workers") {
      AISP_ASSIGN_OR_RETURN(flags.workers, value());
    } else if (name == "--learn") {
      AISP_ASSIGN_OR_RETURN(flags.learn, value());
    } else if (name == "--key-file") {
      AISP_ASSIGN_OR_RETURN(flags.key_file, value());
    } else if (name == "--policy") {
      AISP_ASSIGN_OR_RETURN(flags.policies, value());
    } else if (name == "--max-inflight") {
      AISP_ASSIGN_OR_RETURN(const std::string text, value());
      const auto number = ParseIntInRange(text, 1, 1'000'000'000);
      if (!number) return InvalidArgument("--max-inflight: " + number.error().message);
      flags.max_inflight = *number;
    } else if (name == "--trace") {
      AISP_ASSIGN_OR_RETURN(const std::string file, value());
      flags.load.insert(flags.load.end(),
                        {"--dataset-name", file.ends_with(".csv") ? "azure" : "mooncake",
                         "--dataset-path", file});
    } else {
      flags.load.push_back(args[i]);
    }
  }
  if (flags.budget > 0 && !flags.planner) return InvalidArgument("--budget needs --planner");
  if (flags.workers.empty() && flags.learn.empty() && !flags.help)
    return InvalidArgument("--workers is needed, as in --workers h200-llama-3.1-8b-fp8:2P2D");
  return flags;
}

Result<std::vector<std::string_view>> ParsePolicies(std::string_view list) {
  std::vector<std::string_view> names;
  if (list == "all") {
    names.assign(std::begin(kRoutingPolicies), std::end(kRoutingPolicies));
    return names;
  }
  for (std::string_view name : Split(list, ',')) {
    // Names of options must live as long as the program.
    const auto* known =
        std::find(std::begin(kRoutingPolicies), std::end(kRoutingPolicies), Trim(name));
    if (known == std::end(kRoutingPolicies)) {
      return InvalidArgument(fmt::format("--policy: '{}' is no routing policy; known: {}, all",
                                         Trim(name), fmt::join(kRoutingPolicies, ", ")));
    }
    names.push_back(*known);
  }
  return names;
}

std::string ShippedWorkers() {
  for (const char* relative :
       {"/../config/workers", "/../../config/workers", "/../share/aisp/workers"}) {
    const std::string folder = ExecutableFolder() + relative;
    if (std::filesystem::is_directory(folder)) return folder;
  }
  return ".";
}

// A load and the cluster that serves it.
class Simulator {
 public:
  Simulator(simulate::ClusterOptions cluster, loadgen::Options load,
            std::vector<loadgen::WorkItem> items)
      : cluster_(std::move(cluster)), load_(std::move(load)), items_(std::move(items)) {
    const loadgen::Goodput& g = load_.goodput;
    limits_ = {g.ttft_ms.value_or(0), g.tpot_ms.value_or(0)};
    cluster_.seed = load_.seed;
    cluster_.router.slo_ttft = FromMs(limits_.ttft_ms > 0 ? limits_.ttft_ms : 500);
    cluster_.router.slo_tpot = FromMs(limits_.tpot_ms > 0 ? limits_.tpot_ms : 50);
    if (cluster_.planner)
      cluster_.planner->limits = {ToMs(cluster_.router.slo_ttft), ToMs(cluster_.router.slo_tpot)};
  }
  const Objective& limits() const { return limits_; }
  const std::string& csv() const { return load_.csv; }
  double Bound() const { return simulate::WorkConservingRate(cluster_.fleets, items_); }

  // At the load's own rate.
  Result<simulate::Row> AtOwnRate(std::string_view policy) {
    return AtTimes(policy, OwnTimes(), /*hopeless=*/1);
  }

  // The best row with sufficient attainment; nullopt when there is none.
  Result<std::optional<simulate::Row>> Best(std::string_view policy) {
    const std::vector<double> own = OwnTimes();
    const double own_rate = RateOf(own);
    loadgen::RateSearch search(own_rate, load_.sweep_precision);
    std::optional<simulate::Row> best;
    while (const auto rate = search.Next()) {
      std::vector<double> times = own;
      for (double& at : times) at *= own_rate / *rate;
      if (!times.empty() && times.back() > simulate::kLongestArrivalsS) break;
      AISP_ASSIGN_OR_RETURN(simulate::Row row, AtTimes(policy, times, 1 - load_.slo_attainment));
      const bool kept = simulate::Attainment(row.outcome, limits_) >= load_.slo_attainment;
      std::fprintf(stderr, "%.*s: %.2f/s %s\n", static_cast<int>(policy.size()), policy.data(),
                   *rate, kept ? "kept" : "missed");
      search.Record(*rate, kept);
      if (kept) best = std::move(row);
    }
    return best;
  }

 private:
  static double RateOf(const std::vector<double>& times) {
    const double span = times.empty() ? 0 : times.back() - times.front();
    return span > 0 ? static_cast<double>(times.size()) / span : 1e6;
  }

  // The arrival times of a trace, unless a rate was given.
  std::vector<double> OwnTimes() const {
    if (!load_.request_rate && !items_.empty() && items_.front().at_s >= 0) {
      std::vector<double> times;
      times.reserve(items_.size());
      for (const loadgen::WorkItem& item : items_) times.push_back(item.at_s);
      return times;
    }
    loadgen::ArrivalPlan plan;
    plan.rate = load_.request_rate.value_or(1);
    plan.burstiness = load_.burstiness;
    plan.ramp_up = load_.ramp_up;
    plan.start_rps = load_.ramp_up_start_rps;
    plan.end_rps = load_.ramp_up_end_rps;
    return loadgen::ArrivalTimes(plan, items_.size(), load_.seed);
  }

  Result<simulate::Row> AtTimes(std::string_view policy, const std::vector<double>& times,
                                double hopeless) {
    cluster_.router.policy.name = policy;
    AISP_ASSIGN_OR_RETURN(simulate::Outcome outcome,
                          simulate::Run(cluster_, items_, times, limits_, hopeless));
    return simulate::Row{std::string(policy), RateOf(times), std::move(outcome)};
  }

  simulate::ClusterOptions cluster_;
  const loadgen::Options load_;
  const std::vector<loadgen::WorkItem> items_;
  Objective limits_;
};

Result<std::vector<simulate::Row>> Play(Simulator* simulator,
                                        const std::vector<std::string_view>& policies,
                                        bool find_rate) {
  std::vector<simulate::Row> rows;
  for (std::string_view policy : policies) {
    if (!find_rate) {
      AISP_ASSIGN_OR_RETURN(simulate::Row row, simulator->AtOwnRate(policy));
      rows.push_back(std::move(row));
      continue;
    }
    AISP_ASSIGN_OR_RETURN(std::optional<simulate::Row> best, simulator->Best(policy));
    if (best) {
      rows.push_back(std::move(*best));
    } else {
      std::fprintf(stderr, "%.*s: no rate keeps the limits\n", static_cast<int>(policy.size()),
                   policy.data());
    }
  }
  return rows;
}

// One line for each request, the columns named as aisp-loadgen's.
Status WriteCsv(const std::string& path, const simulate::Outcome& outcome) {
  constexpr const char* kEnds[] = {"completed", "refused", "failed"};
  std::string text =
      "index,status,input_tokens,output_tokens,intended_s,ttft_ms,tpot_ms,e2el_ms,"
      "predicted_ttft_ms,predicted_tpot_ms\n";
  for (size_t i = 0; i < outcome.requests.size(); ++i) {
    const simulate::Served& r = outcome.requests[i];
    text +=
        fmt::format("{},{},{},{},{:.6f},{:.3f},{:.3f},{:.3f},{:.3f},{:.3f}\n", i,
                    kEnds[static_cast<size_t>(r.end)], r.input_tokens, r.output_tokens, r.arrived_s,
                    r.ttft_ms, r.tpot_ms, r.e2e_ms, r.predicted_ttft_ms, r.predicted_tpot_ms);
  }
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) return Unavailable(fmt::format("--csv: {} cannot be written", path));
  return {};
}

using Json = nlohmann::json;

// The worker of a role with the most learnt steps; null: none.
const Json* MostLearnt(const Json& workers, std::string_view role) {
  const Json* best = nullptr;
  for (const Json& worker : workers) {
    if (worker["role"] != role || !worker["cost"].is_object()) continue;
    if (best == nullptr || worker["cost"]["steps"] > (*best)["cost"]["steps"]) best = &worker;
  }
  return best;
}

// Decode steps are learnt from a decode worker; prompt steps from a prefill worker if there is one,
// since it runs nothing else.
Result<std::string> Learn(const std::string& url, const std::string& key_file) {
  AISP_ASSIGN_OR_RETURN(const AdminClient client, AdminClient::Create(url, key_file));
  AISP_ASSIGN_OR_RETURN(const Json answer, client.Get("/admin/workers"));
  const Json* decode = MostLearnt(answer["workers"], "decode");
  if (decode == nullptr)
    return Unavailable(
        "the router has seen no step of a decode worker yet; send some requests first");
  const Json* prefill = MostLearnt(answer["workers"], "prefill");
  const Json& cost = (*decode)["cost"];
  Json prompt_step = cost["prompt_step_ms"];
  if (prefill != nullptr) {
    for (const char* key : {"base", "per_token", "per_position_read"})
      prompt_step[key] = (*prefill)["cost"]["prompt_step_ms"][key];
  }
  Json json = Json::parse(simulate::ProfileToJson({}));
  json["decode_step_ms"] = cost["decode_step_ms"];
  json["prompt_step_ms"] = prompt_step;
  for (const char* key : {"chunk_tokens", "max_batch_tokens", "max_running", "block_tokens",
                          "num_layers", "kv_bytes_per_token"})
    json[key] = (*decode)[key];
  json["blocks"] = (*decode)["total_blocks"];
  // More than one has no further effect: a step is planned when the previous one starts.
  json["launched_ahead"] = std::min(1, decode->value("launched_ahead", 0));
  const Json* sender = prefill != nullptr ? prefill : decode;
  if ((*sender)["transfer_bytes_per_s"] > 1e3)
    json["transfer_bytes_per_s"] = (*sender)["transfer_bytes_per_s"];
  json["about"] = fmt::format(
      "learnt from {} steps of {}{}", cost["steps"].get<uint64_t>(),
      (*decode)["id"].get<std::string>(),
      prefill == nullptr ? ""
                         : fmt::format(" and {} of {}", (*prefill)["cost"]["steps"].get<uint64_t>(),
                                       (*prefill)["id"].get<std::string>()));
  // A value out of range means that too few steps were seen.
  AISP_RETURN_IF_ERROR(simulate::ParseProfile(json.dump(), "learnt"));
  return json.dump(2) + "\n";
}

Result<Simulator> MakeSimulator(const SimulateFlags& flags) {
  AISP_ASSIGN_OR_RETURN(loadgen::Options load, loadgen::ParseOptions(flags.load));
  if (!load.seed_given) load.seed = std::random_device{}();
  if (flags.find_rate && !load.goodput.any())
    return InvalidArgument("--find-rate needs limits, as in --goodput ttft:500 tpot:50");
  simulate::ClusterOptions cluster;
  AISP_ASSIGN_OR_RETURN(cluster.fleets, simulate::ParseFleets(flags.workers, ShippedWorkers()));
  cluster.objectives = flags.objectives;
  cluster.prefill = flags.prefill;
  cluster.router.pulls = flags.pulls;
  cluster.routers = static_cast<int>(flags.routers);
  if (flags.up_planner) {
    int workers = 0;
    for (const simulate::Fleet& fleet : cluster.fleets) workers += fleet.prefill + fleet.decode;
    cluster.planner = planner::OptionsOfUp(workers);
  } else if (flags.planner) {
    cluster.planner.emplace();
  }
  if (cluster.planner) cluster.planner->max_workers = static_cast<int>(flags.budget);
  cluster.router.max_inflight = static_cast<int32_t>(flags.max_inflight);
  cluster.router.max_queued = static_cast<int32_t>(flags.max_inflight);
  std::vector<std::string> notes;
  AISP_ASSIGN_OR_RETURN(std::vector<loadgen::WorkItem> items, loadgen::LoadDataset(load, &notes));
  for (const std::string& note : notes) std::fprintf(stderr, "%s\n", note.c_str());
  if (items.empty()) return InvalidArgument("the load has no request");
  DrawClasses(flags, load.seed, &items);
  std::fprintf(stderr, "%zu requests, seed %llu\n", items.size(),
               static_cast<unsigned long long>(load.seed));
  return Simulator(std::move(cluster), std::move(load), std::move(items));
}

}  // namespace

int RunSimulate(const std::vector<std::string>& args) {
  const auto flags = ParseFlags(args);
  if (!flags) return ReportUsageError("simulate", flags.error().message);
  if (flags->help) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  if (!flags->learn.empty()) {
    const auto profile = Learn(flags->learn, flags->key_file);
    if (!profile) return ReportFailure(profile.error().message);
    std::fputs(profile->c_str(), stdout);
    return 0;
  }
  const auto policies = ParsePolicies(flags->policies);
  if (!policies) return ReportUsageError("simulate", policies.error().message);
  auto simulator = MakeSimulator(*flags);
  if (!simulator) return ReportUsageError("simulate", simulator.error().message);
  if (flags->bound) {
    std::fputs(fmt::format("{:.2f}\n", simulator->Bound()).c_str(), stdout);
    return 0;
  }
  // The router would log one or two lines per request.
  const LogSession quiet({.level = LogLevel::kError});
  auto rows = Play(&*simulator, *policies, flags->find_rate);
  if (!rows) return ReportFailure(rows.error().message);
  if (!simulator->csv().empty()) {
    if (rows->size() != 1) return ReportUsageError("simulate", "--csv is of one policy");
    if (const Status written = WriteCsv(simulator->csv(), rows->front().outcome); !written)
      return ReportFailure(written.error().message);
  }
  const std::string text = flags->json ? simulate::ToJson(*rows, simulator->limits(), 100)
                                       : simulate::Table(*rows, simulator->limits());
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace aisp
