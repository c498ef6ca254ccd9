#include "kernels/cuda/bench_rig.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/limits.h"
#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/random_fill.h"

namespace aisp::cuda {
namespace {

constexpr int kReplays = 7;
constexpr int kWarmUps = 2;

}  // namespace

Result<std::unique_ptr<BenchRig>> BenchRig::Create(const KernelBenchOptions& options) {
  std::unique_ptr<BenchRig> rig(new BenchRig(options));
  AISP_ASSIGN_OR_RETURN(rig->limits_, MeasureLimits(options.index));
  AISP_ASSIGN_OR_RETURN(rig->device_, MakeCudaDevice(options.index));
  AISP_ASSIGN_OR_RETURN(auto stream, rig->device_->CreateStream());
  rig->stream_.reset(static_cast<CudaStream*>(stream.release()));
  return rig;
}

Result<Buffer> BenchRig::Random(size_t elements, DType dtype, uint64_t seed) {
  if (dtype != DType::kF8E4M3) {
    AISP_ASSIGN_OR_RETURN(Buffer buffer, Allocate(elements * DTypeBytes(dtype)));
    AISP_RETURN_IF_ERROR(LaunchFillNormal(buffer.data(), dtype, static_cast<int64_t>(elements),
                                          1.0f, seed, stream_->handle));
    AISP_RETURN_IF_ERROR(device_->Synchronize(*stream_));
    return buffer;
  }
  // Pieces of one random matrix, quantised: a stretch that repeats after 64 MiB is random enough for a cache of 60.
  constexpr int64_t kColumns = 4096, kRows = 16384;
  AISP_ASSIGN_OR_RETURN(const Buffer wide, Random(kRows * kColumns, DType::kBF16, seed));
  AISP_ASSIGN_OR_RETURN(const Buffer scales, Allocate(kRows * sizeof(float)));
  AISP_ASSIGN_OR_RETURN(const Buffer codes, Allocate(kRows * kColumns));
  AISP_RETURN_IF_ERROR(QuantizeRows(wide.data(), codes.data(), static_cast<float*>(scales.data()),
                                    kRows, kColumns, stream_->handle));
  AISP_ASSIGN_OR_RETURN(Buffer buffer, Allocate(elements));
  for (size_t at = 0; at < elements; at += codes.bytes()) {
    AISP_RETURN_IF_ERROR(device_->Copy(static_cast<std::byte*>(buffer.data()) + at, codes.data(),
                                       std::min(codes.bytes(), elements - at), *stream_));
  }
  AISP_RETURN_IF_ERROR(device_->Synchronize(*stream_));
  return buffer;
}

Result<Buffer> BenchRig::Upload(const void* from, size_t bytes) {
  AISP_ASSIGN_OR_RETURN(Buffer buffer, Allocate(bytes));
  AISP_RETURN_IF_ERROR(device_->Copy(buffer.data(), from, bytes, *stream_));
  AISP_RETURN_IF_ERROR(device_->Synchronize(*stream_));
  return buffer;
}

Result<double> BenchRig::CallUs(int calls, const std::function<Status(int)>& call) {
  // Once outside the graph: what a first call prepares must not be captured.
  AISP_RETURN_IF_ERROR(call(0));
  AISP_RETURN_IF_ERROR(device_->BeginCapture(*stream_));
  Status launched;
  for (int i = 0; i < calls && launched; ++i) launched = call(i);
  auto graph = device_->EndCapture(*stream_);
  AISP_RETURN_IF_ERROR(launched);
  if (!graph) return tl::unexpected(std::move(graph).error());
  AISP_ASSIGN_OR_RETURN(const auto begin, device_->CreateEvent());
  AISP_ASSIGN_OR_RETURN(const auto end, device_->CreateEvent());
  std::vector<double> times;
  for (int i = -kWarmUps; i < kReplays; ++i) {
    AISP_RETURN_IF_ERROR(device_->Record(*begin, *stream_));
    AISP_RETURN_IF_ERROR(device_->LaunchGraph(**graph, *stream_));
    AISP_RETURN_IF_ERROR(device_->Record(*end, *stream_));
    AISP_RETURN_IF_ERROR(device_->Synchronize(*end));
    AISP_ASSIGN_OR_RETURN(const double ms, device_->ElapsedMs(*begin, *end));
    if (i >= 0) times.push_back(ms * 1e3 / calls);
  }
  std::nth_element(times.begin(), times.begin() + kReplays / 2, times.end());
  return times[kReplays / 2];
}

void BenchRig::Add(KernelTiming timing, double bytes, double flops, double peak) {
  const double moved = bytes / limits_.read_bytes_per_s * 1e6;
  const double computed = flops > 0 ? flops / peak * 1e6 : 0;
  const double launched = limits_.graph_kernel_s * 1e6;
  timing.floor_us = std::max({moved, computed, launched});
  timing.bound = timing.floor_us == moved      ? "bytes"
                 : timing.floor_us == computed ? "flops"
                                               : "launch";
  timings_.push_back(std::move(timing));
}

}  // namespace aisp::cuda
