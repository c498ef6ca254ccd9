// aisp-linear-bench: linear layers of Llama-3.1-8B's shapes on one GPU, our kernels and cuBLASLt's
// best, relative to the bandwidth of a read-only pass over memory in the same run.
//
//   aisp-linear-bench [format=bf16|fp8|fp8x8|nvfp4|all] [rows=1,8,16,32,64,128] [lm_head=0|1]
//
// Weights are normal random numbers. Calls rotate over more than 1 GB of copies of a weight, so
// that the L2 cache holds none. A CUDA graph holds all calls of a measurement; the median of five
// replays counts.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bench/cuda/bench_support.h"
#include "bench/cuda/linear_bench_stream.h"
#include "kernels/cuda/linear/blas_lt.h"
#include "kernels/cuda/linear/linear_kernels.h"
#include "kernels/cuda/linear/quantize.h"

namespace aisp::cuda {
namespace {

constexpr size_t kPoolBytes = size_t{1400} << 20;
constexpr int kRuns = 5;

struct Shape {
  const char* name;
  int64_t n, k;
  bool gated;
};

struct Format {
  const char* name;
  WeightFormat weight;
  InputFormat input;
};

class Bench {
 public:
  Bench() {
    Require(cudaStreamCreate(&stream_), "stream");
    kernels_ = Require(LinearKernels::Create({}));
    blas_ = Require(BlasLt::Create(""));
    pool_ = Allocate<char>(kPoolBytes);
    x_ = Allocate<char>(size_t{128} * 16384 * 2);
    x8_ = Allocate<char>(size_t{128} * 16384);
    x_scales_ = Allocate<float>(128);
    y_ = Allocate<char>(size_t{128} * 131072 * 4);
    Require(FillNormalBf16(x_, int64_t{128} * 16384, 1.0f, 1, stream_));
    Require(FillNormalBf16(pool_, kPoolBytes / 2, 0.02f, 2, stream_));
    double best = 1e30;
    for (int blocks = 4; blocks <= 16; blocks *= 2) {
      best = std::min(best, Time(2, stream_, kRuns, [&](int) {
                        ReadOnlyPass(pool_, kPoolBytes, 132 * blocks, y_, stream_);
                      }));
    }
    stream_tbs_ = static_cast<double>(kPoolBytes) / best * 1e-6;
    std::printf("read-only stream: %.2f TB/s\n", stream_tbs_);
  }

  void Run(const Shape& shape, const Format& format, const std::vector<int>& rows) {
    // Packed once from random weights, then copied.
    void* const plain = Allocate<char>(static_cast<size_t>(shape.n * shape.k) * 2);
    Require(FillNormalBf16(plain, shape.n * shape.k, 0.02f, 3, stream_));
    std::vector<WeightPart> parts(shape.gated ? 2 : 1);
    const int64_t part_rows = shape.n / static_cast<int64_t>(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i].data = static_cast<char*>(plain) + static_cast<size_t>(part_rows * shape.k) * 2 * i;
      parts[i].rows = part_rows;
    }
    const WeightSource source{SourceType::kBf16, parts, shape.k, shape.gated, format.weight};
    const size_t bytes = Require(PackedWeightBytes(source));
    const auto copies = static_cast<int>(std::max<size_t>(1, kPoolBytes / bytes));
    char* const memory = copies > 1 ? pool_ : Allocate<char>(bytes);
    const PackedWeight packed = Require(PackWeight(source, memory, bytes, stream_));
    std::vector<PackedWeight> weights;
    for (int i = 0; i < copies; ++i) {
      const size_t offset = static_cast<size_t>(i) * bytes;
      if (i > 0)
        Require(cudaMemcpyAsync(memory + offset, memory, bytes, cudaMemcpyDeviceToDevice, stream_),
                "copy");
      weights.push_back(packed);
      const auto move = [&](const auto* p) {
        return p == nullptr
                   ? nullptr
                   : reinterpret_cast<decltype(p)>(reinterpret_cast<const char*>(p) + offset);
      };
      weights.back().data = static_cast<const char*>(packed.data) + offset;
      weights.back().scales = move(packed.scales);
    }
    const size_t workspace_bytes = kernels_->WorkspaceBytes(packed);
    void* const workspace = Allocate<char>(workspace_bytes);
    Require(kernels_->SetWorkspace(workspace, workspace_bytes, stream_));
    for (const int m : rows) Measure(shape, format, m, weights, workspace, workspace_bytes);
    Require(cudaFree(plain), "free");
    Require(cudaFree(workspace), "free");
    if (copies == 1) Require(cudaFree(memory), "free");
  }

 private:
  void Measure(const Shape& shape, const Format& format, int m,
               const std::vector<PackedWeight>& weights, void* workspace, size_t workspace_bytes) {
    LinearCall call;
    call.weight = &weights[0];
    call.input = format.input;
    call.x = x_;
    if (format.input == InputFormat::kFp8) {
      Require(QuantizeRows(x_, x8_, x_scales_, m, shape.k, stream_));
      call.x = x8_;
      call.x_scales = x_scales_;
    }
    call.y = y_;
    call.rows = m;
    call.store = shape.gated ? Store::kSiluMulBf16 : Store::kF32;
    Require(kernels_->Prepare(call, stream_));
    const int copies = static_cast<int>(weights.size());
    const int count = std::max(16, copies);
    const double us = Time(count, stream_, kRuns, [&](int i) {
      LinearCall one = call;
      one.weight = &weights[static_cast<size_t>(i % copies)];
      Require(kernels_->Launch(one, stream_));
    });
    const double tbs = static_cast<double>(weights[0].streamed_bytes()) / us * 1e-6;
    std::printf("%-8s %-6s M=%-4d %8.2f us %5.2f TB/s %3.0f %%", shape.name, format.name, m, us,
                tbs, 100.0 * tbs / stream_tbs_);
    // cuBLASLt's best for the same operands: bf16 output, without SiLU.
    if (format.weight == WeightFormat::kBf16 || format.input == InputFormat::kFp8) {
      LtProduct product;
      product.weight = weights[0].data;
      product.x = call.x;
      product.y = y_;
      product.n = shape.n;
      product.k = shape.k;
      product.y_stride = shape.n;
      product.rows = m;
      product.fp8 = format.input == InputFormat::kFp8;
      product.weight_scales = weights[0].scales;
      product.x_scales = call.x_scales;
      const Status tuned = blas_->Tune(product, workspace, workspace_bytes, stream_);
      if (tuned) {
        const double lt_us = Time(count, stream_, kRuns, [&](int i) {
          LtProduct one = product;
          one.weight = weights[static_cast<size_t>(i % copies)].data;
          one.weight_scales = weights[static_cast<size_t>(i % copies)].scales;
          Require(blas_->Run(one, workspace, workspace_bytes, stream_));
        });
        std::printf("   cuBLASLt %8.2f us (%.2fx)", lt_us, lt_us / us);
      } else {
        std::printf("   cuBLASLt: none");
      }
      Require(kernels_->SetWorkspace(workspace, workspace_bytes, stream_));  // cuBLASLt used it too
    }
    std::printf("  %s\n", kernels_->Describe(call).c_str());
    std::fflush(stdout);
  }

  cudaStream_t stream_ = nullptr;
  std::unique_ptr<LinearKernels> kernels_;
  std::unique_ptr<BlasLt> blas_;
  char* pool_ = nullptr;
  void* x_ = nullptr;
  void* x8_ = nullptr;
  float* x_scales_ = nullptr;
  void* y_ = nullptr;
  double stream_tbs_ = 0.0;
};

}  // namespace
}  // namespace aisp::cuda

int main(int argc, char** argv) {
  using aisp::cuda::Bench;
  using aisp::cuda::Format;
  using aisp::cuda::InputFormat;
  using aisp::cuda::Shape;
  using aisp::cuda::WeightFormat;
  const std::string wanted = aisp::cuda::Argument(argc, argv, "format", "all");
  const std::vector<int> rows = aisp::cuda::RowsArgument(argc, argv, "1,8,16,32,64,128", 128);
  const bool lm_head = aisp::cuda::Argument(argc, argv, "lm_head", "1") == "1";
  const Format formats[] = {{"bf16", WeightFormat::kBf16, InputFormat::kBf16},
                            {"fp8", WeightFormat::kFp8, InputFormat::kBf16},
                            {"fp8x8", WeightFormat::kFp8, InputFormat::kFp8},
                            {"nvfp4", WeightFormat::kNvfp4, InputFormat::kBf16}};
  const Shape shapes[] = {{"qkv", 6144, 4096, false},
                          {"o", 4096, 4096, false},
                          {"gate+up", 28672, 4096, true},
                          {"down", 4096, 14336, false},
                          {"lm_head", 128256, 4096, false}};
  Bench bench;
  for (const Format& format : formats) {
    if (wanted != "all" && wanted != format.name) continue;
    for (const Shape& shape : shapes) {
      if (std::strcmp(shape.name, "lm_head") == 0 && !lm_head) continue;
      bench.Run(shape, format, rows);
    }
  }
  return 0;
}
