// `aisp planner`: moves running workers between roles as the load changes, through the routers'
// admin API (planner/planner.h decides).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "commands/admin_client.h"
#include "commands/commands.h"
#include "common/log.h"
#include "common/metrics.h"
#include "common/strings.h"
#include "config/command_line.h"
#include "planner/planner.h"
#include "proto/role.h"
#include "server/admin_service.h"
#include "server/log_setup.h"
#include "server/process.h"
#include "server/router_resolver.h"

namespace aisp {
namespace {

using Json = nlohmann::json;

constexpr Duration kAskLimit = std::chrono::seconds(6);
// The planner is not ready after this time without any router's answer.
constexpr Duration kBlindLimit = std::chrono::seconds(10);

constexpr std::array<ExtraFlag, 14> kExtras = {{
    {"--router", "URL,...",
     "Admin ports of all router replicas (default http://127.0.0.1:8082); dns:HOST:PORT: every "
     "address of that name. Roles are changed by way of the first that answers."},
    kKeyFileFlag,
    {"--ttft-ms", "MS", "What nine of ten first tokens shall keep (default: router.slo_ttft)."},
    {"--tpot-ms", "MS", "Likewise the time per token (default: router.slo_tpot)."},
    {"--max-workers", "N", "Budget: at most so many prefill or decode at a time (default: all)."},
    {"--min-workers", "N", "Never park below so many (default 1)."},
    {"--no-park", "", "Park no worker that the load does not need."},
    {"--park-after", "SECONDS", "Park one when it was not needed for so long (default 60)."},
    {"--enough", "PERCENT",
     "Keep a split that would serve so much of the load, as 115; default: leave it for any clearly "
     "better one."},
    {"--home", "XPYD",
     "Go back to so many prefill and decode workers, as 1P2D, once nothing was asked for a "
     "second."},
    {"--interval", "MS", "Between two decisions (default 250)."},
    {"--dry-run", "", "Change nothing; log every decision with its reason."},
    {"--announce-fd", "N", "Write key=value lines (admin) to this descriptor."},
    {"--lifeline-fd", "N", "Stop when this descriptor closes."},
}};

std::string Help() {
  constexpr std::array<std::string_view, 3> kPrefixes = {"worker.admin", "router.slo", "log."};
  return "aisp planner [--router URL,...] [flags]\n\n"
         "Reads from the routers what is asked of the cluster and what its workers' steps cost, "
         "and gives the workers the\n"
         "roles that leave the most headroom: prefill, decode, or parked. Its /metrics (at "
         "worker.admin_port) tell\n"
         "autoscalers how many of each the load wants. A second planner does no harm: a change is "
         "refused where a worker\n"
         "is not what was expected.\n\n" +
         HelpForSettings(kPrefixes, kExtras);
}

v1::Role RoleOf(const Json& name) {
  return name.is_string() ? RoleNamed(name.get<std::string>()) : v1::ROLE_UNSPECIFIED;
}

WorkerStatus::State StateOf(const std::string& name) {
  using State = WorkerStatus::State;
  for (const State state :
       {State::kReady, State::kBusy, State::kDraining, State::kDrained, State::kParked}) {
    if (WorkerStateName(state) == name) return state;
  }
  return State::kNotReady;
}

StepCost CostOf(const Json& json) {
  StepCost cost;
  const Json& d = json["decode_step_ms"];
  cost.decode = {d.value("base", 0.0), d.value("per_row", 0.0), d.value("per_context_token", 0.0)};
  const Json& p = json["prompt_step_ms"];
  cost.prefill = {p.value("base", 0.0), p.value("per_token", 0.0),
                  p.value("per_position_read", 0.0), p.value("per_row", 0.0),
                  p.value("per_context_token", 0.0)};
  return cost;
}

// Parses a worker of GET /admin/workers; throws if a field has the wrong type.
WorkerStatus StatusOf(const Json& json) {
  WorkerStatus w;
  w.id = json.value("id", "");
  w.role = RoleOf(json["role"]);
  w.role_epoch = json.value("role_epoch", uint64_t{0});
  for (const Json& role : json["roles"]) w.roles.push_back(RoleOf(role));
  w.state = StateOf(json.value("state", ""));
  w.running = json.value("running", 0u);
  w.waiting = json.value("waiting", 0u);
  w.queued_prefill_tokens = json.value("queued_prefill_tokens", uint64_t{0});
  w.total_blocks = json.value("total_blocks", 0u);
  w.free_blocks = json.value("free_blocks", 0u);
  w.block_tokens = json.value("block_tokens", 0u);
  w.chunk_tokens = json.value("chunk_tokens", 0u);
  w.max_running = json.value("max_running", 0u);
  if (json["cost"].is_object()) {
    w.cost = CostOf(json["cost"]);
    w.fitted_steps = json["cost"].value("steps", uint64_t{0});
  }
  return w;
}

RouterTotals TotalsOf(const Json& json) {
  const auto value = [&](const char* key) { return json.value(key, uint64_t{0}); };
  return {value("requests"),        value("prompt_tokens"), value("placed_tokens"),
          value("uncached_tokens"), value("finished"),      value("new_tokens")};
}

// Adds what one router counted since the last query. A restarted router starts from zero.
void AddSince(const RouterTotals& before, const RouterTotals& now, RouterTotals* sum) {
  const bool restarted = now.requests < before.requests;
  const auto add = [&](uint64_t RouterTotals::*field) {
    sum->*field += restarted ? now.*field : now.*field - std::min(before.*field, now.*field);
  };
  for (const auto field :
       {&RouterTotals::requests, &RouterTotals::prompt_tokens, &RouterTotals::placed_tokens,
        &RouterTotals::uncached_tokens, &RouterTotals::finished, &RouterTotals::new_tokens})
    add(field);
}

// Limit of remembered routers.
constexpr size_t kMostRouters = 256;

struct Settings {
  std::vector<std::string> routers;  // host:port or dns:host:port
  std::string key_file;
  planner::PlannerOptions options;
  Duration interval = std::chrono::milliseconds(250);
  bool dry_run = false;
};

struct PlannerMetrics {
  explicit PlannerMetrics(Metrics* m) {
    const auto role = [&](const char* name, const char* help, const char* value) {
      return m->AddGauge(name, help, {{"worker_role", value}});
    };
    const char* wanted = "aisp_planner_wanted_replicas";
    const char* wanted_help = "Workers of a role that the load wants, within the budget";
    wanted_prefill = role(wanted, wanted_help, "prefill");
    wanted_decode = role(wanted, wanted_help, "decode");
    const char* workers = "aisp_planner_workers";
    const char* workers_help = "Workers that the planner sees at work in a role";
    prefill = role(workers, workers_help, "prefill");
    decode = role(workers, workers_help, "decode");
    headroom = m->AddGauge("aisp_planner_headroom_ratio",
                           "The load times this is what the workers of now serve in time", {});
    changes = m->AddCounter("aisp_planner_role_changes_total", "Role changes that have begun", {});
    refused = m->AddCounter("aisp_planner_role_changes_refused_total",
                            "Role changes that a router or a worker refused", {});
    blind = m->AddGauge("aisp_planner_blind", "1 while no router answers", {});
  }
  Gauge wanted_prefill, wanted_decode, prefill, decode, headroom, blind;
  Counter changes, refused;
};

class PlannerProcess {
 public:
  PlannerProcess(Settings settings, Metrics* metrics)
      : settings_(std::move(settings)), planner_(settings_.options), metrics_(metrics) {
    addresses_ = RouterResolver::WithoutNames(settings_.routers);
    if (!RouterResolver::Needed(settings_.routers)) return;
    resolver_ = std::make_unique<RouterResolver>(settings_.routers,
                                                 [this](const std::vector<std::string>& addresses) {
                                                   std::lock_guard lock(mutex_);
                                                   addresses_ = addresses;
                                                 });
  }

  // Runs once per interval.
  void Turn() {
    const Instant now = clock_.Now();
    Result<planner::Observation> seen = Observe();
    metrics_.blind.Set(seen ? 0 : 1);
    if (!seen) {
      if (std::exchange(blind_, true)) return;
      LogWarning("no router answers; nothing is decided", {{"error", seen.error().message}});
      return;
    }
    blind_ = false;
    {
      std::lock_guard lock(mutex_);
      seen_ = now;
    }
    const planner::Plan plan = planner_.Decide(now, *seen);
    metrics_.wanted_prefill.Set(plan.wanted.prefill);
    metrics_.wanted_decode.Set(plan.wanted.decode);
    metrics_.prefill.Set(plan.current.prefill);
    metrics_.decode.Set(plan.current.decode);
    metrics_.headroom.Set(plan.headroom);
    Log(settings_.dry_run || !plan.changes.empty() ? LogLevel::kInfo : LogLevel::kDebug, "plan",
        {{"dry_run", settings_.dry_run},
         {"reason", plan.reason},
         {"wanted_prefill", plan.wanted.prefill},
         {"wanted_decode", plan.wanted.decode}});
    for (const planner::Change& change : plan.changes) Ask(change);
  }

  // Any thread.
  Status Ready() const {
    std::lock_guard lock(mutex_);
    if (seen_ == kNever) return Unavailable("no router has answered yet");
    const Duration silent = clock_.Now() - seen_;
    if (silent > kBlindLimit + settings_.interval)
      return Unavailable(fmt::format("no router has answered for {:.0f} s", ToSeconds(silent)));
    return {};
  }

 private:
  // Takes the workers from the first router that answers and the requests from all routers.
  Result<planner::Observation> Observe() {
    planner::Observation seen;
    speaker_.reset();
    Error last{Code::kUnavailable, "no router is known"};
    std::vector<std::string> addresses;
    {
      std::lock_guard lock(mutex_);
      addresses = addresses_;
    }
    std::erase_if(counted_, [&](const auto& router) {
      return std::find(addresses.begin(), addresses.end(), router.first) == addresses.end();
    });
    for (const std::string& address : addresses) {
      AISP_ASSIGN_OR_RETURN(AdminClient router, AdminClient::Create(address, settings_.key_file));
      router.set_timeout(kAskLimit);
      const auto answer = router.Get("/admin/workers");
      if (!answer) {
        last = answer.error();
        continue;
      }
      try {
        // A router's totals from before we knew it say nothing about the current load.
        const RouterTotals totals = TotalsOf(answer->at("totals"));
        const auto [it, fresh] = counted_.try_emplace(address, totals);
        if (!fresh) AddSince(std::exchange(it->second, totals), totals, &sum_);
        if (speaker_) continue;
        speaker_ = router;
        for (const Json& worker : answer->at("workers")) seen.workers.push_back(StatusOf(worker));
      } catch (const Json::exception& e) {
        return Fail(Code::kInternal,
                    fmt::format("{} answers otherwise than this version understands: {}",
                                router.address(), e.what()));
      }
    }
    if (!speaker_) return tl::unexpected(last);
    seen.totals = sum_;
    return seen;
  }

  void Ask(const planner::Change& change) {
    LogInfo(settings_.dry_run ? "would change a role" : "changes a role",
            {{"worker", change.worker},
             {"from", RoleName(change.wish.expected)},
             {"to", RoleName(change.wish.to)},
             {"epoch", change.wish.expected_epoch}});
    if (settings_.dry_run) return;
    Json wish = {{"role", RoleName(change.wish.to)},
                 {"expected", RoleName(change.wish.expected)},
                 {"move_after_ms", static_cast<int64_t>(ToMs(change.wish.move_after))},
                 {"deadline_ms", static_cast<int64_t>(ToMs(change.wish.deadline))}};
    if (change.wish.expected_epoch > 0) wish["expected_epoch"] = change.wish.expected_epoch;
    const auto answer =
        speaker_->Ask("POST", fmt::format("/admin/workers/{}/role", change.worker), wish.dump());
    if (answer && answer->status < 300) return metrics_.changes.Add();
    metrics_.refused.Add();
    planner_.Refused(clock_.Now(), change.worker);
    LogWarning(
        "a change of roles was refused",
        {{"worker", change.worker}, {"error", answer ? answer->message : answer.error().message}});
  }

  const Settings settings_;
  const SteadyClock clock_;
  planner::Planner planner_;
  PlannerMetrics metrics_;
  std::optional<AdminClient> speaker_;           // the router that answered first in the last round
  std::map<std::string, RouterTotals> counted_;  // last totals, by router
  RouterTotals sum_;                             // over all routers, since each became known
  bool blind_ = false;
  mutable std::mutex mutex_;
  Instant seen_ = kNever;
  std::vector<std::string> addresses_;
  std::unique_ptr<RouterResolver> resolver_;  // calls back, so it is destroyed first
};

// "" means none.
Result<std::optional<planner::Split>> HomeOf(const std::string& text) {
  if (text.empty()) return std::optional<planner::Split>();
  const size_t p = text.find('P');
  if (p != std::string::npos && text.ends_with('D')) {
    const auto prefill = ParseIntInRange(text.substr(0, p), 0, 100'000);
    const auto decode = ParseIntInRange(text.substr(p + 1, text.size() - p - 2), 1, 100'000);
    if (prefill && decode)
      return planner::Split{static_cast<int>(*prefill), static_cast<int>(*decode)};
  }
  return InvalidArgument(fmt::format("--home: '{}' is not like 1P2D", text));
}

Result<Settings> SettingsOf(const CommandLine& line) {
  Settings s;
  const std::string urls = line.Extra("router", "http://127.0.0.1:8082");
  s.key_file = line.Extra("key-file");
  for (std::string_view url : Split(urls, ',')) {
    constexpr std::string_view kDns = "dns:";
    const bool name = url.starts_with(kDns);
    if (name) url.remove_prefix(kDns.size());
    AISP_ASSIGN_OR_RETURN(const AdminClient client, AdminClient::Create(url, s.key_file));
    s.routers.push_back((name ? "dns:" : "") + client.address());
  }
  if (s.routers.size() > kMostRouters)
    return InvalidArgument(
        fmt::format("--router names {} routers, {} is the most", s.routers.size(), kMostRouters));
  const auto ms = [&](std::string_view flag, Duration fallback) {
    return line.ExtraInt(flag, static_cast<int64_t>(ToMs(fallback)), 1, 3'600'000);
  };
  AISP_ASSIGN_OR_RETURN(const int64_t ttft, ms("ttft-ms", line.config.router.slo_ttft));
  AISP_ASSIGN_OR_RETURN(const int64_t tpot, ms("tpot-ms", line.config.router.slo_tpot));
  AISP_ASSIGN_OR_RETURN(const int64_t interval, ms("interval", s.interval));
  AISP_ASSIGN_OR_RETURN(const int64_t most, line.ExtraInt("max-workers", 0, 1, 100'000));
  AISP_ASSIGN_OR_RETURN(const int64_t least, line.ExtraInt("min-workers", 1, 1, 100'000));
  AISP_ASSIGN_OR_RETURN(const int64_t enough, line.ExtraInt("enough", 0, 100, 10'000));
  AISP_ASSIGN_OR_RETURN(s.options.home, HomeOf(line.Extra("home")));
  AISP_ASSIGN_OR_RETURN(const int64_t after, line.ExtraInt("park-after", 60, 1, 1 << 20));
  if (most > 0 && least > most)
    return InvalidArgument(fmt::format("--min-workers is {} and --max-workers {}", least, most));
  s.options.limits = {static_cast<double>(ttft), static_cast<double>(tpot)};
  s.options.max_workers = static_cast<int>(most);
  s.options.min_workers = static_cast<int>(least);
  s.options.enough = static_cast<double>(enough) / 100;
  s.options.park = !line.HasExtra("no-park");
  s.options.shrink_after = std::chrono::seconds(after);
  s.interval = std::chrono::milliseconds(interval);
  s.dry_run = line.HasExtra("dry-run");
  return s;
}

Status Run(const CommandLine& line, Settings settings) {
  AISP_ASSIGN_OR_RETURN(const int64_t announce, line.ExtraInt("announce-fd", -1, 0, 1 << 20));
  AISP_ASSIGN_OR_RETURN(const int64_t lifeline, line.ExtraInt("lifeline-fd", -1, 0, 1 << 20));
  StopSignals signals(static_cast<int>(lifeline));
  Announcer announcer(static_cast<int>(announce));
  Metrics metrics;
  const Duration interval = settings.interval;
  PlannerProcess planner(std::move(settings), &metrics);
  AISP_ASSIGN_OR_RETURN(const auto admin, AdminService::Start(line.config, &metrics, [&planner] {
                          return planner.Ready();
                        }));
  announcer.Write("admin", admin->address());
  LogInfo("planning", {{"metrics", admin->address()}});
  do {
    planner.Turn();
  } while (signals.WaitFor(static_cast<int>(ToMs(interval))).empty());
  admin->Stop();
  return {};
}

}  // namespace

int RunPlanner(const std::vector<std::string>& args) {
  auto line = ParseCommandLine(args, kExtras);
  if (!line) return ReportUsageError("planner", line.error().message);
  if (AnswerCommonFlags(*line, Help())) return 0;
  if (!line->positional.empty()) return ReportUnexpectedArgument("planner", line->positional[0]);
  auto settings = SettingsOf(*line);
  if (!settings) return ReportUsageError("planner", settings.error().message);
  const LogSession log(LogOptionsOf(line->config, "planner", "planner"));
  const Status ran = Run(*line, std::move(*settings));
  return ran ? 0 : ReportFailure(ran.error().message);
}

}  // namespace aisp
