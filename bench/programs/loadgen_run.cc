#include "bench/programs/loadgen_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/check.h"

namespace aisp::e2e {

namespace fs = std::filesystem;

Json Load(const std::string& http, const std::vector<std::string>& flags, int seed) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("aisp_bench_{}", getpid());
  fs::create_directories(folder);
  std::string command = fmt::format(
      "{}/bin/aisp-loadgen --base-url http://{} --model story-7m --seed {} --save-result "
      "--result-dir {} --result-filename result.json",
      AISP_BINARY_DIR, http, seed, folder.string());
  for (const auto& flag : flags) command += " " + flag;
  command += " >/dev/null";
  // NOLINTNEXTLINE(cert-env33-c): a command line of our own making
  const int status = std::system(command.c_str());
  AISP_CHECK_MSG(status == 0, command);
  std::ifstream in(folder / "result.json");
  Json result = Json::parse(in);
  in.close();
  fs::remove_all(folder);
  AISP_CHECK(result.at("failed") == 0);
  return result;
}

}  // namespace aisp::e2e
