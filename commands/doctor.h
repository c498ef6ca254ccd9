// `aisp doctor`: what on this machine would keep a server from running, each with what to do.
// Checks read files below `root` ("" in production, a made-up tree in tests) and ask the kernel;
// they change nothing. Main thread.
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
  std::string advice;  // "" when nothing needs doing
};

// Of the files of a system: /proc, /sys.
Finding CheckGovernor(const std::string& root);
Finding CheckHugePages(const std::string& root);
Finding CheckNuma(const std::string& root, const std::vector<GpuFacts>& gpus);
Finding CheckSharedMemory(uint64_t total_bytes, bool gpus);
Finding CheckMemlock(uint64_t limit_bytes, bool gpus);
Finding CheckOpenFiles(uint64_t limit, int64_t max_connections);
// `driver`: what ProbeDriver said. Driver, CUDA version, GPUs, access between them.
std::vector<Finding> CheckGpus(const Result<DriverFacts>& driver,
                               const Result<std::string>& backend);
// Whether the ports of the configuration can be bound. `serving`: our own router holds them.
std::vector<Finding> CheckPorts(const Config& config, bool serving);
Finding CheckClock(bool synchronised);
// `skew_s`: this clock minus the router's, known to a second.
Finding CheckSkew(double skew_s);
// Versions as workers told them; "" from a worker that is too old to tell.
Finding CheckVersions(const std::string& ours,
                      const std::vector<std::pair<std::string, std::string>>& workers);

// One line each, and what to do below it; then a summary.
std::string FindingsText(const std::vector<Finding>& findings, bool color);

}  // namespace aisp
