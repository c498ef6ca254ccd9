// `aisp bench prefill`: a prompt as the engine computes it beside the sum of its parts, each timed
// alone in the same run: the faster of our matrix products and cuBLASLt's, attention, the head
// (bench/kernel_timings.h). The rest is norms, rotary positions, launches and the host.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/engine.h"
#include "bench/kernel_timings.h"

namespace aisp {

struct PrefillComparison {
  PromptTimes whole;
  std::optional<PrefillParts> parts;  // none where libaisp_cuda_bench.so is not there
  // With parts. The parts' share of a prompt, in percent: each part was timed over as long as the
  // prompt takes and after the same rest, since the power limit gives a card that was idle higher
  // clocks for a while.
  double percent() const { return 100 * parts->sum_ms() / whole.rested_ms; }
};

// As the kernels' bench names what many rows are multiplied in and attend to, with these
// --quantization and --kv-dtype.
std::vector<std::string> PrefillFormatsOf(const std::string& quantization,
                                          const std::string& kv_dtype);

// A table; it ends with a line break. `device`: the GPU's name.
std::string ToTable(const std::vector<PrefillComparison>& prompts, const std::string& device,
                    const std::string& model);
// One JSON object; it ends with a line break. Fields of parts that were not timed are left out.
std::string ToJson(const std::vector<PrefillComparison>& prompts, const std::string& device,
                   const std::string& model);

}  // namespace aisp
