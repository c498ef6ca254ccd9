// `aisp doctor`: checks this machine before serving, and the cluster if one is running.
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <ctime>

#include "commands/admin_client.h"
#include "commands/commands.h"
#include "commands/doctor.h"
#include "common/version.h"
#include "config/command_line.h"
#include "kernels/cuda/load.h"
#include "server/process.h"

namespace aisp {
namespace {

constexpr std::array<ExtraFlag, 2> kExtras = {{kRouterFlag, kKeyFileFlag}};

std::string Help() {
  constexpr std::array<std::string_view, 4> kPrefixes = {"role", "http.", "router.", "worker."};
  return "aisp doctor [--router URL] [--config FILE] [flags]\n\n"
         "Checks what serving needs: driver and GPUs, limits, memory settings, ports, clock; and, "
         "where a router\nanswers, its workers' versions. Each finding says what to do. Exit code "
         "1: there is a problem.\n\n" +
         HelpForSettings(kPrefixes, kExtras);
}

uint64_t LimitOf(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return UINT64_MAX;
  return limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}

uint64_t SharedMemoryBytes() {
  struct statvfs stats {};
  return statvfs("/dev/shm", &stats) == 0 ? uint64_t{stats.f_blocks} * stats.f_frsize : 0;
}

bool ClockSynchronised() {
  timex state{};
  return adjtimex(&state) != TIME_ERROR;
}

Result<std::string> BackendFound() {
  const std::string here = ExecutableFolder();
  const std::string folders[] = {here + "/../lib", here};
  if (CudaBackendPresent(folders)) return std::string("libaisp_cuda.so loads");
  return NotFound("libaisp_cuda.so is not there or does not load");
}

// If a router answers: compares clocks and lists its workers.
void AskCluster(const CommandLine& line, std::vector<Finding>* findings, bool* serving) {
  const auto client = AdminClient::FromFlags(line);
  if (!client) {
    findings->push_back({Finding::Level::kProblem, "router", client.error().message, ""});
    return;
  }
  const auto date = client->Date();
  if (!date) {
    const bool asked = line.HasExtra("router");
    findings->push_back({asked ? Finding::Level::kProblem : Finding::Level::kNote, "router",
                         "none answers at " + client->address(),
                         asked ? date.error().message : "--router URL asks another"});
    return;
  }
  *serving = true;
  findings->push_back(CheckSkew(static_cast<double>(std::time(nullptr) - *date)));
  const auto workers = client->Get("/admin/workers");
  if (!workers) {
    findings->push_back({Finding::Level::kNote, "versions", workers.error().message,
                         "--key-file FILE if the router wants its admin key"});
    return;
  }
  std::vector<std::pair<std::string, std::string>> versions;
  for (const auto& w : workers->value("workers", nlohmann::json::array()))
    versions.emplace_back(w.value("id", ""), w.value("version", ""));
  findings->push_back(CheckVersions(std::string(Version()), versions));
}

}  // namespace

int RunDoctor(const std::vector<std::string>& args) {
  auto line = ParseCommandLine(args, kExtras);
  if (!line) return ReportUsageError("doctor", line.error().message);
  if (AnswerCommonFlags(*line, Help())) return 0;
  if (!line->positional.empty()) return ReportUnexpectedArgument("doctor", line->positional[0]);

  const auto driver = ProbeDriver();
  const bool gpus = driver && !driver->gpus.empty();
  std::vector<Finding> findings =
      CheckGpus(driver, driver ? BackendFound() : Result<std::string>(std::string()));
  findings.push_back(CheckMemlock(LimitOf(RLIMIT_MEMLOCK), gpus));
  findings.push_back(CheckSharedMemory(SharedMemoryBytes(), gpus));
  findings.push_back(CheckOpenFiles(LimitOf(RLIMIT_NOFILE), line->config.http.max_connections));
  findings.push_back(CheckNuma("", driver ? driver->gpus : std::vector<GpuFacts>{}));
  findings.push_back(CheckGovernor(""));
  findings.push_back(CheckHugePages(""));
  findings.push_back(CheckClock(ClockSynchronised()));
  bool serving = false;
  std::vector<Finding> cluster;
  AskCluster(*line, &cluster, &serving);
  for (Finding& f : CheckPorts(line->config, serving)) findings.push_back(std::move(f));
  for (Finding& f : cluster) findings.push_back(std::move(f));
  std::fputs(FindingsText(findings, isatty(STDOUT_FILENO) != 0).c_str(), stdout);
  for (const Finding& f : findings) {
    if (f.level == Finding::Level::kProblem) return 1;
  }
  return 0;
}

}  // namespace aisp
