#include "tests/sim/runner.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <mutex>
#include <thread>

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "tests/sim/cluster.h"

namespace aisp {
namespace {

thread_local uint64_t current_seed = 0;

// Async-signal-safe: no formatting library.
extern "C" void OnAbort(int) {
  char line[96] = "aborted; replay with aisp_sim --trace --seed=";
  size_t n = std::strlen(line);
  char digits[24];
  size_t k = 0;
  for (uint64_t s = current_seed; s != 0 || k == 0; s /= 10)
    digits[k++] = static_cast<char>('0' + s % 10);
  while (k > 0) line[n++] = digits[--k];
  line[n++] = '\n';
  if (write(STDERR_FILENO, line, n) < 0) _exit(3);
  std::signal(SIGABRT, SIG_DFL);
  std::raise(SIGABRT);
}

}  // namespace

void PrintSeedOnAbort() { std::signal(SIGABRT, OnAbort); }

int OpenNullDevice() { return open("/dev/null", O_WRONLY | O_CLOEXEC); }

SimReport RunSeeds(uint64_t first, uint64_t last, int jobs, bool trace) {
  SimReport report;
  std::mutex mutex;
  std::atomic<uint64_t> next{first};
  const auto work = [&] {
    for (;;) {
      const uint64_t seed = next.fetch_add(1);
      if (seed > last) return;
      current_seed = seed;
      SimCluster cluster(seed, trace);
      const bool ok = cluster.Run();
      const std::lock_guard lock(mutex);
      ++report.seeds;
      report.coverage.Add(cluster.coverage());
      if (!ok) {
        report.failures.push_back(fmt::format("seed {}: {}; replay with aisp_sim --seed={} --trace",
                                              seed, cluster.failure(), seed));
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < jobs; ++i) threads.emplace_back(work);
  work();
  for (std::thread& t : threads) t.join();
  std::sort(report.failures.begin(), report.failures.end());
  return report;
}

uint64_t DigestOfSeed(uint64_t seed) {
  current_seed = seed;
  SimCluster cluster(seed, false);
  cluster.Run();
  return cluster.digest();
}

}  // namespace aisp
