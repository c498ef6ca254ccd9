// `aisp serve`: one process with one role, with a router and a worker that does everything (all),
// or with all three roles (split).
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <thread>

#include "commands/commands.h"
#include "common/log.h"
#include "common/metrics.h"
#include "common/strings.h"
#include "config/command_line.h"
#include "config/socket_activation.h"
#include "kvcache/transport/inproc.h"
#include "net/grpc_links.h"
#include "net/library_logs.h"
#include "net/listen_socket.h"
#include "server/admin_service.h"
#include "server/invitation.h"
#include "server/log_setup.h"
#include "server/model_source.h"
#include "server/process.h"
#include "server/process_metrics.h"
#include "server/router_service.h"
#include "server/worker_service.h"

namespace aisp {
namespace {

constexpr std::array<ExtraFlag, 8> kExtras = {{
    {"--name", "NAME",
     "Name of this process in its log lines; default: worker.id, else one of its own."},
    {"--announce-fd", "N",
     "Write key=value lines about this process to this descriptor (used by aisp up)."},
    {"--lifeline-fd", "N", "Stop when this descriptor closes (used by aisp up)."},
    {"--last-exit", "PID:SIGNAL:CODE",
     "How the worker that this one replaces ended (used by aisp up)."},
    {"--http-fd", "N", "Router: serve HTTP on this listening socket instead of http.port."},
    {"--workers-fd", "N", "Router: workers attach on this one instead of router.listen."},
    {"--grpc-fd", "N", "Router: gRPC clients come to this one instead of http.grpc_port."},
    {"--admin-fd", "N", "Router: the admin port is this one instead of router.admin_port."},
}};

constexpr std::string_view kSignals =
    "\nSIGTERM, SIGINT: drain, then exit. A router stops listening (a successor that shares its "
    "sockets\n"
    "goes on: LISTEN_FDS or the -fd flags), answers what is open and ends after drain_timeout at "
    "the\n"
    "latest. A decode worker gives back what has not started, finishes what runs, and after\n"
    "drain_timeout hands running streams to other decode workers. A prefill worker finishes what "
    "it was\n"
    "granted blocks for. A second signal: exit at once.\n";

std::string Help() {
  constexpr std::array<std::string_view, 8> kPrefixes = {"role",    "model.",  "http.",  "router.",
                                                         "worker.", "engine.", "trace.", "log."};
  return "aisp serve [--role all|split|router|prefill|decode] [--config FILE] [flags]\n\n"
         "all: a router and one worker that prefills and decodes; the weights are loaded once.\n"
         "split: a router, a prefill and a decode worker, each with its own weights, in one "
         "process.\n\n" +
         HelpForSettings(kPrefixes, kExtras) + std::string(kSignals);
}

// Everything that runs in this process, in starting order.
class Process {
 public:
  Process(const Config& config, const std::string& name, const RouterSockets& sockets,
          const std::optional<v1::LastExit>& last_exit, Announcer* announcer)
      : config_(config), name_(name), sockets_(sockets), announcer_(announcer) {
    host_.last_exit = last_exit;
  }

  Status Start() {
    AddProcessMetrics(&metrics_, config_.role);
    AISP_ASSIGN_OR_RETURN(served_, LoadServedModel(config_));
    if (OneProcess() || config_.role == "router") AISP_RETURN_IF_ERROR(StartRouter());
    if (!OneProcess() && config_.role != "router") AISP_RETURN_IF_ERROR(StartAdmin());
    if (Split() || config_.role == "prefill") AISP_RETURN_IF_ERROR(StartWorker("prefill"));
    if (OneProcess() || config_.role == "decode") AISP_RETURN_IF_ERROR(StartWorker("decode"));
    return {};
  }

  // Router first, so that no new request arrives while the workers finish.
  void Stop(const std::function<bool()>& haste) {
    if (router_) router_->DrainAndStop(config_.drain_timeout, haste);
    // If the router is in another process, streams that no other worker can take are finished here;
    // each has a deadline.
    const Duration more = router_ ? Duration{} : config_.router.default_timeout;
    for (auto& worker : workers_) worker->DrainAndStop(config_.drain_timeout + more, haste);
    if (admin_) admin_->Stop();
  }

  // Why a worker's device failed.
  Status Failure() const {
    for (const auto& worker : workers_) AISP_RETURN_IF_ERROR(worker->Failure());
    return {};
  }

 private:
  bool Split() const { return config_.role == "split"; }
  bool OneProcess() const { return Split() || config_.role == "all"; }

  // In a shared process workers are named by their roles, the one that does everything "worker".
  std::string IdOf(const std::string& role) const {
    if (Split()) return role;
    if (!config_.worker.id.empty()) return config_.worker.id;
    return OneProcess() ? "worker" : name_;
  }

  Status StartRouter() {
    AISP_ASSIGN_OR_RETURN(router_, RouterService::Create(config_, served_.get(), &clock_, &metrics_,
                                                         OneProcess() ? &hub_ : nullptr, sockets_));
    AISP_RETURN_IF_ERROR(router_->Start());
    announcer_->Write("http", router_->http_address());
    announcer_->Write("grpc", router_->grpc_address());
    announcer_->Write("admin", router_->admin_address());
    announcer_->Write("workers", router_->workers_address());
    announcer_->Write("asked-by", std::string(!served_->tokenizer       ? kAskedByIds
                                              : !served_->chat_template ? kAskedByText
                                                                        : kAskedByMessages));
    LogInfo("listening; requests are served once a worker has loaded the model",
            {{"url", SchemeOf(config_) + router_->http_address()},
             {"grpc", router_->grpc_address()},
             {"workers", router_->workers_address()}});
    return {};
  }

  Status StartAdmin() {
    AISP_ASSIGN_OR_RETURN(
        admin_, AdminService::Start(config_, &metrics_, [this] { return WorkersReady(); }));
    announcer_->Write("admin", admin_->address());
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
    host_.local = OneProcess() ? &hub_ : nullptr;
    host_.inproc = Split() ? &inproc_ : nullptr;
    if (admin_) host_.admin_url = AdvertisedAdminUrl(config_, admin_->address());
    const std::string id = IdOf(role);
    AISP_ASSIGN_OR_RETURN(auto worker, WorkerService::Create(host_, role, id));
    const auto on_ready = [this, id, role] {
      announcer_->Write("ready", id);
      LogInfo("worker registered", {{"worker", id}, {"role", role}});
    };
    worker->Start(on_ready, StopThisProcess);
    std::lock_guard lock(workers_mutex_);
    workers_.push_back(std::move(worker));
    return {};
  }

  const Config config_;
  const std::string name_;
  const RouterSockets sockets_;
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
  std::unique_ptr<AdminService> admin_;  // reads workers_, so it is destroyed first
};

Result<int> FdOf(const CommandLine& line, std::string_view name) {
  AISP_ASSIGN_OR_RETURN(const int64_t fd, line.ExtraInt(name, -1, 0, 1 << 20));
  return static_cast<int>(fd);
}

// Format "PID:SIGNAL:CODE"; nullopt without the flag.
Result<std::optional<v1::LastExit>> LastExitOf(const CommandLine& line) {
  const std::string text = line.Extra("last-exit", "");
  if (text.empty()) return std::nullopt;
  const std::vector<std::string_view> parts = Split(text, ':');
  std::array<int64_t, 3> numbers{};
  bool ok = parts.size() == numbers.size();
  for (size_t i = 0; ok && i < numbers.size(); ++i) {
    const auto number = ParseIntInRange(parts[i], 0, INT32_MAX);
    ok = number.has_value();
    if (ok) numbers[i] = *number;
  }
  if (!ok) return InvalidArgument(fmt::format("--last-exit '{}' is not PID:SIGNAL:CODE", text));
  v1::LastExit exit;
  exit.set_pid(numbers[0]);
  exit.set_signal(static_cast<int32_t>(numbers[1]));
  exit.set_exit_code(static_cast<int32_t>(numbers[2]));
  return exit;
}

// From the flags, else from the environment (socket activation).
Result<RouterSockets> SocketsOf(const CommandLine& line) {
  RouterSockets out;
  AISP_ASSIGN_OR_RETURN(const auto activated, TakeActivationSockets());
  const std::pair<const char*, int*> wanted[] = {
      {"http", &out.http}, {"workers", &out.workers}, {"grpc", &out.grpc}, {"admin", &out.admin}};
  for (const auto& [name, fd] : wanted) {
    AISP_ASSIGN_OR_RETURN(*fd, FdOf(line, fmt::format("{}-fd", name)));
    if (*fd < 0 && activated.count(name) != 0) *fd = activated.at(name);
    if (*fd >= 0) AISP_RETURN_IF_ERROR(AdoptListenSocket(*fd));
  }
  return out;
}

std::string NameOf(const CommandLine& line) {
  const Config& config = line.config;
  const std::string fallback =
      config.worker.id.empty() || config.role == "router"
          ? UniqueName(config.role,
                       config.worker.host_id.empty() ? BootId() : config.worker.host_id)
          : config.worker.id;
  return line.Extra("name", fallback);
}

Status ServeUntilStopped(Config config, const std::string& name, const RouterSockets& sockets,
                         const std::optional<v1::LastExit>& last_exit, Announcer* announcer,
                         StopSignals* signals) {
  const Status here = BringModelHere(&config, [signals] { return !signals->WaitFor(0).empty(); });
  if (!here && here.error().code == Code::kCancelled) return {};
  AISP_RETURN_IF_ERROR(here);
  Process process(config, name, sockets, last_exit, announcer);
  AISP_RETURN_IF_ERROR(process.Start());
  const std::string why = signals->Wait();
  LogInfo("stopping", {{"why", why}});
  // A second signal shortens the drain.
  process.Stop([&] { return !signals->WaitFor(0).empty(); });
  return process.Failure();
}

}  // namespace

int RunServe(const std::vector<std::string>& args) {
  auto line = ParseCommandLine(args, kExtras);
  if (!line) return ReportUsageError("serve", line.error().message);
  if (AnswerCommonFlags(*line, Help())) return 0;
  if (!line->positional.empty()) return ReportUnexpectedArgument("serve", line->positional[0]);
  const auto announce_fd = FdOf(*line, "announce-fd");
  const auto lifeline_fd = FdOf(*line, "lifeline-fd");
  for (const auto* fd : {&announce_fd, &lifeline_fd})
    if (!*fd) return ReportUsageError("serve", fd->error().message);

  const auto sockets = SocketsOf(*line);
  if (!sockets) return ReportUsageError("serve", sockets.error().message);
  const auto last_exit = LastExitOf(*line);
  if (!last_exit) return ReportUsageError("serve", last_exit.error().message);

  const std::string name = NameOf(*line);
  LogSession log(LogOptionsOf(line->config, line->config.role, name));
  TakeLibraryLogs();
  Announcer announcer(*announce_fd);
  StopSignals signals(*lifeline_fd);
  const GrpcKeeper grpc;
  int exit_code = 0;
  if (const Status ran =
          ServeUntilStopped(line->config, name, *sockets, *last_exit, &announcer, &signals);
      !ran) {
    FlushLog(std::chrono::seconds(1));
    exit_code = ReportFailure(ran.error().message);
  } else {
    LogInfo("stopped");
    FlushLog(std::chrono::seconds(1));
  }
  // Our objects are destroyed; gRPC's remaining ones must not be (see GrpcKeeper).
  _exit(exit_code);
}

}  // namespace aisp
