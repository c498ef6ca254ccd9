// aisp_sim: runs seeds of the simulated cluster.
//
//   - aisp_sim --seeds=1..10000 [--jobs=N]: all of them; prints for each failing one how to replay
//     it
//   - aisp_sim --seed=N --trace: one, with its event log
//
// Exits with 1 when a seed failed. A broken invariant inside the product aborts; the seed is
// printed then, too.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include <fmt/format.h>

#include "common/log.h"
#include "common/strings.h"
#include "tests/sim/runner.h"

namespace aisp {
namespace {

struct Arguments {
  uint64_t first = 1;
  uint64_t last = 100;
  int jobs = 1;
  bool trace = false;
};

Result<Arguments> Parse(int argc, char** argv) {
  Arguments out;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    const auto value = [&](std::string_view name) { return arg.substr(name.size()); };
    if (arg == "--trace") {
      out.trace = true;
    } else if (arg.starts_with("--seed=")) {
      AISP_ASSIGN_OR_RETURN(const int64_t seed, ParseInt(value("--seed=")));
      out.first = out.last = static_cast<uint64_t>(seed);
    } else if (arg.starts_with("--jobs=")) {
      AISP_ASSIGN_OR_RETURN(const int64_t jobs, ParseIntInRange(value("--jobs="), 1, 64));
      out.jobs = static_cast<int>(jobs);
    } else if (arg.starts_with("--seeds=")) {
      const std::string_view range = value("--seeds=");
      const size_t dots = range.find("..");
      if (dots == std::string_view::npos) return InvalidArgument("--seeds wants A..B");
      AISP_ASSIGN_OR_RETURN(const int64_t first, ParseInt(range.substr(0, dots)));
      AISP_ASSIGN_OR_RETURN(const int64_t last,
                            ParseIntInRange(range.substr(dots + 2), first, INT64_MAX));
      out.first = static_cast<uint64_t>(first);
      out.last = static_cast<uint64_t>(last);
    } else {
      return InvalidArgument(fmt::format(
          "unknown argument \"{}\"; use --seeds=A..B, --seed=N, --jobs=N, --trace", arg));
    }
  }
  return out;
}

}  // namespace
}  // namespace aisp

int main(int argc, char** argv) {
  const auto arguments = aisp::Parse(argc, argv);
  if (!arguments) {
    fmt::print(stderr, "{}\n", arguments.error().message);
    return 2;
  }
  aisp::LogOptions log;
  log.level = arguments->trace ? aisp::LogLevel::kDebug : aisp::LogLevel::kError;
  log.fd = arguments->trace ? STDOUT_FILENO : STDERR_FILENO;
  if (!arguments->trace) log.fd = aisp::OpenNullDevice();
  const aisp::LogSession session(log);
  aisp::PrintSeedOnAbort();
  const aisp::SimReport report =
      aisp::RunSeeds(arguments->first, arguments->last, arguments->jobs, arguments->trace);
  for (const std::string& line : report.failures) fmt::print("{}\n", line);
  fmt::print("{} seeds, {} failed\n", report.seeds, report.failures.size());
  for (const auto& [what, n] : report.coverage.counts()) fmt::print("  {:<55} {:>10}\n", what, n);
  for (const auto& [what, n] : report.coverage.peaks())
    fmt::print("  {:<55} {:>10} at most\n", what, n);
  return report.failures.empty() ? 0 : 1;
}
