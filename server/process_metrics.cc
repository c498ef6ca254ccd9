#include "server/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/log.h"
#include "common/version.h"

namespace aisp {
namespace {

double Seconds(const timeval& t) {
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
}

double CpuSeconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return Seconds(used.ru_utime) + Seconds(used.ru_stime);
}

double ResidentBytes() {
  std::ifstream in("/proc/self/statm");
  double pages = 0;
  double resident = 0;
  in >> pages >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double OpenFiles() {
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  return error ? 0 : static_cast<double>(std::distance(begin(files), end(files)));
}

double FileLimit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<double>(limit.rlim_cur);
}

}  // namespace

void AddProcessMetrics(Metrics* metrics, const std::string& role) {
  metrics
      ->AddGauge("aisp_build_info", "Always 1; the labels say which build runs in which role",
                 {{"version", std::string(Version())}, {"role", role}})
      .Set(1);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  metrics
      ->AddGauge("process_start_time_seconds", "Start of the process, in seconds since the epoch")
      .Set(std::chrono::duration<double>(now).count());
  metrics->AddGauge("process_max_fds", "Most files that may be open").Set(FileLimit());
  const Gauge resident =
      metrics->AddGauge("process_resident_memory_bytes", "Memory of the process that is resident");
  const Gauge files = metrics->AddGauge("process_open_fds", "Open files");
  const Counter cpu =
      metrics->AddCounter("process_cpu_seconds_total", "CPU time of the process, user and system");
  const Counter dropped =
      metrics->AddCounter("aisp_log_lines_dropped_total", "Log lines that could not be written");
  metrics->OnRender([=] {
    resident.Set(ResidentBytes());
    files.Set(OpenFiles());
    cpu.Add(CpuSeconds() - cpu.Value());
    dropped.Add(static_cast<double>(GetLogStats().lines_dropped) - dropped.Value());
  });
}

}  // namespace aisp
