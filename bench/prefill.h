// `aisp bench prefill`: the engine's time for a prompt, compared with the sum of its parts, each
// timed alone in the same run: the faster of our matrix products and cuBLASLt's, attention, the
// head (bench/kernel_timings.h). The rest is norms, RoPE, launches and the host.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/engine.h"
#include "bench/kernel_timings.h"

namespace aisp {

struct PrefillComparison {
  PromptTimes whole;
  std::optional<PrefillParts> parts;  // absent without libaisp_cuda_bench.so
  // Only with parts. The parts' share of a prompt, in percent. Each part was timed over the
  // prompt's duration and after the same pause, because an idle card has higher clocks for a while.
  double percent() const { return 100 * parts->sum_ms() / whole.rested_ms; }
};

// The formats of products and attention, as named by the kernels' benchmark, for these
// --quantization and --kv-dtype.
std::vector<std::string> PrefillFormatsOf(const std::string& quantization,
                                          const std::string& kv_dtype);

// A table; ends with a line break. `device`: the GPU's name.
std::string ToTable(const std::vector<PrefillComparison>& prompts, const std::string& device,
                    const std::string& model);
// One JSON object; ends with a line break. Parts that were not timed have no fields.
std::string ToJson(const std::vector<PrefillComparison>& prompts, const std::string& device,
                   const std::string& model);

}  // namespace aisp
