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

std::string ToTable(const std::vector<PrefillComparison>& prompts, const std::string& device,
                    const std::string& model) {
  std::string out = fmt::format("{} on {}, aisp {}; ms of one prompt\n", model, device, Version());
  out += fmt::format("{:>7} {:>9} {:>9} {:>9} {:>12} {:<14} {:>9} {:>10} {:>7} {:>9} {:>12}\n",
                     "tokens", "first", "rested", "device", "back to back", "format", "linear",
                     "attention", "head", "parts", "parts/whole");
  for (const PrefillComparison& p : prompts) {
    out +=
        fmt::format("{:>7} {:>9.3f} {:>9.3f} {:>9.3f} {:>12.3f}", p.whole.tokens, p.whole.first_ms,
                    p.whole.rested_ms, p.whole.device_ms, p.whole.back_to_back_ms);
    if (p.parts) {
      out += fmt::format(" {:<14} {:>9.3f} {:>10.3f} {:>7.3f} {:>9.3f} {:>10.1f} %",
                         p.parts->format, p.parts->linear_ms, p.parts->attention_ms,
                         p.parts->head_ms, p.parts->sum_ms(), p.percent());
    }
    out += "\n";
  }
  return out;
}

std::string ToJson(const std::vector<PrefillComparison>& prompts, const std::string& device,
                   const std::string& model) {
  std::vector<std::string> rows;
  rows.reserve(prompts.size());
  for (const PrefillComparison& p : prompts) {
    std::string row = fmt::format("{{\"whole\": {}", ToJson(p.whole));
    if (p.parts) {
      row += fmt::format(
          ", \"format\": \"{}\", \"linear_ms\": {:.3f}, \"attention_ms\": {:.3f}, "
          "\"head_ms\": {:.3f}, \"parts_ms\": {:.3f}, \"parts_percent\": {:.1f}",
          p.parts->format, p.parts->linear_ms, p.parts->attention_ms, p.parts->head_ms,
          p.parts->sum_ms(), p.percent());
    }
    rows.push_back(row + "}");
  }
  return fmt::format(
      "{{\"bench\": \"prefill\", \"version\": \"{}\", \"model\": \"{}\", \"device\": \"{}\", "
      "\"prompts\": [{}]}}\n",
      Version(), model, device, Join(rows, ", "));
}

}  // namespace aisp
