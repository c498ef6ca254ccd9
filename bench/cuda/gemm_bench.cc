// aisp-gemm-bench: products of many rows in Llama-3.1-8B's shapes on one GPU: each instance of our
// kernels, compared with cuBLASLt's best plus the passes that it needs (SiLU(gate) * up as a
// separate kernel; beta = 1 for the residual).
//
//   aisp-gemm-bench [format=bf16|fp8|fp8block|fp8x8|fp8blockx8|nvfp4|all]
//                   [rows=256,512,1024,2048,4096,8192] [shape=qkv|o|gate+up|down]
//
// Random weights and activations; calls rotate over copies of the weight; a CUDA graph holds all
// calls of a measurement; the graphs of one output line alternate; the median of seven runs counts.
// Each instance's results are compared with sampled sums on the host before it is timed.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bench/cuda/bench_support.h"
#include "kernels/cuda/linear/blas_lt.h"
#include "kernels/cuda/linear/gemm.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/pack_kernels.h"
#include "kernels/cuda/linear/quantize.h"

namespace aisp::cuda {
namespace {

constexpr size_t kPoolBytes = size_t{700} << 20;
constexpr int kMaxRows = 8192;
constexpr int64_t kMaxK = 14336;
constexpr size_t kLtBytes = size_t{64} << 20;

template <typename T>
std::vector<T> Download(const void* from, size_t count) {
  std::vector<T> values(count);
  Require(cudaMemcpy(values.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost), "copy");
  return values;
}

struct Shape {
  const char* name;
  int64_t n, k;
  Store store;
  bool gated() const { return store == Store::kSiluMulBf16; }
};

struct Format {
  const char* name;
  WeightFormat weight;
  bool x8;  // activations in FP8
};

class Bench {
 public:
  Bench() {
    Require(cudaStreamCreate(&stream_), "stream");
    gemm_ = Require(Gemm::Create());
    gemm_.SetParts(Allocate<char>(gemm_.PartBytes()));
    Require(cudaMemset(gemm_.parts(), 0xff, gemm_.PartBytes()), "memset");
    blas_ = Require(BlasLt::Create(""));
    Require(FillNormalBf16(x_, kMaxRows * kMaxK, 1.0f, 1, stream_));
  }

  void Run(const Shape& shape, const Format& format, const std::vector<int>& rows) {
    const auto count = static_cast<size_t>(shape.n * shape.k);
    auto* const plain = Allocate<uint16_t>(count);
    Require(FillNormalBf16(plain, shape.n * shape.k, 0.02f, 3, stream_));
    std::vector<WeightPart> parts(shape.gated() ? 2 : 1);
    const int64_t part_rows = shape.n / static_cast<int64_t>(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i].data = plain + static_cast<size_t>(part_rows * shape.k) * i;
      parts[i].rows = part_rows;
    }
    const WeightSource source{SourceType::kBf16, parts, shape.k, shape.gated(), format.weight};
    const size_t bytes = Require(PackedWeightBytes(source));
    weights_.clear();
    for (size_t i = 0; i < std::max<size_t>(1, kPoolBytes / bytes); ++i) {
      weights_.push_back(Require(PackWeight(source, pool_ + i * bytes, bytes, stream_)));
    }
    Require(cudaFree(plain), "free");
    for (const int m : rows) Measure(shape, format, m);
  }

 private:
  double Teraflops(const Shape& s, int m, double us) const {
    return 2.0 * static_cast<double>(s.n) * static_cast<double>(s.k) * m / us * 1e-6;
  }

  void Measure(const Shape& shape, const Format& format, int m) {
    LinearCall call;
    call.weight = &weights_[0];
    call.x = x_;
    if (format.x8) {
      Require(QuantizeRows(x_, x8_, x_scales_, m, shape.k, stream_));
      call.x = x8_;
      call.x_scales = x_scales_;
      call.input = InputFormat::kFp8;
    }
    call.y = y_;
    call.store = shape.store;
    call.rows = m;
    const int copies = static_cast<int>(weights_.size());
    const int count = std::max(8, copies);
    std::printf("%-8s %-10s M=%-5d", shape.name, format.name, m);
    const int chosen = gemm_.Choose(call);
    std::vector<std::string> names;
    std::vector<std::unique_ptr<Captured>> captured;
    for (const int i : gemm_.Instances(call)) {
      const GemmKernel& kernel = GemmKernels()[static_cast<size_t>(i)];
      const double error = CheckSample(shape, call, i);
      names.push_back(std::to_string(kernel.tokens) + (i == chosen ? "*" : " ") +
                      (error < 5e-3 ? "" : " ERROR " + std::to_string(error)));
      captured.push_back(std::make_unique<Captured>(count, stream_, [&](int c) {
        LinearCall one = call;
        one.weight = &weights_[static_cast<size_t>(c % copies)];
        Require(gemm_.Launch(one, i, true, stream_));
      }));
    }
    if (auto lt = CaptureLt(shape, format, call, count)) {
      names.emplace_back("Lt");
      captured.push_back(std::move(lt));
    }
    // Alternating, because the card's clock falls with the power that earlier work has drawn.
    for (int run = 0; run < 8; ++run) {
      for (auto& one : captured) one->Run();
    }
    for (size_t i = 0; i < names.size(); ++i) {
      const double us = captured[i]->Median();
      std::printf(" | %s %7.1f us %4.0f", names[i].c_str(), us, Teraflops(shape, m, us));
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  // cuBLASLt's best for the same operands, and SiLU.
  std::unique_ptr<Captured> CaptureLt(const Shape& shape, const Format& format,
                                      const LinearCall& call, int count) {
    const bool fp8 = format.weight == WeightFormat::kFp8 && format.x8;
    if (format.weight != WeightFormat::kBf16 && !fp8) return nullptr;
    LtProduct product;
    product.weight = call.weight->data;
    product.x = call.x;
    product.y = shape.gated() ? static_cast<void*>(middle_) : y_;
    product.n = shape.n;
    product.k = shape.k;
    product.y_stride = shape.n;
    product.rows = call.rows;
    product.f32 = shape.store == Store::kAccumulateF32;
    product.add = product.f32;
    product.fp8 = format.x8;
    product.weight_scales = call.weight->scales;
    product.x_scales = call.x_scales;
    const Status tuned = blas_->Tune(product, workspace_, kLtBytes, stream_);
    if (!tuned) return nullptr;
    return std::make_unique<Captured>(count, stream_, [&](int c) {
      LtProduct one = product;
      const PackedWeight& w = weights_[static_cast<size_t>(c) % weights_.size()];
      one.weight = w.data;
      one.weight_scales = w.scales;
      Require(blas_->Run(one, workspace_, kLtBytes, stream_));
      if (shape.gated()) {
        SiluMulInterleaved(middle_, nullptr, call.rows, shape.n, y_, shape.n / 2, stream_);
      }
    });
  }

  // Relative error of sampled tokens and groups of 16 weight rows against sums in double.
  double CheckSample(const Shape& shape, const LinearCall& call, int kernel) {
    const auto k = static_cast<size_t>(shape.k);
    const bool f32 = shape.store == Store::kAccumulateF32;
    const auto out = static_cast<size_t>(call.weight->out_features());
    const auto rows = static_cast<size_t>(call.rows);
    // Poison, or the initial values if the kernel accumulates.
    Require(cudaMemset(y_, f32 ? 0x3f : 0xff, rows * out * (f32 ? 4 : 2)), "memset");
    Require(gemm_.Launch(call, kernel, true, stream_));
    Require(cudaStreamSynchronize(stream_), "product");
    double difference = 0.0;
    double norm = 0.0;
    for (int g = 0; g < 6; ++g) {
      const int64_t groups = shape.n / 16;
      const int64_t group = g == 0 ? 0 : g == 1 ? groups - 1 : std::rand() % groups;
      ExpandRows16(*call.weight, group * 16);
      Require(cudaStreamSynchronize(stream_), "expanding");
      const auto w = Download<uint16_t>(expanded_, 16 * k);
      for (int t = 0; t < 6; ++t) {
        const size_t token = t == 0   ? 0
                             : t == 1 ? rows - 1
                                      : static_cast<size_t>(std::rand()) % rows;
        const std::vector<float> x = InputRow(call, token, k);
        double sums[16];
        for (size_t i = 0; i < 16; ++i) {
          sums[i] = 0.0;
          for (size_t j = 0; j < k; ++j) sums[i] += double{x[j]} * FromBf16(w[i * k + j]);
        }
        const size_t width = shape.gated() ? 8 : 16;
        const size_t at = token * out + static_cast<size_t>(group) * width;
        const auto raw = Download<uint8_t>(static_cast<const char*>(y_) + at * (f32 ? 4 : 2),
                                           width * (f32 ? 4 : 2));
        for (size_t i = 0; i < width; ++i) {
          double expected = sums[i];
          if (shape.gated()) expected = sums[i] / (1.0 + std::exp(-sums[i])) * sums[8 + i];
          float y;
          if (f32) {
            std::memcpy(&y, &raw[i * 4], 4);
            expected += 0.74705881f;
          } else {
            uint16_t bits;
            std::memcpy(&bits, &raw[i * 2], 2);
            y = FromBf16(bits);
          }
          difference += (y - expected) * (y - expected);
          norm += expected * expected;
        }
      }
    }
    return std::isfinite(difference) ? std::sqrt(difference / norm) : 1e9;
  }

  void ExpandRows16(const PackedWeight& w, int64_t row) {
    if (w.format == WeightFormat::kBf16) {
      Require(cudaMemcpyAsync(expanded_, static_cast<const uint16_t*>(w.data) + row * w.k,
                              static_cast<size_t>(16 * w.k) * 2, cudaMemcpyDeviceToDevice, stream_),
              "copy");
    } else {
      ExpandRows(w, row, 16, expanded_, stream_);
    }
  }
  static float FromBf16(uint16_t v) {
    const uint32_t bits = static_cast<uint32_t>(v) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
  }
  std::vector<float> InputRow(const LinearCall& call, size_t token, size_t k) const {
    std::vector<float> x(k);
    if (call.input == InputFormat::kBf16) {
      const auto raw = Download<uint16_t>(static_cast<const uint16_t*>(call.x) + token * k, k);
      for (size_t i = 0; i < k; ++i) x[i] = FromBf16(raw[i]);
      return x;
    }
    const auto raw = Download<uint8_t>(static_cast<const uint8_t*>(call.x) + token * k, k);
    const float scale = Download<float>(call.x_scales + token, 1)[0];
    for (size_t i = 0; i < k; ++i) {
      __nv_fp8_e4m3 v;
      v.__x = raw[i / 16 * 16 + static_cast<size_t>(Fp8Position(static_cast<int>(i % 16)))];
      x[i] = static_cast<float>(v) * scale;
    }
    return x;
  }

  cudaStream_t stream_ = nullptr;
  Gemm gemm_;
  std::unique_ptr<BlasLt> blas_;
  std::vector<PackedWeight> weights_;
  char* pool_ = Allocate<char>(kPoolBytes);
  uint16_t* x_ = Allocate<uint16_t>(size_t{kMaxRows} * kMaxK);
  uint8_t* x8_ = Allocate<uint8_t>(size_t{kMaxRows} * kMaxK);
  float* x_scales_ = Allocate<float>(kMaxRows);
  void* y_ = Allocate<uint16_t>(size_t{kMaxRows} * 28672);
  uint16_t* middle_ = Allocate<uint16_t>(size_t{kMaxRows} * 28672);
  uint16_t* expanded_ = Allocate<uint16_t>(size_t{16} * kMaxK);
  char* workspace_ = Allocate<char>(kLtBytes);
};

}  // namespace
}  // namespace aisp::cuda

int main(int argc, char** argv) {
  using aisp::cuda::Format;
  using aisp::cuda::Shape;
  using aisp::cuda::Store;
  using aisp::cuda::WeightFormat;
  const std::string wanted = aisp::cuda::Argument(argc, argv, "format", "all");
  const std::vector<int> rows =
      aisp::cuda::RowsArgument(argc, argv, "256,512,1024,2048,4096,8192", 8192);
  const Format formats[] = {
      {"bf16", WeightFormat::kBf16, false},          {"fp8x8", WeightFormat::kFp8, true},
      {"fp8blockx8", WeightFormat::kFp8Block, true}, {"fp8", WeightFormat::kFp8, false},
      {"fp8block", WeightFormat::kFp8Block, false},  {"nvfp4", WeightFormat::kNvfp4, false}};
  const Shape shapes[] = {{"qkv", 6144, 4096, Store::kBf16},
                          {"o", 4096, 4096, Store::kAccumulateF32},
                          {"gate+up", 28672, 4096, Store::kSiluMulBf16},
                          {"down", 4096, 14336, Store::kAccumulateF32}};
  const std::string only = aisp::cuda::Argument(argc, argv, "shape", "");
  aisp::cuda::Bench bench;
  for (const Format& format : formats) {
    if (wanted != "all" && wanted != format.name) continue;
    for (const Shape& shape : shapes) {
      if (only.empty() || only == shape.name) bench.Run(shape, format, rows);
    }
  }
  return 0;
}
