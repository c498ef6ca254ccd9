#include "bench/kernels.h"

#include <fmt/format.h>

#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

#include "common/version.h"

namespace aisp {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string Today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

double Rounded(double value, double unit) {
  return static_cast<double>(std::lround(value / unit)) * unit;
}

OrderedJson EnvironmentOf(const KernelBench& bench) {
  const GpuEnvironment& e = bench.environment;
  return {{"date", Today()},
          {"version", Version()},
          {"device", e.device},
          {"driver", e.driver},
          {"cuda_driver", e.cuda_driver},
          {"cuda_runtime", e.cuda_runtime},
          {"sm_mhz", e.sm_mhz},
          {"memory_mhz", e.memory_mhz},
          {"power_watts", e.power_watts},
          {"temperature_c", e.temperature_c}};
}

}  // namespace

Result<KernelBenchOptions> KernelBenchOptionsOf(const ModelSpec& spec) {
  const LayerSpec& layer = spec.layers.front();
  if (layer.attention.kind != AttentionKind::kGrouped || layer.mlp.kind != MlpKind::kGated) {
    return Unimplemented(
        fmt::format("{}: kernels are timed for grouped attention and gated MLPs; give a dense "
                    "shape, such as --model llama-3.1-8b",
                    spec.architecture));
  }
  KernelBenchOptions o;
  o.layers = static_cast<int32_t>(spec.layers.size());
  o.hidden = spec.hidden;
  o.intermediate = layer.mlp.intermediate;
  o.num_heads = layer.attention.num_heads;
  o.num_kv_heads = layer.attention.num_kv_heads;
  o.head_dim = layer.attention.head_dim;
  o.vocabulary = spec.vocabulary;
  o.window = layer.attention.window;
  o.qk_norm = layer.attention.qk_norm;
  return o;
}

std::string ToTable(const KernelBench& bench, const std::string& model) {
  const GpuEnvironment& e = bench.environment;
  const CudaLimits& l = bench.limits;
  std::string out = fmt::format(
      "{} on {}, {}, aisp {}; driver {} (CUDA {}), CUDA runtime {}; SM {} MHz, memory {} MHz, {} "
      "W, "
      "{} C\n",
      model, e.device, Today(), Version(), e.driver.empty() ? "?" : e.driver, e.cuda_driver,
      e.cuda_runtime, e.sm_mhz, e.memory_mhz, e.power_watts, e.temperature_c);
  out += fmt::format(
      "limits: read {:.2f} TB/s, copy {:.2f} TB/s, host {:.1f} GB/s, bf16 {:.0f} and fp8 {:.0f} "
      "TFLOP/s, a kernel in a graph {:.2f} us\n\n",
      l.read_bytes_per_s * 1e-12, l.copy_bytes_per_s * 1e-12, l.host_bytes_per_s * 1e-9,
      l.bf16_flops_per_s * 1e-12, l.fp8_flops_per_s * 1e-12, l.graph_kernel_s * 1e6);
  out += fmt::format("{:<20} {:<14} {:>12} {:>10} {:>10} {:>7} {:<6} {:>10} {:>8}  {}\n",
                     "operation", "format", "size", "us", "floor us", "of it", "bound", "cuBLASLt",
                     "times", "kernel");
  for (const KernelTiming& t : bench.timings) {
    const std::string vendor = t.vendor_us > 0 ? fmt::format("{:.2f}", t.vendor_us) : "-";
    const std::string times = t.vendor_us > 0 ? fmt::format("{:.2f}", t.vendor_us / t.us) : "-";
    out += fmt::format(
        "{:<20} {:<14} {:>12} {:>10.2f} {:>10.2f} {:>5.1f} % {:<6} {:>10} {:>8}  {}\n", t.op,
        t.format, t.size, t.us, t.floor_us, t.percent(), t.bound, vendor, times, t.kernel);
  }
  if (!bench.prefills.empty())
    out += "\nsum of the parts of a prefill, each the faster of ours and cuBLASLt\n";
  for (const PrefillParts& p : bench.prefills) {
    out += fmt::format(
        "{:>6} tokens {:<14} linear {:>8.3f} ms, attention {:>8.3f} ms, head {:.3f} ms: {:.3f} "
        "ms\n",
        p.tokens, p.format, p.linear_ms, p.attention_ms, p.head_ms, p.sum_ms());
  }
  return out;
}

std::string ToJson(const KernelBench& bench, const std::string& model) {
  const CudaLimits& l = bench.limits;
  OrderedJson json = {
      {"bench", "kernels"}, {"model", model}, {"environment", EnvironmentOf(bench)}};
  json["limits"] = {{"read_tb_per_s", Rounded(l.read_bytes_per_s * 1e-12, 1e-3)},
                    {"copy_tb_per_s", Rounded(l.copy_bytes_per_s * 1e-12, 1e-3)},
                    {"host_gb_per_s", Rounded(l.host_bytes_per_s * 1e-9, 0.1)},
                    {"bf16_tflops", Rounded(l.bf16_flops_per_s * 1e-12, 0.1)},
                    {"fp8_tflops", Rounded(l.fp8_flops_per_s * 1e-12, 0.1)},
                    {"graph_kernel_us", Rounded(l.graph_kernel_s * 1e6, 1e-3)}};
  json["kernels"] = OrderedJson::array();
  for (const KernelTiming& t : bench.timings) {
    json["kernels"].push_back({{"operation", t.op},
                               {"format", t.format},
                               {"size", t.size},
                               {"us", Rounded(t.us, 1e-3)},
                               {"floor_us", Rounded(t.floor_us, 1e-3)},
                               {"percent", Rounded(t.percent(), 0.1)},
                               {"bound", t.bound},
                               {"cublaslt_us", Rounded(t.vendor_us, 1e-3)},
                               {"kernel", t.kernel}});
  }
  json["prefill_parts"] = OrderedJson::array();
  for (const PrefillParts& p : bench.prefills) {
    json["prefill_parts"].push_back({{"tokens", p.tokens},
                                     {"format", p.format},
                                     {"linear_ms", Rounded(p.linear_ms, 1e-4)},
                                     {"attention_ms", Rounded(p.attention_ms, 1e-4)},
                                     {"head_ms", Rounded(p.head_ms, 1e-4)},
                                     {"sum_ms", Rounded(p.sum_ms(), 1e-4)}});
  }
  return json.dump() + "\n";
}

}  // namespace aisp
