// `aisp drain`: takes workers out of service without failing a request, through the router's admin
// API.
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "commands/admin_client.h"
#include "commands/commands.h"
#include "common/clock.h"
#include "common/strings.h"
#include "config/command_line.h"

namespace aisp {
namespace {

using Json = nlohmann::json;

constexpr int64_t kLongPollMs = 2000;
// Tolerated absence of a router that is being replaced.
constexpr Duration kRouterAway = std::chrono::seconds(15);

constexpr std::array<ExtraFlag, 7> kExtras = {{
    kRouterFlag,
    {"--all", "", "Drain every worker that is registered."},
    {"--list", "", "Only list the workers."},
    {"--move", "", "Running streams go to other decode workers at once."},
    {"--stop", "", "The worker's process ends when it is drained."},
    {"--timeout", "SECONDS", "Give up waiting after this time (default 600)."},
    kKeyFileFlag,
}};

std::string Help() {
  return "aisp drain WORKER_ID... [--all] [flags]\n\n"
         "Takes workers out of service: they get no new work, what waits on them goes to others, "
         "what runs is\n"
         "finished; after the worker's drain_timeout, or at once with --move, running streams go "
         "on\n"
         "on another decode worker without a lost or doubled token. Waits until the workers are "
         "drained and\n"
         "exits with 0. A drained worker stays up, idle, until it gets SIGTERM (for a preStop "
         "hook), or ends by\n"
         "itself with --stop. A drain cannot be taken back: restart the worker.\n\n" +
         HelpForSettings(std::span<const std::string_view>(), kExtras);
}

std::string Line(const Json& w) {
  std::string line =
      fmt::format("{}: {} {}", w.value("id", ""), w.value("role", ""), w.value("state", ""));
  const std::string reason = w.value("reason", "");
  if (!reason.empty()) line += fmt::format(" ({})", reason);
  line += fmt::format(", {} running, {} waiting", w.value("running", 0), w.value("waiting", 0));
  if (const int64_t pid = w.value("pid", int64_t{0}); pid != 0)
    line += fmt::format(", pid {}", pid);
  if (const std::string url = w.value("admin_url", ""); !url.empty()) line += ", " + url;
  return line;
}

void PrintLine(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

Status ExpectOk(const AdminClient::Answer& answer) {
  if (answer.status < 300) return {};
  return Fail(Code::kFailedPrecondition, answer.message);
}

// Waits until the worker is drained or gone.
Status AwaitDrained(const AdminClient& client, const std::string& id, Instant deadline) {
  const SteadyClock clock;
  std::string said;
  Instant answered = clock.Now();
  for (;;) {
    if (clock.Now() >= deadline)
      return Fail(Code::kDeadlineExceeded,
                  fmt::format("{} is not drained yet; it goes on draining (last: {})", id, said));
    const auto answer =
        client.Ask("GET", fmt::format("/admin/workers/{}?wait_ms={}", id, kLongPollMs));
    if (!answer) {
      if (clock.Now() - answered > kRouterAway) return tl::unexpected(answer.error());
      continue;
    }
    answered = clock.Now();
    if (answer->status == 404) {
      PrintLine(fmt::format("{}: gone", id));
      return {};
    }
    AISP_RETURN_IF_ERROR(ExpectOk(*answer));
    const std::string line = Line(answer->body);
    if (line != said) PrintLine(line);
    said = line;
    if (answer->body.value("state", "") == "drained") return {};
  }
}

Status List(const AdminClient& client, std::vector<std::string>* ids) {
  AISP_ASSIGN_OR_RETURN(const auto answer, client.Ask("GET", "/admin/workers"));
  AISP_RETURN_IF_ERROR(ExpectOk(answer));
  for (const Json& worker : answer.body.value("workers", Json::array())) {
    if (ids == nullptr) {
      PrintLine(Line(worker));
    } else {
      ids->push_back(worker.value("id", ""));
    }
  }
  return {};
}

Status Drain(const AdminClient& client, std::vector<std::string> ids, const CommandLine& line,
             Duration timeout) {
  const Instant deadline = SteadyClock().Now() + timeout;
  if (line.HasExtra("all")) AISP_RETURN_IF_ERROR(List(client, &ids));
  const std::string query =
      fmt::format("?move={}&stop={}", line.HasExtra("move") ? 1 : 0, line.HasExtra("stop") ? 1 : 0);
  for (const std::string& id : ids) {
    AISP_ASSIGN_OR_RETURN(const auto answer,
                          client.Ask("POST", fmt::format("/admin/workers/{}/drain{}", id, query)));
    AISP_RETURN_IF_ERROR(ExpectOk(answer));
  }
  for (const std::string& id : ids) AISP_RETURN_IF_ERROR(AwaitDrained(client, id, deadline));
  return {};
}

}  // namespace

int RunDrain(const std::vector<std::string>& args) {
  auto line = ParseCommandLine(args, kExtras);
  if (!line) return ReportUsageError("drain", line.error().message);
  if (AnswerCommonFlags(*line, Help())) return 0;
  const bool list = line->HasExtra("list");
  if (line->positional.empty() && !line->HasExtra("all") && !list) {
    return ReportUsageError("drain",
                            "which worker? give ids, or --all; --list shows those that there are");
  }
  const auto timeout = line->ExtraInt("timeout", 600, 1, 1 << 20);
  if (!timeout) return ReportUsageError("drain", timeout.error().message);
  const auto client = AdminClient::FromFlags(*line);
  if (!client) return ReportUsageError("drain", client.error().message);
  const Status done = list
                          ? List(*client, nullptr)
                          : Drain(*client, line->positional, *line, std::chrono::seconds(*timeout));
  return done ? 0 : ReportFailure(done.error().message);
}

}  // namespace aisp
