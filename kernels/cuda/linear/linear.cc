// Which kernel serves a call, and the launch of those for few rows; many_rows.h has the others.
#include "kernels/cuda/linear/linear.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "kernels/cuda/linear/chain.h"
#include "kernels/cuda/linear/chain_kernels.h"
#include "kernels/cuda/linear/many_rows.h"
#include "kernels/cuda/linear/nvfp4_layout.h"
#include "kernels/cuda/linear/one_token.h"
#include "kernels/cuda/linear/stream_kernels.h"
#include "kernels/cuda/linear/tensor_map.h"

namespace aisp::cuda {
namespace {

// The workspace: what chains need (chain.h), partial sums of the kernels for few rows, which these leave as they found them, then
// what many rows need (many_rows.h). Two kernels never use it at once: even one that started early writes only after the kernel
// before it has ended.
constexpr int32_t kTunedLtRows = 32;

// What a CTA fetches into L2 beside its stages before it may begin, when memory has nothing else to do: this part of its share, at
// most so many bytes. NVFP4 is bound by instructions and gains nothing.
constexpr int64_t kPrefetchPart = 20;
// Of those that are told when that is (stream_linear.cuh).
constexpr int64_t kPrefetchPartTold = 6;
constexpr int64_t kMostPrefetched = 48 << 10;

// Shared memory that is more than half of a multiprocessor's: a head's CTA has one for itself (kHeadRows).
constexpr int kMoreThanHalf = 118 << 10;

constexpr size_t Align(size_t bytes) { return (bytes + 255) / 256 * 256; }

Status FromCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return Internal(std::string("linear layer: ") + what + ": " + cudaGetErrorString(error));
}

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

// `share`: bytes of weights of a CTA.
void SpreadPrefetch(const StreamKernel& kernel, int64_t share, StreamParams* p) {
  const int64_t part = kernel.tells ? kPrefetchPartTold : kPrefetchPart;
  const int64_t wanted = std::min(share / part, kMostPrefetched);
  const int64_t units = (wanted + kernel.stage_bytes / 2) / kernel.stage_bytes;
  const int64_t behind_stages = share / kernel.stage_bytes - kernel.stages;
  if (units < 1 || behind_stages < 2 * units) return;
  p->prefetch_units = static_cast<int32_t>(units);
  p->prefetch_stride = static_cast<int32_t>(behind_stages / units);
}

class LinearKernelsImpl : public LinearKernels {
 public:
  explicit LinearKernelsImpl(const LinearOptions& options) : options_(options) {}

  Status Open() {
    int device = 0;
    AISP_RETURN_IF_ERROR(FromCuda(cudaGetDevice(&device), "no device"));
    int major = 0;
    AISP_RETURN_IF_ERROR(
        FromCuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                 "looking at the device"));
    if (major != 9) {
      return Unimplemented("the linear kernels are for compute capability 9.0, this device has " +
                           std::to_string(major) + ".x");
    }
    AISP_RETURN_IF_ERROR(
        FromCuda(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device),
                 "looking at the device"));
    AISP_ASSIGN_OR_RETURN(maps_, TensorMaps::Find());
    AISP_ASSIGN_OR_RETURN(chains_, Chains::Create(multiprocessors_, options_.overlap));
    AISP_ASSIGN_OR_RETURN(one_token_, OneToken::Create(multiprocessors_, options_.overlap));
    for (const auto kernels : {Bf16StreamKernels(), Fp8StreamKernels(), Nvfp4StreamKernels()}) {
      for (const StreamKernel& kernel : kernels) {
        AISP_RETURN_IF_ERROR(FromCuda(
            cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 std::max(kernel.shared_bytes, kMoreThanHalf)),
            "asking for shared memory"));
        // Where two CTAs fit beside each other, the next kernel already sits beside the one that runs.
        AISP_RETURN_IF_ERROR(FromCuda(
            cudaFuncSetAttribute(kernel.function, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared),
            "asking for shared memory"));
        part_bytes_ = std::max(part_bytes_, static_cast<size_t>(multiprocessors_) *
                                                static_cast<size_t>(kernel.rows) *
                                                static_cast<size_t>(kernel.tokens) * sizeof(float));
      }
    }
    AISP_ASSIGN_OR_RETURN(many_rows_, ManyRows::Create(options_));
    return {};
  }

  int32_t own_rows(const PackedWeight& weight, InputFormat input) const override {
    // Measured (docs/performance.md): beyond these cuBLASLt is faster where it takes the format as it is.
    const bool as_it_is = weight.format == WeightFormat::kBf16 || input == InputFormat::kFp8;
    return as_it_is || weight.format == WeightFormat::kFp8Block ? 64 : 128;
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
    many_rows_->SetWorkspace(workspace_ + SharedPartAt(), bytes - SharedPartAt());
    AISP_RETURN_IF_ERROR(chains_.SetRegion(workspace_, stream));
    AISP_RETURN_IF_ERROR(one_token_.SetRegion(workspace_ + OneTokenAt(), stream));
    static_assert(kChainNoSum == 0xffffffffu);
    // The words behind the parts only count.
    return FromCuda(
        cudaMemsetAsync(workspace_ + PartsAt(), 0xff, SharedPartAt() - PartsAt(), stream),
        "clearing the workspace");
  }

  Status Prepare(const LinearCall& call, cudaStream_t stream) override {
    AISP_RETURN_IF_ERROR(Check(call));
    const bool own = call.rows <= own_rows(*call.weight, call.input) && !MayPreferLt(call);
    if (own || !many_rows_->Takes(call)) return {};
    return many_rows_->Prepare(call, stream);
  }

  Status Launch(const LinearCall& call, cudaStream_t stream) override {
    AISP_RETURN_IF_ERROR(Check(call));
    if (call.rows == 0) return {};
    if (one_token_.Fits(call)) {
      const ChainStep step{call, nullptr};
      return one_token_.Launch(std::span(&step, 1), stream);
    }
    one_token_.Forget();
    const int32_t own = own_rows(*call.weight, call.input);
    if (call.rows <= own)
      return PrefersLt(call) ? many_rows_->Launch(call, stream) : LaunchStream(call, stream);
    if (many_rows_->Takes(call)) return many_rows_->Launch(call, stream);
    const int64_t y_stride = call.y_stride > 0 ? call.y_stride : call.weight->out_features();
    for (int32_t begin = 0; begin < call.rows; begin += own) {
      LinearCall piece = call;
      piece.rows = std::min(own, call.rows - begin);
      piece.x = static_cast<const char*>(call.x) + begin * call.weight->k;
      piece.x_scales = call.x_scales + begin;
      piece.y = static_cast<char*>(call.y) +
                static_cast<size_t>(begin * y_stride) * OutputBytes(call.store);
      AISP_RETURN_IF_ERROR(LaunchStream(piece, stream));
    }
    return {};
  }

  bool CanChain(std::span<const ChainStep> steps) const override {
    return one_token_.Fits(steps) || chains_.Fits(steps);
  }
  Status LaunchChain(std::span<const ChainStep> steps, cudaStream_t stream) override {
    if (one_token_.Fits(steps)) return one_token_.Launch(steps, stream);
    one_token_.Forget();
    return chains_.Launch(steps, stream);
  }

  Result<TokenWords> OfferWords(const void* qkv, int64_t qkv_features, const void* row,
                                int64_t row_features, cudaStream_t stream) override {
    return one_token_.Offer(qkv, qkv_features, row, row_features, stream);
  }
  void WithdrawWords() override { one_token_.Withdraw(); }
  void ForgetWords() override { one_token_.Forget(); }

  std::string Describe(const LinearCall& call) const override {
    const PackedWeight& w = *call.weight;
    const StreamFormat format = StreamFormatOf(w.format, call.input);
    const int32_t own = own_rows(w, call.input);
    if (one_token_.Fits(call)) return "one token";
    if ((call.rows <= own && !PrefersLt(call)) || !many_rows_->Takes(call)) {
      const StreamKernel* const kernel = FindKernel(format, std::min(call.rows, own));
      if (kernel == nullptr) return "none";
      return "stream " + std::to_string(kernel->rows) + "x" + std::to_string(kernel->stage_k) +
             " x " + std::to_string(kernel->tokens) + " tokens, " + std::to_string(kernel->stages) +
             " stages of " + std::to_string(kernel->stage_bytes / 1024) + " KiB";
    }
    return many_rows_->Describe(call);
  }

 private:
  // Where the part of the workspace begins that kernels and cuBLASLt share.
  size_t SharedPartAt() const { return WordsAt() + Align(word_bytes()); }
  size_t WordsAt() const { return PartsAt() + Align(part_bytes_); }
  size_t word_bytes() const { return static_cast<size_t>(multiprocessors_) * sizeof(uint32_t); }
  size_t PartsAt() const { return OneTokenAt() + Align(one_token_.region_bytes()); }
  size_t OneTokenAt() const { return Align(chains_.region_bytes()); }
  // From this many rows of bf16 cuBLASLt's best algorithm is faster than our kernels, which are faster than its first.
  static bool MayPreferLt(const LinearCall& call) {
    return call.weight->format == WeightFormat::kBf16 && call.rows > kTunedLtRows;
  }
  bool PrefersLt(const LinearCall& call) const {
    return MayPreferLt(call) && many_rows_->Prepared(call) &&
           workspace_bytes_ >= WorkspaceBytes(*call.weight);
  }

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
    if (int64_t{tiles} * DivideUp(w.k, kernel->stage_k) > INT32_MAX / 2) {
      return Unimplemented("a linear layer of " + std::to_string(w.n) + " x " +
                           std::to_string(w.k));
    }
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
    if (options_.overlap && w.format != WeightFormat::kNvfp4) {
      SpreadPrefetch(*kernel, static_cast<int64_t>(w.streamed_bytes()) / multiprocessors_, &p);
    }

    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(std::min(multiprocessors_, p.units)));
    config.blockDim = dim3(static_cast<unsigned>(kernel->threads));
    config.dynamicSmemBytes = static_cast<size_t>(
        w.n >= kHeadRows ? std::max(kernel->shared_bytes, kMoreThanHalf) : kernel->shared_bytes);
    config.stream = stream;
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &overlap;
    config.numAttrs = options_.overlap ? 1 : 0;
    void* arguments[] = {&weight, &x, &p};
    return FromCuda(cudaLaunchKernelExC(&config, kernel->function, arguments), "launching");
  }

  LinearOptions options_;
  int multiprocessors_ = 0;
  size_t part_bytes_ = 0;
  TensorMaps maps_;
  Chains chains_;
  OneToken one_token_;
  std::unique_ptr<ManyRows> many_rows_;
  char* workspace_ = nullptr;
  size_t workspace_bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<LinearKernels>> LinearKernels::Create(const LinearOptions& options) {
  auto kernels = std::make_unique<LinearKernelsImpl>(options);
  AISP_RETURN_IF_ERROR(kernels->Open());
  return kernels;
}

}  // namespace aisp::cuda
