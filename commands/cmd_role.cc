// `aisp role`: changes a running worker's role without a restart, through the router's admin API.
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "commands/admin_client.h"
#include "commands/commands.h"
#include "common/clock.h"
#include "config/command_line.h"
#include "proto/role.h"

namespace aisp {
namespace {

using Json = nlohmann::json;

// Tolerated absence of a worker between its old and its new registration.
constexpr Duration kWorkerAway = std::chrono::seconds(10);
constexpr int64_t kLookAgainMs = 100;

constexpr std::array<ExtraFlag, 6> kExtras = {{
    kRouterFlag,
    {"--expect", "ROLE", "Only if the worker has this role; else nothing happens."},
    {"--move-after", "MS",
     "Running streams go to other decode workers after this time (default 2000)."},
    {"--deadline", "MS",
     "The worker keeps its role if its work is not done after this time (default 30000)."},
    {"--no-wait", "", "Return when the worker has begun to change."},
    kKeyFileFlag,
}};

std::string Help() {
  return "aisp role WORKER_ID prefill|decode|parked [flags]\n\n"
         "A running worker takes another role; its weights, KV pool and prefix cache stay. It gets "
         "no new work,\n"
         "running streams end or go on on another decode worker without a lost or doubled token, "
         "then it registers\n"
         "under the new role. A parked worker gets no work until it is given another role. "
         "Refused: "
         "the last decode\n"
         "worker that is ready, and a worker that is not what --expect says. Waits until the "
         "worker "
         "has its role.\n\n" +
         HelpForSettings(std::span<const std::string_view>(), kExtras);
}

Status AwaitRole(const AdminClient& client, const std::string& id, const std::string& role,
                 Instant deadline) {
  const SteadyClock clock;
  Instant seen = clock.Now();
  const std::string target = "/admin/workers/" + id;
  while (clock.Now() < deadline) {
    const auto answer = client.Ask("GET", fmt::format("{}?wait_ms={}", target, kLookAgainMs));
    if (answer && answer->status == 200) {
      seen = clock.Now();
      const Json& w = answer->body;
      const std::string state = w.value("state", "");
      if (w.value("role", "") == role && (state == "ready" || state == "parked")) return {};
      if (w.value("role", "") != role && state == "ready")
        return Fail(Code::kAborted,
                    fmt::format("{} keeps its role {}: its work was not done in time; give it a "
                                "longer --deadline",
                                id, w.value("role", "")));
    }
    if (clock.Now() - seen > kWorkerAway)
      return Unavailable(fmt::format("{} did not come back as {}", id, role));
  }
  return Fail(Code::kDeadlineExceeded, fmt::format("{} is not {} yet; it goes on", id, role));
}

Status SetRole(const AdminClient& client, const CommandLine& line) {
  const std::string& id = line.positional[0];
  const std::string& role = line.positional[1];
  AISP_ASSIGN_OR_RETURN(const int64_t move, line.ExtraInt("move-after", 2000, 0, 3'600'000));
  AISP_ASSIGN_OR_RETURN(const int64_t most, line.ExtraInt("deadline", 30'000, 1, 3'600'000));
  Json wish = {{"role", role}, {"move_after_ms", move}, {"deadline_ms", most}};
  if (const std::string expected = line.Extra("expect", ""); !expected.empty())
    wish["expected"] = expected;
  const SteadyClock clock;
  const Instant begin = clock.Now();
  AISP_ASSIGN_OR_RETURN(const auto answer,
                        client.Ask("POST", fmt::format("/admin/workers/{}/role", id), wish.dump()));
  if (answer.status >= 300) return Fail(Code::kFailedPrecondition, answer.message);
  if (line.HasExtra("no-wait")) return {};
  const Duration limit = std::chrono::milliseconds(most) + kWorkerAway;
  AISP_RETURN_IF_ERROR(AwaitRole(client, id, role, begin + limit));
  std::printf("%s: %s after %.0f ms\n", id.c_str(), role.c_str(), ToMs(clock.Now() - begin));
  return {};
}

}  // namespace

int RunRole(const std::vector<std::string>& args) {
  auto line = ParseCommandLine(args, kExtras);
  if (!line) return ReportUsageError("role", line.error().message);
  if (AnswerCommonFlags(*line, Help())) return 0;
  if (line->positional.size() != 2)
    return ReportUsageError("role", "give a worker and a role, as in `aisp role decode-1 prefill`");
  if (RoleNamed(line->positional[1]) == v1::ROLE_UNSPECIFIED)
    return ReportUsageError(
        "role", "role '" + line->positional[1] + "' is none of prefill, decode and parked");
  const auto client = AdminClient::FromFlags(*line);
  if (!client) return ReportUsageError("role", client.error().message);
  const Status done = SetRole(*client, *line);
  return done ? 0 : ReportFailure(done.error().message);
}

}  // namespace aisp
