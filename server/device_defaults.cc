#include "server/device_defaults.h"

#include <string>

#include "kernels/cuda/load.h"
#include "server/process.h"

namespace aisp {

bool WantsGpu(const Config& config) {
  const std::string here = ExecutableFolder();
  const std::string folders[] = {here + "/../lib", here};
  return config.model.device.starts_with("cuda") ||
         (config.model.device == "auto" && CudaBackendPresent(folders));
}

Config::Engine EngineSettingsOf(const Config& config) {
  Config::Engine e = config.engine;
  const bool gpu = WantsGpu(config);
  const auto choose = [gpu](int64_t* value, int64_t on_cpu, int64_t on_gpu) {
    if (*value == 0) *value = gpu ? on_gpu : on_cpu;
  };
  choose(&e.block_tokens, 16, 64);
  choose(&e.max_batch_tokens, 512, 2048);
  choose(&e.max_prefill_chunk, 256, 2048);
  choose(&e.max_sequences, 64, 256);
  // On a GPU, rows of a verify step may differ in bits from a row alone.
  if (e.forced_runs == "auto") e.forced_runs = gpu ? "off" : "on";
  return e;
}

}  // namespace aisp
