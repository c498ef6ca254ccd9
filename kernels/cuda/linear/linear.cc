// Launches linear layers as the table decides: few rows here, many rows in many_rows.h.
#include "kernels/cuda/linear/linear_kernels.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/linear/chain.h"
#include "kernels/cuda/linear/chain_kernels.h"
#include "kernels/cuda/linear/few_tokens.h"
#include "kernels/cuda/linear/few_tokens_kernels.h"
#include "kernels/cuda/linear/host_launch.h"
#include "kernels/cuda/linear/many_rows.h"
#include "kernels/cuda/linear/nvfp4_layout.h"
#include "kernels/cuda/linear/one_token.h"
#include "kernels/cuda/linear/one_token_kernels.h"
#include "kernels/cuda/linear/stream_kernels.h"
#include "kernels/cuda/linear/tensor_map.h"

namespace aisp::cuda {
namespace {

// The workspace: regions of the chains (chain.h), partial sums of the few-row kernels, which
// restore them, then memory for many rows (many_rows.h). Two kernels never use it at once: one that
// starts early writes only after the previous kernel has ended.

// Before it may begin, a CTA prefetches into L2, besides its stages, 1 / kPrefetchPart of its share
// up to a limit, when memory is otherwise idle. NVFP4 is bound by instructions and gains nothing.
constexpr int64_t kPrefetchPart = 20;
// The same when the previous kernel announces that moment (stream_linear.cuh).
constexpr int64_t kPrefetchPartAnnounced = 6;
constexpr int64_t kMostPrefetched = 48 << 10;

// More shared memory than half of a multiprocessor's: a head's CTA then runs alone on it
// (kHeadRows).
constexpr int kMoreThanHalf = 118 << 10;

constexpr size_t Align(size_t bytes) { return (bytes + 255) / 256 * 256; }

constexpr std::string_view kPart = "linear layer";  // in errors

StreamFormat StreamFormatOf(WeightFormat weight, InputFormat input) {
  const bool fp8 = input == InputFormat::kFp8;
  switch (weight) {
    case WeightFormat::kFp8:
      return fp8 ? StreamFormat::kFp8x8 : StreamFormat::kFp8;
    case WeightFormat::kFp8Block:
      return fp8 ? StreamFormat::kFp8x8Block : StreamFormat::kFp8Block;
    case WeightFormat::kNvfp4:
      return StreamFormat::kNvfp4;
    case WeightFormat::kBf16:
      break;
  }
  return StreamFormat::kBf16;
}

std::span<const StreamKernel> KernelsOf(StreamFormat format) {
  if (format == StreamFormat::kBf16) return Bf16StreamKernels();
  return format == StreamFormat::kNvfp4 ? Nvfp4StreamKernels() : Fp8StreamKernels();
}

const StreamKernel* FindKernel(StreamFormat format, int32_t rows) {
  for (const StreamKernel& kernel : KernelsOf(format)) {
    if (kernel.format == format && kernel.tokens >= rows) return &kernel;
  }
  return nullptr;
}

int32_t DivideUp(int64_t a, int64_t b) { return static_cast<int32_t>((a + b - 1) / b); }

size_t OutputBytes(Store store) {
  return store == Store::kBf16 || store == Store::kSiluMulBf16 ? 2 : 4;
}

// `share`: bytes of weights per CTA.
void SpreadPrefetch(const StreamKernel& kernel, int64_t share, StreamParams* p) {
  const int64_t part = kernel.announces ? kPrefetchPartAnnounced : kPrefetchPart;
  const int64_t wanted = std::min(share / part, kMostPrefetched);
  const int64_t units = (wanted + kernel.stage_bytes / 2) / kernel.stage_bytes;
  const int64_t behind_stages = share / kernel.stage_bytes - kernel.stages;
  if (units < 1 || behind_stages < 2 * units) return;
  p->prefetch_units = static_cast<int32_t>(units);
  p->prefetch_stride = static_cast<int32_t>(behind_stages / units);
}

LinearChoice ChoiceFor(const LinearCall& call, int32_t rows, const ChoiceFacts& facts) {
  const LinearTraits w = TraitsOf(call);
  const bool rounds = RoundsRows(w, rows, *facts.device);
  return ChooseLinear(w, rows, call.input == InputFormat::kFp8, rounds, facts);
}

class LinearKernelsImpl : public LinearKernels {
 public:
  explicit LinearKernelsImpl(const LinearOptions& options) : options_(options) {}

  Status Open() {
    int device = 0;
    AISP_RETURN_IF_ERROR(CheckIn(kPart, cudaGetDevice(&device), "no device"));
    int major = 0;
    AISP_RETURN_IF_ERROR(
        CheckIn(kPart, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                "looking at the device"));
    if (major != 9) {
      return Unimplemented("the linear kernels are for compute capability 9.0, this device has " +
                           std::to_string(major) + ".x");
    }
    AISP_RETURN_IF_ERROR(CheckIn(
        kPart, cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device),
        "looking at the device"));
    AISP_ASSIGN_OR_RETURN(maps_, TensorMaps::Find());
    AISP_ASSIGN_OR_RETURN(chains_, Chains::Create(multiprocessors_, options_.overlap));
    AISP_ASSIGN_OR_RETURN(one_token_, OneToken::Create(multiprocessors_, options_.overlap));
    AISP_ASSIGN_OR_RETURN(few_tokens_, FewTokens::Create(multiprocessors_, options_.overlap));
    for (const auto kernels : {Bf16StreamKernels(), Fp8StreamKernels(), Nvfp4StreamKernels()}) {
      for (const StreamKernel& kernel : kernels) {
        AISP_RETURN_IF_ERROR(CheckIn(
            kPart,
            cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 std::max(kernel.shared_bytes, kMoreThanHalf)),
            "asking for shared memory"));
        // If two CTAs fit, the next kernel's already resides beside the running one.
        AISP_RETURN_IF_ERROR(CheckIn(
            kPart,
            cudaFuncSetAttribute(kernel.function, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared),
            "asking for shared memory"));
        part_bytes_ = std::max(part_bytes_, static_cast<size_t>(multiprocessors_) *
                                                static_cast<size_t>(kernel.rows) *
                                                static_cast<size_t>(kernel.tokens) * sizeof(float));
      }
    }
    device_.multiprocessors = multiprocessors_;
    device_.hopper = true;
    device_.exclusive = options_.exclusive;
    device_.overlap = options_.overlap;
    device_.max_rows = options_.max_rows;
    device_.fp8_activation_rows = options_.fp8_activation_rows;
    AISP_ASSIGN_OR_RETURN(many_rows_, ManyRows::Create(options_, multiprocessors_));
    return CheckInstances();
  }

  ChoiceFacts facts() const override {
    ChoiceFacts facts;
    facts.device = &device_;
    facts.profile = &many_rows_->profile();
    facts.lt_has = [this](const LinearTraits& w, int32_t rows, bool fp8_rows) {
      return many_rows_->LtHas(w, rows, fp8_rows);
    };
    return facts;
  }

  size_t WorkspaceBytes(const PackedWeight& weight) const override {
    return SharedPartAt() + many_rows_->WorkspaceBytes(weight);
  }

  Status SetWorkspace(void* memory, size_t bytes, cudaStream_t stream) override {
    if (bytes < SharedPartAt() || reinterpret_cast<uintptr_t>(memory) % 256 != 0) {
      return ResourceExhausted("the workspace of linear layers needs at least " +
                               std::to_string(SharedPartAt()) + " bytes aligned to 256, got " +
                               std::to_string(bytes));
    }
    workspace_ = static_cast<char*>(memory);
    workspace_bytes_ = bytes;
    AISP_RETURN_IF_ERROR(
        many_rows_->SetWorkspace(workspace_ + SharedPartAt(), bytes - SharedPartAt(), stream));
    AISP_RETURN_IF_ERROR(chains_.SetRegion(workspace_, stream));
    AISP_RETURN_IF_ERROR(one_token_.SetRegion(workspace_ + OneTokenAt(), stream));
    AISP_RETURN_IF_ERROR(few_tokens_.SetRegion(workspace_ + FewTokensAt(), stream));
    static_assert(kChainNoSum == 0xffffffffu);
    // The words after the parts are counters.
    return CheckIn(
        kPart, cudaMemsetAsync(workspace_ + PartsAt(), 0xff, SharedPartAt() - PartsAt(), stream),
        "clearing the workspace");
  }

  Status Prepare(const LinearCall& call, cudaStream_t stream) override {
    AISP_RETURN_IF_ERROR(Check(call));
    const LinearTraits w = TraitsOf(call);
    const bool fp8_rows = call.input == InputFormat::kFp8;
    const bool rounds = !fp8_rows && RoundsRows(w, call.rows, device_);
    const bool own =
        call.rows <= OwnRows(w.format, fp8_rows || rounds) && !MayPreferLt(w.format, call.rows);
    if (own || !SupportsManyRows(w, fp8_rows)) return {};
    return many_rows_->Prepare(call, stream);
  }

  Status Launch(const LinearCall& call, const LinearChoice& choice, cudaStream_t stream) override {
    AISP_RETURN_IF_ERROR(Check(call));
    if (call.rows == 0) return {};
    switch (choice.kernel) {
      case LinearKernel::kOneToken: {
        const ChainStep step{call, nullptr};
        return one_token_.Launch(std::span(&step, 1), {true, false, false}, stream);
      }
      case LinearKernel::kStream:
        return LaunchStream(call, stream);
      case LinearKernel::kGemm:
        return many_rows_->Launch(call, choice.instance, choice.rounds, stream);
      case LinearKernel::kCublasLt:
        return many_rows_->Launch(call, kLt, choice.rounds, stream);
      case LinearKernel::kStreamPieces:
        return LaunchPieces(call, stream);
      case LinearKernel::kPlain:
      case LinearKernel::kBlockScaled:
        break;
    }
    return Internal("a linear layer of linear/ with a kernel that is not of it");
  }

  Status LaunchChain(std::span<const ChainStep> steps, const ChainForm& form,
                     cudaStream_t stream) override {
    if (form.one_token) return one_token_.Launch(steps, form, stream);
    if (form.few_tokens) return few_tokens_.Launch(steps, stream);
    return chains_.Launch(steps, form.adapter_of_row, stream);
  }

  RoundedRows rounded_rows() const override {
    const LinearCall call = many_rows_->Quantised({});
    return {const_cast<void*>(call.x), const_cast<float*>(call.x_scales)};
  }

  TokenSlots token_slots() const override { return one_token_.token_slots(); }

  std::string Describe(const LinearCall& call) const override {
    const LinearChoice choice = ChoiceFor(call, std::max(1, call.rows), facts());
    if (choice.kernel == LinearKernel::kOneToken) return "one token";
    if (choice.kernel == LinearKernel::kStream || choice.kernel == LinearKernel::kStreamPieces) {
      const StreamInstance& kernel = StreamInstances()[static_cast<size_t>(choice.instance)];
      return "stream " + std::to_string(kernel.rows) + "x" + std::to_string(kernel.stage_k) +
             " x " + std::to_string(kernel.tokens) + " tokens";
    }
    return many_rows_->Describe(call, choice);
  }

 private:
  // Start of the workspace that kernels and cuBLASLt share.
  size_t SharedPartAt() const { return WordsAt() + Align(word_bytes()); }
  size_t WordsAt() const { return PartsAt() + Align(part_bytes_); }
  size_t word_bytes() const { return static_cast<size_t>(multiprocessors_) * sizeof(uint32_t); }
  size_t PartsAt() const { return FewTokensAt() + Align(few_tokens_.region_bytes()); }
  size_t FewTokensAt() const { return OneTokenAt() + Align(one_token_.region_bytes()); }
  size_t OneTokenAt() const { return Align(chains_.region_bytes()); }
  Status Check(const LinearCall& call) const {
    if (call.weight == nullptr || call.rows < 0 || call.rows > options_.max_rows) {
      return InvalidArgument("a linear layer of " + std::to_string(call.rows) + " rows; at most " +
                             std::to_string(options_.max_rows) + " were announced");
    }
    const PackedWeight& w = *call.weight;
    if ((call.store == Store::kSiluMulBf16) != w.gated) {
      return InvalidArgument("SiLU(gate) * up goes with a gated weight, and nothing else does");
    }
    const bool fp8_input = call.input == InputFormat::kFp8;
    if (fp8_input && w.format != WeightFormat::kFp8 && w.format != WeightFormat::kFp8Block) {
      return InvalidArgument("FP8 activations need an FP8 weight");
    }
    if (fp8_input && call.x_scales == nullptr) {
      return InvalidArgument("FP8 activations come with the scales of their rows");
    }
    if (reinterpret_cast<uintptr_t>(call.x) % 16 != 0) {
      return InvalidArgument("the input of a linear layer must be aligned to 16 bytes");
    }
    if (workspace_ == nullptr) {
      return FailedPrecondition("linear layers have no workspace yet: call SetWorkspace");
    }
    return {};
  }

  Status LaunchPieces(const LinearCall& call, cudaStream_t stream) {
    const int32_t own = OwnRows(TraitsOf(call).format, call.input == InputFormat::kFp8);
    const int64_t y_stride = call.y_stride > 0 ? call.y_stride : call.weight->out_features();
    const int64_t x_bytes = call.weight->k * (call.input == InputFormat::kFp8 ? 1 : 2);
    for (int32_t begin = 0; begin < call.rows; begin += own) {
      LinearCall piece = call;
      piece.rows = std::min(own, call.rows - begin);
      piece.x = static_cast<const char*>(call.x) + begin * x_bytes;
      if (call.x_scales != nullptr) piece.x_scales = call.x_scales + begin;
      piece.y = static_cast<char*>(call.y) +
                static_cast<size_t>(begin * y_stride) * OutputBytes(call.store);
      AISP_RETURN_IF_ERROR(LinearKernels::Launch(piece, stream));
    }
    return {};
  }

  Status LaunchStream(const LinearCall& call, cudaStream_t stream) const {
    const PackedWeight& w = *call.weight;
    const StreamKernel* const kernel = FindKernel(StreamFormatOf(w.format, call.input), call.rows);
    if (kernel == nullptr) {
      return Internal("no linear kernel for " + std::to_string(call.rows) + " rows");
    }
    const size_t x_bytes = call.input == InputFormat::kFp8 ? 1 : 2;
    AISP_ASSIGN_OR_RETURN(CUtensorMap x, maps_.Box(call.x, x_bytes, w.k, call.rows,
                                                   kernel->input_box_k, kernel->tokens));
    CUtensorMap weight = x;
    if (kernel->weight_box_k > 0) {
      AISP_ASSIGN_OR_RETURN(weight, maps_.Box(w.data, w.format == WeightFormat::kBf16 ? 2 : 1, w.k,
                                              w.n, kernel->weight_box_k, kernel->rows));
    }
    const int32_t tiles = DivideUp(w.n, kernel->rows);
    StreamParams p;
    p.nvfp4 = static_cast<const uint8_t*>(w.data);
    p.scales = w.scales;
    p.bias = w.bias;
    p.x_scales = call.x_scales;
    p.y = call.y;
    p.y_stride = call.y_stride > 0 ? call.y_stride : w.out_features();
    p.partials = reinterpret_cast<float*>(workspace_ + PartsAt());
    p.group_bytes = Nvfp4GroupBytes(w.k);
    p.row_groups = DivideUp(w.n, kNvfp4GroupRows);
    p.n = static_cast<int32_t>(w.n);
    p.rows = call.rows;
    p.k_units = DivideUp(w.k, kernel->stage_k);
    p.units = tiles * p.k_units;
    p.scale_columns = DivideUp(w.k, 128);
    p.store = call.store;
    p.asked_for_all = reinterpret_cast<uint32_t*>(workspace_ + WordsAt());
    p.poll = call.poll;
    if (options_.overlap && w.format != WeightFormat::kNvfp4) {
      SpreadPrefetch(*kernel, static_cast<int64_t>(w.streamed_bytes()) / multiprocessors_, &p);
    }

    const int shared_bytes =
        w.n >= kHeadRows ? std::max(kernel->shared_bytes, kMoreThanHalf) : kernel->shared_bytes;
    void* arguments[] = {&weight, &x, &p};
    return CheckIn(kPart,
                   LaunchShaped(kernel->function,
                                {std::min(multiprocessors_, p.units), kernel->threads,
                                 static_cast<size_t>(shared_bytes), options_.overlap},
                                arguments, stream),
                   "launching");
  }

  LinearOptions options_;
  int multiprocessors_ = 0;
  DeviceFacts device_;
  size_t part_bytes_ = 0;
  TensorMaps maps_;
  Chains chains_;
  OneToken one_token_;
  FewTokens few_tokens_;
  std::unique_ptr<ManyRows> many_rows_;
  char* workspace_ = nullptr;
  size_t workspace_bytes_ = 0;
};

}  // namespace

LinearTraits TraitsOf(const LinearCall& call) {
  constexpr std::array kFormats = {aisp::WeightFormat::kCompute, aisp::WeightFormat::kFp8,
                                   aisp::WeightFormat::kFp8Block, aisp::WeightFormat::kNvfp4};
  const PackedWeight& w = *call.weight;
  LinearTraits t;
  t.format = kFormats[static_cast<size_t>(w.format)];
  t.input = DType::kBF16;
  t.output = OutputBytes(call.store) == 4 ? DType::kF32 : DType::kBF16;
  t.epilogue = w.gated                               ? Epilogue::kGatedSilu
               : call.store == Store::kAccumulateF32 ? Epilogue::kAccumulate
                                                     : Epilogue::kStore;
  t.bias = w.has_bias;
  t.n = w.n;
  t.k = w.k;
  t.family = static_cast<uint8_t>(LinearFamily::kFast);
  t.bytes = w.streamed_bytes();
  return t;
}

std::optional<ChainForm> FormOf(std::span<const ChainStep> steps, const ChoiceFacts& facts) {
  std::vector<ChainLink> links;
  for (const ChainStep& step : steps) {
    links.push_back({TraitsOf(step.call), step.norm_weight != nullptr});
    if (step.call.rows != steps[0].call.rows) return {};
  }
  const int32_t rows = steps[0].call.rows;
  if (OneTokenChain(links, rows) == links.size()) return ChainForm{.one_token = true};
  const bool adapted = std::any_of(steps.begin(), steps.end(),
                                   [](const ChainStep& step) { return step.adapters != nullptr; });
  if (steps.size() > 1 && !adapted && FewTokensChain(links, rows) == links.size())
    return ChainForm{.few_tokens = true};
  if (steps.size() > 1 && StreamChain(links, rows, facts.device->multiprocessors) == links.size())
    return ChainForm{};
  return {};
}

Status LinearKernels::Launch(const LinearCall& call, cudaStream_t stream) {
  if (call.weight == nullptr) return InvalidArgument("a linear layer without a weight");
  if (call.rows < 1) return Launch(call, LinearChoice{}, stream);
  return Launch(call, ChoiceFor(call, call.rows, facts()), stream);
}

// Checks that the table's sizes are those of the kernels.
Status CheckInstances() {
  const auto same = [](const StreamKernel& kernel, const StreamInstance& instance) {
    return kernel.tokens == instance.tokens && kernel.rows == instance.rows &&
           kernel.stage_k == instance.stage_k &&
           kernel.format ==
               StreamFormatOf(static_cast<WeightFormat>(instance.format),
                              instance.fp8_rows ? InputFormat::kFp8 : InputFormat::kBf16);
  };
  const auto differ = [](const std::string& which) {
    return Internal("kernels/cuda/table/instances.cc has other sizes than the kernels for " +
                    which);
  };
  std::vector<StreamKernel> stream, chain;
  for (const auto some : {Bf16StreamKernels(), Fp8StreamKernels(), Nvfp4StreamKernels()})
    stream.insert(stream.end(), some.begin(), some.end());
  for (const auto some :
       {Bf16ChainKernels(), Fp8ChainKernels(), Fp8BlockChainKernels(), Nvfp4ChainKernels()})
    chain.insert(chain.end(), some.begin(), some.end());
  if (!std::equal(stream.begin(), stream.end(), StreamInstances().begin(), StreamInstances().end(),
                  same))
    return differ("few rows");
  if (!std::equal(chain.begin(), chain.end(), ChainInstances().begin(), ChainInstances().end(),
                  same))
    return differ("several layers");
  for (const WeightFormat format :
       {WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kFp8Block, WeightFormat::kNvfp4}) {
    const OneTokenKernel kernel = OneTokenKernelOf(format);
    const OneTokenInstance instance = OneTokenInstanceOf(static_cast<aisp::WeightFormat>(format));
    if (kernel.warps != instance.warps || kernel.block_k != instance.block_k ||
        kernel.stage_bytes != instance.stage_bytes || kernel.fixed_bytes != instance.fixed_bytes)
      return differ("one token");
    const int block_k = FewTokensBlockK(static_cast<aisp::WeightFormat>(format));
    if (block_k > 0 && FewTokensKernelOf(format).block_k != block_k) return differ("a few tokens");
  }
  return CheckGemmInstances();
}

Result<std::unique_ptr<LinearKernels>> LinearKernels::Create(const LinearOptions& options) {
  auto kernels = std::make_unique<LinearKernelsImpl>(options);
  AISP_RETURN_IF_ERROR(kernels->Open());
  return kernels;
}

}  // namespace aisp::cuda
