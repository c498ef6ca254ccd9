#include "bench/cuda/kernels/rig.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "kernels/cuda/limits.h"
#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/random_fill.h"

namespace aisp::cuda {
namespace {

constexpr int kReplays = 7;
constexpr int kSpans = 3;
constexpr int kWarmUps = 2;
constexpr double kWarmUpMs = 20;

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
  // Repeats one quantised random matrix of 64 MiB, which exceeds a cache of 60.
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
  // One call outside the graph first: a first call's setup must not be captured.
  AISP_RETURN_IF_ERROR(call(0));
  AISP_RETURN_IF_ERROR(device_->BeginCapture(*stream_));
  Status launched;
  for (int i = 0; i < calls && launched; ++i) launched = call(i);
  auto graph = device_->EndCapture(*stream_);
  AISP_RETURN_IF_ERROR(launched);
  if (!graph) return tl::unexpected(std::move(graph).error());
  AISP_ASSIGN_OR_RETURN(const auto begin, device_->CreateEvent());
  AISP_ASSIGN_OR_RETURN(const auto end, device_->CreateEvent());
  // Time of one of many consecutive launches.
  const auto time_ms = [&](int launches) -> Result<double> {
    AISP_RETURN_IF_ERROR(device_->Record(*begin, *stream_));
    for (int i = 0; i < launches; ++i)
      AISP_RETURN_IF_ERROR(device_->LaunchGraph(**graph, *stream_));
    AISP_RETURN_IF_ERROR(device_->Record(*end, *stream_));
    AISP_RETURN_IF_ERROR(device_->Synchronize(*end));
    AISP_ASSIGN_OR_RETURN(const double ms, device_->ElapsedMs(*begin, *end));
    return ms / launches;
  };
  // The first case after allocations and captures measures some percent slower, so short cases run
  // for a while first. Long cases do not, because that would lower the clocks.
  double once_ms = 0, warm_ms = 0;
  const bool many = part_ == BenchPart::kManyRows;
  for (int i = 0; i < kWarmUps || (!many && warm_ms < kWarmUpMs); ++i) {
    AISP_ASSIGN_OR_RETURN(once_ms, time_ms(1));
    warm_ms += once_ms;
  }
  const auto rest = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(options_.rest_ms));
  };
  const bool spans = options_.span_ms > 0;
  const int launches = spans ? std::max(1, static_cast<int>(options_.span_ms / once_ms)) : 1;
  std::vector<double> times;
  for (int i = 0; i < (spans ? kSpans : kReplays); ++i) {
    if (spans || (many && i == 0)) rest();
    AISP_ASSIGN_OR_RETURN(const double ms, time_ms(launches));
    times.push_back(ms * 1e3 / calls);
  }
  const auto middle = times.begin() + static_cast<ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
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
