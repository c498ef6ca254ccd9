#include "commands/doctor.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "common/strings.h"
#include "net/host_port.h"
#include "net/listen_socket.h"

namespace aisp {
namespace {

using Level = Finding::Level;

std::string ReadLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return std::string(Trim(line));
}

std::vector<std::string> EntriesOf(const std::string& folder, std::string_view prefix) {
  std::vector<std::string> out;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const bool numbered = name.size() > prefix.size() && name.starts_with(prefix) &&
                          std::isdigit(static_cast<unsigned char>(name[prefix.size()])) != 0;
    if (numbered) out.push_back(entry.path().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

// Parses a cpulist such as "0-3,8".
std::set<int> CpusOf(const std::string& list) {
  std::set<int> cpus;
  for (const std::string_view part : Split(list, ',')) {
    const size_t dash = part.find('-');
    const auto first = ParseInt(Trim(part.substr(0, dash)));
    const auto last =
        dash == std::string_view::npos ? first : ParseInt(Trim(part.substr(dash + 1)));
    if (!first || !last) continue;
    for (int64_t cpu = *first; cpu <= *last && cpu < (1 << 16); ++cpu)
      cpus.insert(static_cast<int>(cpu));
  }
  return cpus;
}

std::set<int> AllowedCpus() {
  cpu_set_t set;
  std::set<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.insert(cpu);
  }
  return cpus;
}

std::string CudaVersion(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

Finding PortFinding(const std::string& name, const std::string& address, bool serving,
                    const std::string& flag) {
  const SplitAddress split = SplitHostPort(address);
  const auto port = ParseIntInRange(split.port.value_or(""), 0, UINT16_MAX);
  Finding f{Level::kOk, "port " + name, address, ""};
  if (!port)
    return {Level::kProblem, f.check, address, fmt::format("give host:port with {}", flag)};
  if (*port == 0) return {Level::kOk, f.check, "a free one is chosen at start", ""};
  const auto fd = ListenOn(std::string(split.host), static_cast<uint16_t>(*port), flag);
  if (fd) {
    close(*fd);
    f.found += " is free";
  } else if (serving) {
    f.found += " is taken; a router of aisp answers here";
  } else {
    f = {Level::kProblem, f.check, fmt::format("{} cannot be bound", address), fd.error().message};
  }
  return f;
}

}  // namespace

Finding CheckGovernor(const std::string& root) {
  std::map<std::string, int> governors;
  for (const std::string& cpu : EntriesOf(root + "/sys/devices/system/cpu", "cpu")) {
    const std::string governor = ReadLine(cpu + "/cpufreq/scaling_governor");
    if (!governor.empty()) ++governors[governor];
  }
  Finding f{Level::kOk, "CPU governor", "", ""};
  if (governors.empty()) {
    f.found = "not controlled from here";
    return f;
  }
  for (const auto& [name, cpus] : governors)
    f.found += fmt::format("{}{} on {} CPUs", f.found.empty() ? "" : ", ", name, cpus);
  if (governors.size() == 1 && governors.count("performance") != 0) return f;
  f.level = Level::kWarning;
  f.advice =
      "CPUs that save power answer late after a pause; as root: cpupower frequency-set -g "
      "performance";
  return f;
}

Finding CheckHugePages(const std::string& root) {
  const std::string text = ReadLine(root + "/sys/kernel/mm/transparent_hugepage/enabled");
  const size_t open = text.find('['), close = text.find(']');
  Finding f{Level::kOk, "transparent huge pages", "unknown", ""};
  if (open == std::string::npos || close == std::string::npos || close < open) return f;
  f.found = text.substr(open + 1, close - open - 1);
  if (f.found != "never") return f;
  f.level = Level::kWarning;
  f.advice =
      "weights and KV on the CPU are read with small pages; as root: echo madvise > "
      "/sys/kernel/mm/transparent_hugepage/enabled";
  return f;
}

Finding CheckNuma(const std::string& root, const std::vector<GpuFacts>& gpus) {
  Finding f{Level::kOk, "NUMA", "", ""};
  const auto nodes = EntriesOf(root + "/sys/devices/system/node", "node");
  f.found =
      fmt::format("{} node{}", std::max<size_t>(1, nodes.size()), nodes.size() > 1 ? "s" : "");
  if (nodes.size() < 2) return f;
  const std::set<int> allowed = AllowedCpus();
  size_t used = 0;
  for (const std::string& node : nodes) {
    const std::set<int> cpus = CpusOf(ReadLine(node + "/cpulist"));
    used += std::any_of(cpus.begin(), cpus.end(), [&](int c) { return allowed.count(c) != 0; });
  }
  std::string near;
  for (const GpuFacts& gpu : gpus) {
    const std::string node = ReadLine(root + "/sys/bus/pci/devices/" + gpu.pci + "/numa_node");
    if (node.empty() || node == "-1") continue;
    near += fmt::format("{}GPU {} on node {}", near.empty() ? "" : ", ", gpu.pci, node);
  }
  if (!near.empty()) f.found += "; " + near;
  if (used < 2) return f;
  f.found += fmt::format("; this process may run on {} of them", used);
  f.level = Level::kWarning;
  f.advice =
      "a worker that wanders between nodes reads far memory; start each with numactl "
      "--cpunodebind=N --membind=N, N being its GPU's node";
  return f;
}

Finding CheckSharedMemory(uint64_t total_bytes, bool gpus) {
  Finding f{Level::kOk, "/dev/shm", HumanBytes(total_bytes), ""};
  // KV pools are memfds, which this limit does not cover; NCCL's buffers are in /dev/shm.
  if (!gpus || total_bytes >= (uint64_t{1} << 30)) return f;
  f.level = Level::kWarning;
  f.advice =
      "NCCL wants more for several GPUs; in a container: --shm-size=1g, in Kubernetes an "
      "emptyDir with medium: Memory at /dev/shm";
  return f;
}

Finding CheckMemlock(uint64_t limit_bytes, bool gpus) {
  const bool unlimited = limit_bytes == UINT64_MAX;
  Finding f{Level::kOk, "memlock", unlimited ? "unlimited" : HumanBytes(limit_bytes), ""};
  if (unlimited || !gpus) return f;
  f.level = Level::kWarning;
  f.advice =
      "transfers over RDMA pin memory; set it to unlimited: LimitMEMLOCK=infinity (systemd), "
      "--ulimit memlock=-1 (containers), /etc/security/limits.conf";
  return f;
}

Finding CheckOpenFiles(uint64_t limit, int64_t max_connections) {
  // One descriptor per connection; the rest is for workers, files and libraries.
  const uint64_t wanted = static_cast<uint64_t>(std::max<int64_t>(0, max_connections)) + 256;
  Finding f{Level::kOk, "open files", limit == UINT64_MAX ? "unlimited" : std::to_string(limit),
            ""};
  if (limit >= wanted) return f;
  f.level = Level::kWarning;
  f.advice = fmt::format(
      "http.max_connections is {}, which wants {}: ulimit -n {}, or fewer "
      "connections",
      max_connections, wanted, wanted);
  return f;
}

std::vector<Finding> CheckGpus(const Result<DriverFacts>& driver,
                               const Result<std::string>& backend) {
  std::vector<Finding> out;
  if (!driver && driver.error().code == Code::kNotFound) {
    out.push_back({Level::kNote, "GPU driver", driver.error().message + ": the CPU computes",
                   "with an NVIDIA GPU: install its driver; in a container, run it with the NVIDIA "
                   "runtime (--gpus all)"});
    return out;
  }
  if (!driver) {
    out.push_back(
        {Level::kProblem, "GPU driver", driver.error().message,
         "see nvidia-smi and dmesg; a driver that was updated wants its module reloaded"});
    return out;
  }
  out.push_back({Level::kOk, "GPU driver", "runs CUDA " + CudaVersion(driver->cuda_version), ""});
  if (backend) {
    out.push_back({Level::kOk, "CUDA backend", *backend, ""});
  } else {
    out.push_back({Level::kProblem, "CUDA backend", backend.error().message,
                   "`make cuda` builds build-cuda/bin/aisp with it; a bundle has it in lib/"});
  }
  for (size_t i = 0; i < driver->gpus.size(); ++i) {
    const GpuFacts& gpu = driver->gpus[i];
    Finding f{Level::kOk, fmt::format("GPU {}", i),
              fmt::format("{}, {}, sm_{}, {}", gpu.name, HumanBytes(gpu.memory_bytes),
                          gpu.capability, gpu.pci),
              ""};
    if (!gpu.unreachable.empty()) {
      f.level = Level::kWarning;
      f.found += fmt::format("; no peer access to {} others", gpu.unreachable.size());
      f.advice =
          "KV moves through host memory between them; look at nvidia-smi topo -p2p r, and "
          "at ACS and IOMMU settings of the host";
    }
    out.push_back(std::move(f));
  }
  if (driver->gpus.empty())
    out.push_back({Level::kWarning, "GPU", "the driver knows none",
                   "is CUDA_VISIBLE_DEVICES empty? see nvidia-smi -L"});
  return out;
}

std::vector<Finding> CheckPorts(const Config& config, bool serving) {
  std::vector<Finding> out;
  const Config::Http& http = config.http;
  const bool router = config.role != "prefill" && config.role != "decode";
  if (router) {
    out.push_back(
        PortFinding("HTTP", fmt::format("{}:{}", http.address, http.port), serving, "--port N"));
    const int64_t grpc = http.grpc_port >= 0 ? http.grpc_port : http.port == 0 ? 0 : http.port + 1;
    const std::string& host = http.grpc_address.empty() ? http.address : http.grpc_address;
    if (http.grpc)
      out.push_back(
          PortFinding("gRPC", fmt::format("{}:{}", host, grpc), serving, "--grpc-port N"));
  }
  if (config.role == "router")
    out.push_back(
        PortFinding("workers", config.router.listen, serving, "--router-listen HOST:PORT"));
  if (config.role == "prefill")
    out.push_back(
        PortFinding("KV", config.worker.kv_listen, false, "--worker.kv_listen HOST:PORT"));
  return out;
}

Finding CheckClock(bool synchronised) {
  Finding f{Level::kOk, "clock", synchronised ? "synchronised" : "not synchronised", ""};
  if (synchronised) return f;
  f.level = Level::kNote;
  f.advice =
      "aisp compares no clocks of two machines, but logs and traces are easier to read with "
      "chrony or systemd-timesyncd";
  return f;
}

Finding CheckSkew(double skew_s) {
  Finding f{Level::kOk, "clock and the router's", fmt::format("{:+.0f} s", skew_s), ""};
  if (std::abs(skew_s) <= 2) return f;
  f.level = Level::kWarning;
  f.advice = "log lines and spans of the two machines will not line up; synchronise both (chrony)";
  return f;
}

Finding CheckVersions(const std::string& ours,
                      const std::vector<std::pair<std::string, std::string>>& workers) {
  Finding f{Level::kOk, "versions", "", ""};
  std::map<std::string, std::vector<std::string>> by_version;
  for (const auto& [id, version] : workers)
    by_version[version.empty() ? "too old to say" : version].push_back(id);
  for (const auto& [version, ids] : by_version)
    f.found += fmt::format("{}{}: {}", f.found.empty() ? "" : "; ", version, Join(ids, ", "));
  if (workers.empty()) f.found = "no worker is registered";
  const bool same = by_version.empty() || (by_version.size() == 1 && by_version.count(ours) != 0);
  if (same) return f;
  f.level = Level::kWarning;
  f.advice = fmt::format(
      "this program is {}; workers of other versions are left-overs of an update "
      "that has not ended: replace them (docs/operations.md)",
      ours);
  return f;
}

std::string FindingsText(const std::vector<Finding>& findings, bool color) {
  const auto mark = [color](Level level) {
    constexpr std::string_view kNames[] = {"ok     ", "note   ", "warning", "PROBLEM"};
    constexpr std::string_view kColors[] = {"32", "36", "33", "31"};
    const auto i = static_cast<size_t>(level);
    return color ? fmt::format("\x1b[{}m{}\x1b[0m", kColors[i], kNames[i]) : std::string(kNames[i]);
  };
  size_t width = 0, problems = 0, warnings = 0;
  for (const Finding& f : findings) width = std::max(width, f.check.size());
  std::string out;
  for (const Finding& f : findings) {
    out += fmt::format("{}  {:<{}}  {}\n", mark(f.level), f.check, width, f.found);
    if (!f.advice.empty()) out += fmt::format("{:>{}}-> {}\n", "", width + 11, f.advice);
    problems += f.level == Level::kProblem ? 1 : 0;
    warnings += f.level == Level::kWarning ? 1 : 0;
  }
  return out + fmt::format("\n{} problems, {} warnings\n", problems, warnings);
}

}  // namespace aisp
