#include "server/loading_progress.h"

#include "common/log.h"

namespace aisp {

std::unique_ptr<ProgressMeter> MakeLoadingMeter(const Config& config, const Clock* clock,
                                                const char* event) {
  ProgressMeter::Options options;
  options.terminal = config.log.format == "text" && MayDrawOnTerminal();
  return std::make_unique<ProgressMeter>(clock, options, [event](const ProgressState& state) {
    LogInfo(event, {{"what", state.what},
                    {"done_bytes", state.done_bytes},
                    {"total_bytes", state.total_bytes},
                    {"bytes_per_s", static_cast<uint64_t>(state.bytes_per_s)},
                    {"left_s", static_cast<uint64_t>(state.seconds_left())},
                    {"progress", ProgressText(state)}});
  });
}

std::function<void(uint64_t done_bytes, uint64_t total_bytes)> WeightsProgress(
    const Config& config) {
  struct Shown {
    SteadyClock clock;
    std::unique_ptr<ProgressMeter> meter;
  };
  const auto shown = std::make_shared<Shown>();
  shown->meter = MakeLoadingMeter(config, &shown->clock, "loading weights");
  return [shown](uint64_t done_bytes, uint64_t total_bytes) {
    shown->meter->Update("loading weights", done_bytes, total_bytes);
    if (done_bytes >= total_bytes) shown->meter->Finish();
  };
}

}  // namespace aisp
