// Configuration files: what loads can be printed, and loading that again gives the same.
#include "common/check.h"
#include "config/config.h"
#include "tests/fuzz/fuzz_target.h"

namespace aisp {

void FuzzOne(std::string_view input) {
  Config config;
  const Status loaded = LoadConfigText(std::string(input), "input.yaml", &config);
  if (!loaded) {
    AISP_CHECK(!loaded.error().message.empty());
    return;
  }
  const std::string printed = PrintConfig(config, Secrets::kShown);
  Config again;
  const Status reloaded = LoadConfigText(printed, "printed.yaml", &again);
  AISP_CHECK(reloaded);
  AISP_CHECK(PrintConfig(again, Secrets::kShown) == printed);
}

}  // namespace aisp
