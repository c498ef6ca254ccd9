// Shared by the timings of bench/kernel_timings.h: a GPU with a stream, random memory, and the time
// of a call in a graph.
//
// One thread. Memory is freed with its Buffer; the rig must outlive the Buffers.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "bench/kernel_timings.h"
#include "kernels/cuda/cuda_device.h"

namespace aisp::cuda {

// Parts of a run. Cases with few rows come first, before large products have lowered the card's
// clocks.
enum class BenchPart : uint8_t { kFewRows, kManyRows };
inline constexpr int32_t kFewRows = 128;  // at most
inline bool BelongsTo(BenchPart part, int32_t rows) {
  return (rows <= kFewRows) == (part == BenchPart::kFewRows);
}

class BenchRig {
 public:
  static Result<std::unique_ptr<BenchRig>> Create(const KernelBenchOptions& options);

  Device& device() { return *device_; }
  CudaStream& stream() { return *stream_; }
  const CudaLimits& limits() const { return limits_; }
  const KernelBenchOptions& options() const { return options_; }

  Result<Buffer> Allocate(size_t bytes) { return device_->Allocate(bytes, MemoryKind::kDevice); }
  // Normal random values; bf16, f32 or e4m3 (with a standard deviation of about 130).
  Result<Buffer> Random(size_t elements, DType dtype, uint64_t seed);
  Result<Buffer> Upload(const void* from, size_t bytes);
  void Begin(BenchPart part) { part_ = part; }
  // Time of one of `calls` calls in a graph, in microseconds; call i gets i.
  Result<double> CallUs(int calls, const std::function<Status(int)>& call);

  bool Wants(std::string_view op) const {
    return options_.only.empty() || op.find(options_.only) != std::string_view::npos;
  }
  bool WantsFormat(std::string_view format) const {
    const auto& wanted = options_.formats;
    return wanted.empty() || std::find(wanted.begin(), wanted.end(), format) != wanted.end();
  }
  // Sets the floor from the `bytes` moved and the `flops` at a `peak` rate per second.
  void Add(KernelTiming timing, double bytes, double flops, double peak);
  std::vector<KernelTiming>& timings() { return timings_; }

 private:
  explicit BenchRig(const KernelBenchOptions& options) : options_(options) {}

  const KernelBenchOptions options_;
  BenchPart part_ = BenchPart::kFewRows;
  std::unique_ptr<Device> device_;
  std::unique_ptr<CudaStream> stream_;
  CudaLimits limits_;
  std::vector<KernelTiming> timings_;
};

// Linear layers in every format. The first part appends to `prefills`, the second completes them.
Status BenchLinear(BenchRig& rig, BenchPart part, std::vector<PrefillParts>* prefills);
// Decode or prefill attention; the latter sets the attention time of `prefills`.
Status BenchAttention(BenchRig& rig, BenchPart part, std::vector<PrefillParts>* prefills);
// Embedding, norms, RoPE with the append to the pool, drawing.
Status BenchRows(BenchRig& rig, BenchPart part);

// Driver, clocks and power, as reported by the driver and NVML.
GpuEnvironment ReadEnvironment(int32_t index);

}  // namespace aisp::cuda
