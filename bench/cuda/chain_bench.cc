// aisp_bench_cuda_chain: the linear layers between two attentions (o, gate+up, down, the next qkv)
// in one launch, compared with the same layers in four launches and with a read-only pass over
// their bytes in the same run.
//
//   aisp_bench_cuda_chain [format=bf16|fp8|fp8block|nvfp4|all] [rows=1,8,32] [model=8b|1b]
//                         [layers=32] [gap=0] [attention=0] [verify=0]
//
// Every layer has its own weights (copies of random ones), so that the L2 cache holds none. A CUDA
// graph holds all layers; the median of seven replays is reported. The four launches do not include
// norms, which would be separate kernels. gap=7: a small kernel of 7 us runs before each layer, in
// place of attention; its time is included. attention=1024: decode attention over this many keys of
// each row's sequence runs there instead, on the q, k and v of the layer before. verify=1: the rows
// are the last ones of one sequence.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/cuda/bench_support.h"
#include "bench/cuda/layer_attention.h"
#include "bench/cuda/linear_bench_stream.h"
#include "kernels/cuda/linear/linear_kernels.h"
#include "kernels/cuda/linear/quantize.h"

namespace aisp::cuda {
namespace {

constexpr int kMaxRows = 64;
constexpr int kRuns = 7;

struct Model {
  const char* name;
  int64_t hidden, intermediate, qkv;
};

struct Format {
  const char* name;
  WeightFormat weight;
};

class ChainBench {
 public:
  ChainBench(const Model& model, const Format& format, int layers, int gap, int context,
             bool verify)
      : model_(model),
        format_(format),
        layers_(layers),
        gap_(gap),
        context_(context),
        verify_(verify) {
    Require(cudaStreamCreate(&stream_), "stream");
    kernels_ = Require(LinearKernels::Create({}));
    Add(model.hidden, model.hidden, false);
    Add(2 * model.intermediate, model.hidden, true);
    Add(model.hidden, model.intermediate, false);
    Add(model.qkv, model.hidden, false);
    size_t workspace = 0;
    for (const auto& copies : weights_) {
      workspace = std::max(workspace, kernels_->WorkspaceBytes(copies[0]));
      bytes_ += copies[0].streamed_bytes();
    }
    Require(kernels_->SetWorkspace(Allocate<char>(workspace), workspace, stream_));
    const auto widest = static_cast<size_t>(std::max(model.intermediate, model.qkv));
    for (char*& buffer : buffers_) buffer = Allocate<char>(kMaxRows * widest * 4);
    gain_ = Allocate<float>(static_cast<size_t>(model.hidden));
    Require(cudaMemsetAsync(gain_, 0x3f, static_cast<size_t>(model.hidden) * 4, stream_), "gain");
    Require(FillNormalBf16(buffers_[0], static_cast<int64_t>(kMaxRows) * model.hidden, 1.0f, 1,
                           stream_));
  }
  ~ChainBench() {
    for (char* memory : memory_) cudaFree(memory);
    for (char* buffer : buffers_) cudaFree(buffer);
    cudaFree(gain_);
    cudaStreamDestroy(stream_);
  }

  // Time for a layer's bytes, from a read-only pass over the largest weights.
  double StreamMicroseconds() {
    double best = 1e30;
    for (int blocks = 4; blocks <= 16; blocks *= 2) {
      best = std::min(best, Time(1, stream_, kRuns, [&](int) {
                        ReadOnlyPass(memory_[1], pass_bytes_, 132 * blocks, buffers_[5], stream_);
                      }));
    }
    return best * static_cast<double>(bytes_) / static_cast<double>(pass_bytes_);
  }

  void Measure(int rows, double stream_us) {
    Require(
        cudaMemsetAsync(buffers_[1], 0, static_cast<size_t>(kMaxRows * model_.hidden) * 4, stream_),
        "residual");
    std::unique_ptr<LayerAttention> attention;
    if (context_ > 0) {
      const auto heads = static_cast<int32_t>(model_.hidden / 128);
      attention = std::make_unique<LayerAttention>(
          heads, (static_cast<int32_t>(model_.qkv / 128) - heads) / 2, context_, rows, verify_,
          layers_, stream_);
    }
    const auto before = [&](int layer, bool by_slots) {
      if (gap_ > 0) Require(WaitOnDevice(gap_, 132, stream_), "gap");
      if (!attention) return;
      attention->Run(layer, buffers_[4], buffers_[0],
                     by_slots ? kernels_->token_slots() : TokenSlots{}, stream_);
    };
    const double chain = Time(layers_, stream_, kRuns, [&](int layer) {
      const auto steps = Steps(layer, rows);
      std::optional<ChainForm> form = FormOf(steps, kernels_->facts());
      if (!form) {
        std::fprintf(stderr, "no chain\n");
        std::exit(1);
      }
      // From the second layer on, one token's rows are published in slots.
      const bool by_slots = attention != nullptr && form->one_token && gap_ == 0;
      before(layer, by_slots && layer > 0);
      form->consumes = by_slots && layer > 0;
      form->publishes = by_slots && layer + 1 < layers_;
      Require(kernels_->LaunchChain(steps, *form, stream_));
    });
    const double single = Time(layers_, stream_, kRuns, [&](int layer) {
      before(layer, false);
      for (const ChainStep& step : Steps(layer, rows)) {
        Require(kernels_->Launch(step.call, stream_));
      }
    });
    std::printf(
        "%s %-8s M=%-3d a layer: chain %7.2f us, four launches %7.2f us, stream %7.2f us, "
        "chain at %3.0f %%\n",
        model_.name, format_.name, rows, chain, single, stream_us, 100.0 * stream_us / chain);
    std::fflush(stdout);
  }

 private:
  void Add(int64_t n, int64_t k, bool gated) {
    char* const plain = Allocate<char>(static_cast<size_t>(n * k) * 2);
    Require(FillNormalBf16(plain, n * k, 0.02f, weights_.size(), stream_));
    std::vector<WeightPart> parts(gated ? 2 : 1);
    const int64_t rows = n / static_cast<int64_t>(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i].data = plain + static_cast<size_t>(rows * k) * 2 * i;
      parts[i].rows = rows;
    }
    const WeightSource source{SourceType::kBf16, parts, k, gated, format_.weight};
    const size_t bytes = Require(PackedWeightBytes(source));
    char* const memory = Allocate<char>(bytes * static_cast<size_t>(layers_));
    const PackedWeight packed = Require(PackWeight(source, memory, bytes, stream_));
    weights_.emplace_back();
    for (int i = 0; i < layers_; ++i) {
      const size_t offset = static_cast<size_t>(i) * bytes;
      if (i > 0) {
        Require(cudaMemcpyAsync(memory + offset, memory, bytes, cudaMemcpyDeviceToDevice, stream_),
                "copy");
      }
      PackedWeight& w = weights_.back().emplace_back(packed);
      w.data = static_cast<const char*>(packed.data) + offset;
      if (w.scales != nullptr) w.scales = packed.scales + offset / sizeof(float);
    }
    memory_.push_back(memory);
    if (memory_.size() == 2) pass_bytes_ = bytes * static_cast<size_t>(layers_);
    Require(cudaStreamSynchronize(stream_), "packing");
    Require(cudaFree(plain), "free");
  }

  std::vector<ChainStep> Steps(int layer, int rows) const {
    std::vector<ChainStep> steps(4);
    char* const inputs[] = {buffers_[0], buffers_[2], buffers_[3], buffers_[2]};
    char* const outputs[] = {buffers_[1], buffers_[3], buffers_[1], buffers_[4]};
    constexpr Store kStores[] = {Store::kAccumulateF32, Store::kSiluMulBf16, Store::kAccumulateF32,
                                 Store::kBf16};
    for (size_t i = 0; i < 4; ++i) {
      LinearCall& call = steps[i].call;
      call.weight = &weights_[i][static_cast<size_t>(layer)];
      call.x = inputs[i];
      call.y = outputs[i];
      call.store = kStores[i];
      call.rows = rows;
      if (i % 2 == 1) steps[i].norm_weight = gain_;
    }
    return steps;
  }

  Model model_;
  Format format_;
  int layers_;
  int gap_;      // microseconds
  int context_;  // keys of the attention before each layer; 0: none
  bool verify_;  // its rows belong to one sequence
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<LinearKernels> kernels_;
  std::vector<std::vector<PackedWeight>> weights_;
  std::vector<char*> memory_;
  size_t bytes_ = 0;
  size_t pass_bytes_ = 0;
  char* buffers_[6] = {};
  float* gain_ = nullptr;
};

}  // namespace
}  // namespace aisp::cuda

int main(int argc, char** argv) {
  using aisp::cuda::ChainBench;
  using aisp::cuda::Format;
  using aisp::cuda::Model;
  using aisp::cuda::WeightFormat;
  const auto argument = [&](const char* name, const char* fallback) {
    return aisp::cuda::Argument(argc, argv, name, fallback);
  };
  const std::string wanted = argument("format", "all");
  const std::string wanted_model = argument("model", "8b");
  const std::vector<int> rows = aisp::cuda::RowsArgument(argc, argv, "1,8,32", 64);
  const int layers = std::atoi(argument("layers", "32").c_str());
  const int gap = std::atoi(argument("gap", "0").c_str());
  const int attention = std::atoi(argument("attention", "0").c_str());
  const bool verify = argument("verify", "0") == "1";
  if (layers < 1) {
    std::fprintf(stderr, "layers are at least 1\n");
    return 1;
  }
  const Format formats[] = {{"bf16", WeightFormat::kBf16},
                            {"fp8", WeightFormat::kFp8},
                            {"fp8block", WeightFormat::kFp8Block},
                            {"nvfp4", WeightFormat::kNvfp4}};
  const Model models[] = {{"8b", 4096, 14336, 6144}, {"1b", 2048, 8192, 3072}};
  for (const Model& model : models) {
    if (wanted_model != model.name) continue;
    for (const Format& format : formats) {
      if (wanted != "all" && wanted != format.name) continue;
      ChainBench bench(model, format, layers, gap, attention, verify);
      const double stream_us = bench.StreamMicroseconds();
      for (const int m : rows) bench.Measure(m, stream_us);
    }
  }
  return 0;
}
