#include "bench/prefill.h"

#include <fmt/format.h>

#include "common/strings.h"
#include "common/version.h"

namespace aisp {

std::vector<std::string> PrefillFormatsOf(const std::string& quantization,
                                          const std::string& kv_dtype) {
  const char* product = quantization == "fp8"     ? "fp8 x fp8"
                        : quantization == "nvfp4" ? "nvfp4 x bf16"
                                                  : "bf16";
  return {product, kv_dtype == "fp8" ? "fp8 kv" : "bf16 kv"};
}

std::string ToTable(const std::vector<PrefillComparison>& prompts,
                    const GpuEnvironment& environment, const std::string& model) {
  std::string out =
      fmt::format("{} on {}, aisp {}; ms of one prompt\n", model, environment.device, Version());
  out += fmt::format("{:>7} {:<14} {:>9} {:>9} {:>9} {:>12} {:>9} {:>10} {:>7} {:>9} {:>12}\n",
                     "tokens", "format", "first", "rested", "device", "back to back", "linear",
                     "attention", "head", "parts", "parts/whole");
  for (const PrefillComparison& p : prompts) {
    out += fmt::format(
        "{:>7} {:<14} {:>9.3f} {:>9.3f} {:>9.3f} {:>12.3f} {:>9.3f} {:>10.3f} {:>7.3f} {:>9.3f} "
        "{:>10.1f} %\n",
        p.whole.tokens, p.parts.format, p.whole.first_ms, p.whole.rested_ms, p.whole.device_ms,
        p.whole.back_to_back_ms, p.parts.linear_ms, p.parts.attention_ms, p.parts.head_ms,
        p.parts.sum_ms(), p.percent());
  }
  return out;
}

std::string ToJson(const std::vector<PrefillComparison>& prompts, const GpuEnvironment& environment,
                   const std::string& model) {
  std::vector<std::string> rows;
  rows.reserve(prompts.size());
  for (const PrefillComparison& p : prompts) {
    rows.push_back(
        fmt::format("{{\"whole\": {}, \"format\": \"{}\", \"linear_ms\": {:.3f}, "
                    "\"attention_ms\": {:.3f}, \"head_ms\": {:.3f}, \"parts_ms\": {:.3f}, "
                    "\"parts_percent\": {:.1f}}}",
                    ToJson(p.whole), p.parts.format, p.parts.linear_ms, p.parts.attention_ms,
                    p.parts.head_ms, p.parts.sum_ms(), p.percent()));
  }
  return fmt::format(
      "{{\"bench\": \"prefill\", \"version\": \"{}\", \"model\": \"{}\", \"device\": \"{}\", "
      "\"prompts\": [{}]}}\n",
      Version(), model, environment.device, Join(rows, ", "));
}

}  // namespace aisp
