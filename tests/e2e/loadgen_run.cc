#include "tests/e2e/loadgen_run.h"

#include <sys/wait.h>

#include <array>
#include <cstdio>

namespace aisp::e2e {

LoadgenRun RunLoadgen(const std::string& arguments) {
  LoadgenRun run;
  FILE* pipe = popen((AISP_BINARY_DIR "/bin/aisp-loadgen " + arguments + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return run;
  std::array<char, 4096> buffer;
  while (const size_t n = fread(buffer.data(), 1, buffer.size(), pipe))
    run.output.append(buffer.data(), n);
  run.code = WEXITSTATUS(pclose(pipe));
  return run;
}

Json ReadJson(const TempFile& file) {
  return Json::parse(file.Read(), nullptr, /*allow_exceptions=*/false);
}

bool GaveEverythingBack(const std::string& admin) {
  return Metric(admin, "aisp_kv_blocks_quarantined") == 0 &&
         Metric(admin, "aisp_num_requests_running") == 0 &&
         Metric(admin, "aisp_num_requests_waiting") == 0 &&
         Metric(admin, "aisp_num_requests_awaiting_kv") == 0 &&
         Metric(admin, "aisp_kv_cache_usage_perc") == 0;
}

}  // namespace aisp::e2e
