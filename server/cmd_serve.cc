// `aisp serve`: one process with the router, one worker, or all three roles.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "common/log.h"
#include "common/metrics.h"
#include "common/strings.h"
#include "config/command_line.h"
#include "kvcache/transport/inproc.h"
#include "server/admin_service.h"
#include "server/commands.h"
#include "server/process.h"
#include "server/router_service.h"
#include "server/worker_service.h"

namespace aisp {
namespace {

constexpr std::array<ExtraFlag, 2> kExtras = {{
    {"--announce-fd", "N",
     "Write key=value lines about this process to this descriptor (used by aisp up)."},
    {"--lifeline-fd", "N", "Stop when this descriptor closes (used by aisp up)."},
}};

std::string Help() {
  constexpr std::array<std::string_view, 7> kPrefixes = {"role",    "model.",  "http.", "router.",
                                                         "worker.", "engine.", "log."};
  return "aisp serve [--role all|router|prefill|decode] [--config FILE] [flags]\n\n" +
         HelpForSettings(kPrefixes, kExtras);
}

// Everything that runs in this process, in the order in which it is started.
class Process {
 public:
  Process(const Config& config, Announcer* announcer) : config_(config), announcer_(announcer) {}

  Status Start() {
    AISP_ASSIGN_OR_RETURN(served_, LoadServedModel(config_));
    const bool all = config_.role == "all";
    if (all || config_.role == "router") AISP_RETURN_IF_ERROR(StartRouter(all));
    if (!all && config_.role != "router") AISP_RETURN_IF_ERROR(StartAdmin());
    for (const char* role : {"prefill", "decode"}) {
      if (all || config_.role == role) AISP_RETURN_IF_ERROR(StartWorker(role));
    }
    return {};
  }

  // Router first, so that nothing new comes in while the workers finish what runs.
  void Stop(const std::function<bool()>& haste) {
    if (router_) router_->DrainAndStop(config_.drain_timeout, haste);
    for (auto& worker : workers_) worker->DrainAndStop(config_.drain_timeout, haste);
    if (admin_) admin_->Stop();
  }

 private:
  Status StartRouter(bool all) {
    AISP_ASSIGN_OR_RETURN(router_, RouterService::Create(config_, served_.get(), &clock_, &metrics_,
                                                         all ? &hub_ : nullptr));
    AISP_RETURN_IF_ERROR(router_->Start());
    announcer_->Say("http", router_->http_address());
    announcer_->Say("workers", router_->workers_address());
    LogInfo("serving", {{"url", "http://" + router_->http_address()},
                        {"model", served_->name},
                        {"workers", router_->workers_address()}});
    return {};
  }

  Status StartAdmin() {
    AISP_ASSIGN_OR_RETURN(
        admin_, AdminService::Start(config_, &metrics_, [this] { return WorkersReady(); }));
    announcer_->Say("admin", admin_->address());
    return {};
  }

  Status WorkersReady() const {
    std::lock_guard lock(workers_mutex_);
    if (workers_.empty()) return Unavailable("the weights are being loaded");
    for (const auto& worker : workers_) AISP_RETURN_IF_ERROR(worker->Ready());
    return {};
  }

  Status StartWorker(const std::string& role) {
    host_.config = &config_;
    host_.served = served_.get();
    host_.clock = &clock_;
    host_.metrics = &metrics_;
    const bool all = config_.role == "all";
    if (all) {
      host_.local = &hub_;
      host_.inproc = &inproc_;
    }
    std::string id = config_.worker.id;
    if (id.empty() || all) id = all ? role : fmt::format("{}-{}", role, getpid());
    AISP_ASSIGN_OR_RETURN(auto worker, WorkerService::Create(host_, role, id));
    worker->Start([this, id, role] {
      announcer_->Say("ready", id);
      LogInfo("worker registered", {{"worker", id}, {"role", role}});
    });
    std::lock_guard lock(workers_mutex_);
    workers_.push_back(std::move(worker));
    return {};
  }

  const Config config_;
  Announcer* const announcer_;
  SteadyClock clock_;
  Metrics metrics_;
  LocalHub hub_;
  InprocHub inproc_;
  std::unique_ptr<ServedModel> served_;
  WorkerHost host_;
  std::unique_ptr<RouterService> router_;
  mutable std::mutex workers_mutex_;
  std::vector<std::unique_ptr<WorkerService>> workers_;
  std::unique_ptr<AdminService> admin_;  // reads workers_: goes first
};

Result<int> FdOf(const CommandLine& line, std::string_view name) {
  if (!line.HasExtra(name)) return -1;
  AISP_ASSIGN_OR_RETURN(int64_t fd, ParseIntInRange(line.Extra(name), 0, 1 << 20));
  return static_cast<int>(fd);
}

LogOptions LogOptionsOf(const Config& config) {
  LogOptions o;
  const std::string& level = config.log.level;
  o.level = level == "debug"     ? LogLevel::kDebug
            : level == "warning" ? LogLevel::kWarning
            : level == "error"   ? LogLevel::kError
                                 : LogLevel::kInfo;
  o.format = config.log.format == "json" ? LogFormat::kJson : LogFormat::kText;
  return o;
}

}  // namespace

int RunServe(const std::vector<std::string>& args) {
  auto line = ParseCommandLine(args, kExtras);
  if (!line) return ReportUsageError("serve", line.error().message);
  if (AnswerCommonFlags(*line, Help())) return 0;
  if (!line->positional.empty())
    return ReportUsageError("serve", "unexpected argument '" + line->positional[0] + "'");
  const auto announce_fd = FdOf(*line, "announce-fd");
  const auto lifeline_fd = FdOf(*line, "lifeline-fd");
  if (!announce_fd || !lifeline_fd)
    return ReportUsageError("serve", "a descriptor is a small whole number");

  LogSession log(LogOptionsOf(line->config));
  Announcer announcer(*announce_fd);
  StopSignals signals(*lifeline_fd);
  Process process(line->config, &announcer);
  if (const Status started = process.Start(); !started) {
    FlushLog(std::chrono::seconds(1));
    return ReportFailure(started.error().message);
  }
  const std::string why = signals.Wait();
  LogInfo("stopping", {{"why", why}});
  // A second signal asks for haste.
  process.Stop([&] { return !signals.WaitFor(0).empty(); });
  LogInfo("stopped");
  return 0;
}

}  // namespace aisp
