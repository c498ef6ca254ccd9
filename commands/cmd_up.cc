// `aisp up`: a whole cluster on one machine, as separate processes.
#include <fmt/format.h>

#include <array>
#include <cstdio>

#include "commands/commands.h"
#include "commands/demo.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/version.h"
#include "config/command_line.h"
#include "server/invitation.h"
#include "server/log_setup.h"
#include "server/model_source.h"
#include "server/process.h"
#include "server/served_model.h"
#include "server/supervisor.h"

namespace aisp {
namespace {

// Loading a model may take this long.
constexpr Duration kStartTimeout = std::chrono::minutes(10);

constexpr std::array<ExtraFlag, 2> kExtras = {{
    {"--planner", "WHEN",
     "Move the workers between prefill and decode as the load needs: auto (default), where they "
     "have more than one GPU of up.devices, on or off."},
    {"--announce-fd", "N", "Write key=value lines (http, router-pid) to this descriptor."},
}};

std::string Help() {
  constexpr std::array<std::string_view, 8> kPrefixes = {"up.",     "model.",  "http.",  "router.",
                                                         "worker.", "engine.", "trace.", "log."};
  return "aisp up [--prefill N] [--decode N] [--demo] [--config FILE] [flags]\n\n"
         "Starts one router, N prefill and N decode workers, restarts what dies, and stops all of "
         "them on Ctrl-C or SIGTERM.\nSIGHUP replaces every process by a new one, one by one, "
         "without a failed request.\n\n" +
         HelpForSettings(kPrefixes, kExtras);
}

Result<PlannerChoice> PlannerChoiceOf(const std::string& when) {
  if (when == "auto") return PlannerChoice::kAuto;
  if (when == "on") return PlannerChoice::kOn;
  if (when == "off") return PlannerChoice::kOff;
  return InvalidArgument(fmt::format("--planner: '{}' is none of auto, on, off", when));
}

}  // namespace

int RunUp(const std::vector<std::string>& args) {
  auto line = ParseCommandLine(args, kExtras);
  if (!line) return ReportUsageError("up", line.error().message);
  if (AnswerCommonFlags(*line, Help())) return 0;
  if (!line->positional.empty()) return ReportUnexpectedArgument("up", line->positional[0]);
  const auto announce_fd = line->ExtraInt("announce-fd", -1, -1, 1 << 20);
  if (!announce_fd) return ReportUsageError("up", announce_fd.error().message);
  const auto planner = PlannerChoiceOf(line->Extra("planner", "auto"));
  if (!planner) return ReportUsageError("up", planner.error().message);
  Config config = line->config;
  // With --demo, log only warnings unless asked for more, so that the output stays readable.
  if (config.up.demo && config.log.level == Config().log.level) config.log.level = "warning";

  if (config.up.demo && config.http.tls.on())
    return ReportUsageError("up", "--demo speaks plain HTTP; leave one of --demo and TLS out");
  const LogSession log(LogOptionsOf(config, "supervisor", "up"));
  const SteadyClock clock;
  const Instant begin = clock.Now();
  StopSignals signals(-1, /*reload=*/true);
  // Downloads once for all processes, which then serve the same commit.
  const Status here = BringModelHere(&config, [&signals] { return !signals.WaitFor(0).empty(); });
  if (!here) return here.error().code == Code::kCancelled ? 0 : ReportFailure(here.error().message);
  // Reported once here rather than by every process.
  if (const auto model = ResolveModelPath(config); !model)
    return ReportFailure(model.error().message);
  Announcer announcer(static_cast<int>(*announce_fd));
  Supervisor supervisor(config, &announcer, *planner);
  if (const Status started = supervisor.Start(&signals, kStartTimeout); !started) {
    supervisor.Stop(&signals);
    return started.error().code == Code::kCancelled ? 0 : ReportFailure(started.error().message);
  }
  if (!supervisor.admin_address().empty()) announcer.Write("admin", supervisor.admin_address());
  announcer.Write("http", supervisor.http_address());
  if (!supervisor.grpc_address().empty()) announcer.Write("grpc", supervisor.grpc_address());
  fmt::print("aisp {}: router, {} prefill and {} decode workers ready in {:.2f} s\n", Version(),
             config.up.prefill_workers, config.up.decode_workers, ToSeconds(clock.Now() - begin));
  int exit_code = 0;
  if (config.up.demo) {
    if (const Status told = StreamStory(supervisor.http_address()); !told) {
      ReportFailure("the story failed: " + told.error().message);
      exit_code = 1;
    }
  }
  fmt::print("{}", Invitation(config, supervisor.http_address(), supervisor.grpc_address(),
                              supervisor.admin_address(), supervisor.asked_by()));
  std::fflush(stdout);
  const auto why = supervisor.Watch(&signals);
  if (!why) exit_code = ReportFailure(why.error().message);
  supervisor.Stop(&signals);
  return exit_code;
}

}  // namespace aisp
