// Time of each operation of a model's shape on a GPU, alone, compared with its floor and with the
// vendor's library if that has the operation. Plain data and one call into libaisp_cuda_bench.so
// (bench/cuda/kernels), which is built with the CUDA backend but not shipped: no CUDA header here,
// and the program does not link CUDA.
//
// Method: random data; calls in a CUDA graph, the median of several replays; weights and KV rotate
// through several times the L2 cache. Cases with few rows come first, because cases with many rows
// make the power limit lower the clocks; those run after a pause each. The floor is the larger of
// bytes over the read-only stream and operations over the vendor's best matrix product, both
// measured in the same run, and at least the cost of a kernel in a graph.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/load.h"

namespace aisp {

// One layer and the head; grouped-query attention and a gated MLP.
struct KernelBenchOptions {
  int32_t index = 0;  // of the GPU
  int32_t layers = 0;
  int32_t hidden = 0;
  int32_t intermediate = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t vocabulary = 0;
  int32_t window = 0;
  bool qk_norm = false;
  int32_t block_tokens = 64;
  std::vector<int32_t> rows = {1, 8, 32, 64, 128, 1024};
  std::vector<int32_t> prefills = {1024, 8192};  // prompt lengths for sums of parts
  std::string only;                              // only operations whose name contains this
  int32_t rest_ms = 100;                         // pause before a case with many rows
  // Above 0: each case runs for this time after each of several pauses, like a prompt of that
  // length on an idle card.
  double span_ms = 0;
  std::vector<std::string>
      formats;  // of products and attention, as named in KernelTiming; empty: all
};

struct KernelTiming {
  std::string op;      // "gate+up", "decode attention"
  std::string format;  // "bf16", "fp8 x bf16", "fp8 kv"
  std::string size;    // "32", "32 x 8192"
  double us = 0;
  double floor_us = 0;
  std::string bound = "";   // which bound is the floor: "bytes", "flops", "launch"
  double vendor_us = 0;     // cuBLASLt's best for the same operands; 0: none
  std::string kernel = "";  // name of the kernel that ran

  double percent() const { return us > 0 ? 100 * floor_us / us : 0; }
};

// Time of a prompt if only its matrix products (the faster of ours and the vendor's) and its
// attention counted.
struct PrefillParts {
  int32_t tokens = 0;
  std::string format;
  double linear_ms = 0;     // of all layers
  double attention_ms = 0;  // of all layers
  double head_ms = 0;       // of one row
  double sum_ms() const { return linear_ms + attention_ms + head_ms; }
};

struct GpuEnvironment {
  std::string device;
  std::string driver;        // "580.82.07"; "" without NVML
  std::string cuda_driver;   // "13.0": supported by the driver
  std::string cuda_runtime;  // "13.0": of this build
  int32_t sm_mhz = 0;        // read after the first products; 0: not known
  int32_t memory_mhz = 0;
  int32_t power_watts = 0;
  int32_t temperature_c = 0;
};

struct KernelBench {
  GpuEnvironment environment;
  CudaLimits limits;
  std::vector<KernelTiming> timings;
  std::vector<PrefillParts> prefills;
};

// Errors as OpenCudaBackend's; NOT_FOUND also without libaisp_cuda_bench.so. Needs about 10 GiB of
// GPU memory and half a minute.
Result<KernelBench> BenchCudaKernels(const KernelBenchOptions& options,
                                     std::span<const std::string> folders);

// Exports of libaisp_cuda_bench.so, in addition to those of libaisp_cuda.so.
inline constexpr const char* kCudaBenchKernelsSymbol = "aisp_cuda_bench_kernels";
using CudaBenchKernelsFn = void (*)(const KernelBenchOptions* options, Result<KernelBench>* bench);

}  // namespace aisp
