// `aisp doctor`: finds what on this machine prevents serving, with advice. Checks read files below
// `root` ("" in production, a fake tree in tests) and query the kernel; they change nothing. Main
// thread.
#pragma once

#include <string>
#include <vector>

#include "commands/gpu_probe.h"
#include "config/config.h"

namespace aisp {

struct Finding {
  enum class Level { kOk, kNote, kWarning, kProblem };
  Level level = Level::kOk;
  std::string check;   // "memlock"
  std::string found;   // "64 KiB"
  std::string advice;  // "" when all is well
};

// Checks of system files: /proc, /sys.
Finding CheckGovernor(const std::string& root);
Finding CheckHugePages(const std::string& root);
Finding CheckNuma(const std::string& root, const std::vector<GpuFacts>& gpus);
Finding CheckSharedMemory(uint64_t total_bytes, bool gpus);
Finding CheckMemlock(uint64_t limit_bytes, bool gpus);
Finding CheckOpenFiles(uint64_t limit, int64_t max_connections);
// `driver`: from ProbeDriver. Checks driver, CUDA version, GPUs and peer access.
std::vector<Finding> CheckGpus(const Result<DriverFacts>& driver,
                               const Result<std::string>& backend);
// Whether the configured ports can be bound. `serving`: our own router is using them.
std::vector<Finding> CheckPorts(const Config& config, bool serving);
Finding CheckClock(bool synchronised);
// `skew_s`: this clock minus the router's, in seconds, accurate to one.
Finding CheckSkew(double skew_s);
// Versions as reported by workers; "" for one that is too old to report.
Finding CheckVersions(const std::string& ours,
                      const std::vector<std::pair<std::string, std::string>>& workers);

// One line per finding, with the advice below it; then a summary.
std::string FindingsText(const std::vector<Finding>& findings, bool color);

}  // namespace aisp
