#include "kernels/cuda/cuda_ops.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/check.h"
#include "kernels/cuda/attention_set.h"
#include "kernels/cuda/block_scaled.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/draw.h"
#include "kernels/cuda/fast_linear.h"
#include "kernels/cuda/random_fill.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/weights.h"

namespace aisp::cuda {
namespace {

class CudaOps final : public Ops {
 public:
  CudaOps(const CudaBackendOptions& options, Device& device)
      : options_(options),
        device_(device),
        capability_(CapabilityOf(device.info().index)),
        attention_(device, options.max_rows, options.max_sequences, HasHopperKernels(capability_)) {
  }

  Status Start() {
    AISP_ASSIGN_OR_RETURN(auto stream, device_.CreateStream());
    load_stream_.reset(static_cast<CudaStream*>(stream.release()));
    if (HasBlockScaledCores(capability_)) {
      AISP_ASSIGN_OR_RETURN(block_scaled_,
                            BlockScaledLinear::Create(device_, *load_stream_, options_.max_rows));
    }
    if (!HasHopperKernels(capability_)) return {};
    AISP_ASSIGN_OR_RETURN(linear_, FastLinear::Create({.max_rows = options_.max_rows,
                                                       .tuning_cache = options_.tuning_cache,
                                                       .overlap = true},
                                                      device_, *load_stream_));
    return {};
  }

  std::string Describe() const override {
    return fmt::format("{}; {}", device_.info().name, attention_.Describe());
  }

  // bf16 is what the tensor cores and the memory want. A small f32 checkpoint stays f32: it costs nothing there, and its tokens
  // are those of the CPU.
  DType PreferredComputeDType(DType checkpoint, int64_t elements) const override {
    constexpr int64_t kLargeElements = int64_t{64} << 20;
    return checkpoint != DType::kF32 || elements > kLargeElements ? DType::kBF16 : DType::kF32;
  }
  int64_t RowCapacity(int64_t rows) const override { return FastLinear::PaddedRows(rows); }
  DType ActivationDType(DType compute) const override { return compute; }
  bool Fuses(Epilogue epilogue, DType compute) const override {
    return epilogue != Epilogue::kGatedSilu || compute == DType::kBF16;
  }
  bool Supports(aisp::WeightFormat format, DType compute) const override {
    return format == aisp::WeightFormat::kCompute || compute == DType::kBF16;
  }

  Result<std::unique_ptr<PackedLinear>> PackLinear(const LinearSource& source) override {
    AISP_RETURN_IF_ERROR(CheckSource(source));
    Use();
    if (!HasHopperKernels(capability_)) return PackElsewhere(source);
    if (FastLinear::Serves(source)) {
      AISP_ASSIGN_OR_RETURN(auto packed, linear_->Pack(source));
      return packed;
    }
    if (source.epilogue == Epilogue::kGatedSilu || source.format != aisp::WeightFormat::kCompute) {
      return Unimplemented(
          fmt::format("a quantised or gated weight with {} columns; multiples of 16 are possible",
                      source.parts[0].cols()));
    }
    return PackPlain(source, device_, *load_stream_);
  }

  Result<std::unique_ptr<PackedExperts>> PackExperts(const ExpertsSource& source) override {
    Use();
    auto packed = PackPlainExperts(source, device_, *load_stream_);
    if (!packed) return packed;
    const auto& experts = static_cast<const PlainExperts&>(**packed);
    const size_t bytes = static_cast<size_t>(source.max_rows) *
                         static_cast<size_t>(source.top_k * experts.intermediate) *
                         DTypeBytes(experts.type);
    if (expert_scratch_.bytes() < bytes) {
      expert_scratch_ = {};
      AISP_ASSIGN_OR_RETURN(expert_scratch_, device_.Allocate(bytes, MemoryKind::kDevice));
    }
    return packed;
  }

  Result<std::unique_ptr<TokenDrawer>> MakeTokenDrawer(int32_t max_rows,
                                                       int32_t vocabulary) override {
    return MakeCudaTokenDrawer(max_rows, vocabulary, device_);
  }

  Status FillRandom(const TensorView& target, float deviation, uint64_t seed,
                    Stream& stream) override {
    Use();
    return LaunchFillNormal(target.data, target.dtype, target.elements(), deviation, seed,
                            HandleOf(stream));
  }

  // A launch goes to the thread's current device.
  Status BeginStep(const RaggedBatch& batch, Stream& stream) override {
    Use();
    if (linear_ != nullptr && linear_->pending()) AISP_RETURN_IF_ERROR(linear_->FinishPacking());
    if (linear_ != nullptr) linear_->kernels().ForgetWords();
    return attention_.BeginStep(batch, HandleOf(stream));
  }
  Status Embedding(const EmbeddingParams& p, Stream& stream) override {
    return LaunchEmbedding(p, HandleOf(stream));
  }
  Status Linear(const LinearParams& p, Stream& stream) override {
    AISP_CHECK(p.x.dtype == p.weight->input_dtype() && p.x.cols() == p.weight->in_features());
    AISP_CHECK(p.y.dtype == p.weight->output_dtype() && p.y.cols() == p.weight->out_features());
    if (const auto* fast = dynamic_cast<const FastWeight*>(p.weight); fast != nullptr)
      return p.rows == 0 ? Status{} : linear_->Run(*fast, p, HandleOf(stream));
    if (linear_ != nullptr) linear_->kernels().ForgetWords();
    if (const auto* scaled = dynamic_cast<const BlockScaledWeight*>(p.weight); scaled != nullptr)
      return p.rows == 0 ? Status{} : block_scaled_->Run(*scaled, p, HandleOf(stream));
    const auto& w = static_cast<const PlainWeight&>(*p.weight);
    PlainLinearCall call;
    call.weight = w.data.data();
    call.bias = static_cast<const float*>(w.bias.data());
    call.x = p.x.data;
    call.type = w.type;
    call.y = p.y.data;
    call.y_type = w.output_type;
    call.accumulate = w.epilogue == Epilogue::kAccumulate;
    call.n = w.n;
    call.k = w.k;
    call.rows = p.rows;
    return LaunchPlainLinear(call, HandleOf(stream));
  }
  Status LinearRun(std::span<const LinearStep> steps, Stream& stream) override {
    while (!steps.empty()) {
      const LinearStep& first = steps.front();
      if (first.norm.x.data != nullptr) AISP_RETURN_IF_ERROR(RmsNorm(first.norm, stream));
      size_t done = 0;
      if (steps.size() > 1 && linear_ != nullptr && options_.exclusive) {
        AISP_ASSIGN_OR_RETURN(done, linear_->RunChain(steps, HandleOf(stream)));
      }
      if (done == 0) {
        AISP_RETURN_IF_ERROR(Linear(first.linear, stream));
        done = 1;
      }
      steps = steps.subspan(done);
    }
    return {};
  }
  Status RmsNorm(const RmsNormParams& p, Stream& stream) override {
    AISP_CHECK(p.x.dtype == DType::kF32 && p.y.cols() == p.weight.shape[0]);
    return LaunchRmsNorm(p, HandleOf(stream));
  }
  Status RopeAppend(const RopeAppendParams& p, Stream& stream) override {
    if (p.kv.head_dim != 64 && p.kv.head_dim != 128 && p.kv.head_dim != 256)
      return LaunchPlainRopeAppend(p, HandleOf(stream));
    const auto norm = [](const TensorView& v) {
      return v.data != nullptr ? v.as<const float>() : nullptr;
    };
    RopeAppendCall call;
    call.qkv = p.qkv.data;
    call.qkv_type = p.qkv.dtype;
    call.qkv_row_stride = call.q_out_row_stride = p.qkv.strides[0];
    call.q_out = p.qkv.data;
    call.cos_sin = p.cos_sin.as<const float>();
    call.q_norm = norm(p.q_norm);
    call.k_norm = norm(p.k_norm);
    call.norm_epsilon = p.norm_epsilon;
    call.rows = p.batch.rows;
    call.num_heads = p.num_heads;
    call.positions = p.batch.positions;
    call.kv_slots = p.batch.kv_slots;
    call.kv = p.kv;
    return cuda::RopeAppend(call, HandleOf(stream));
  }
  Status LatentAppend(const LatentAppendParams& p, Stream& stream) override {
    return LaunchLatentAppend(p, HandleOf(stream));
  }
  Status PagedAttention(const AttentionParams& p, Stream& stream) override {
    return attention_.Run(p, HandleOf(stream));
  }
  Status RopeAttention(const RopeAppendParams& rope, const AttentionParams& p,
                       Stream& stream) override {
    if (p.batch.longest_rows <= 1) {
      AISP_ASSIGN_OR_RETURN(const TokenWords words, OfferWords(rope, p, stream));
      Status done = attention_.RunDecode(rope, p, words, HandleOf(stream));
      if (!done && linear_ != nullptr) linear_->kernels().WithdrawWords();
      if (done || done.error().code != Code::kUnimplemented) return done;
    }
    return Ops::RopeAttention(rope, p, stream);
  }
  Status SiluMul(const SiluMulParams& p, Stream& stream) override {
    return LaunchSiluMul(p, HandleOf(stream));
  }
  Status SelectExperts(const SelectExpertsParams& p, Stream& stream) override {
    return LaunchSelectExperts(p, HandleOf(stream));
  }
  Status ExpertMlp(const ExpertMlpParams& p, Stream& stream) override {
    const auto& e = static_cast<const PlainExperts&>(*p.packed);
    AISP_CHECK(p.experts.cols() == e.top_k && p.x.dtype == e.type);
    ExpertsCall call;
    call.gate_up = e.gate_up.data();
    call.down = e.down.data();
    call.type = e.type;
    call.hidden = e.hidden;
    call.intermediate = e.intermediate;
    call.x = p.x.data;
    call.experts = p.experts.as<const int32_t>();
    call.weights = p.weights.as<const float>();
    call.top_k = e.top_k;
    call.activation = expert_scratch_.data();
    call.y = p.y.as<float>();
    call.rows = p.rows;
    return LaunchExperts(call, HandleOf(stream));
  }

 private:
  // One sequence's rows go straight on between attention and the layers around it. Where workers share the device, launches that wait
  // for each other must not.
  Result<TokenWords> OfferWords(const RopeAppendParams& rope, const AttentionParams& p,
                                Stream& stream) {
    constexpr int32_t kMostKvHeads = 64;  // each has CTAs of its own on any card of this kind
    if (p.batch.num_sequences != 1 || p.batch.rows != 1 || p.out.dtype != DType::kBF16 ||
        rope.qkv.dtype != DType::kBF16 || p.kv.num_kv_heads > kMostKvHeads || linear_ == nullptr ||
        !options_.exclusive) {
      return TokenWords{};
    }
    return linear_->kernels().OfferWords(rope.qkv.data, rope.qkv.cols(), p.out.data, p.out.cols(),
                                         HandleOf(stream));
  }

  // On a GPU that the kernels of linear/ are not for. What has no kernel there is an error now, never a slow path later.
  Result<std::unique_ptr<PackedLinear>> PackElsewhere(const LinearSource& source) {
    const bool plain = source.format == aisp::WeightFormat::kCompute;
    if (plain && source.compute_dtype == DType::kF32 && source.epilogue != Epilogue::kGatedSilu)
      return PackPlain(source, device_, *load_stream_);
    if (source.format == aisp::WeightFormat::kNvfp4 && block_scaled_ != nullptr) {
      AISP_ASSIGN_OR_RETURN(auto packed, block_scaled_->Pack(source));
      return packed;
    }
    return Unimplemented(fmt::format(
        "{} (compute capability {}.{}) has no kernels for linear layers in {}; they are for 9.0. "
        "Small models run here with --dtype f32, others with --device cpu",
        device_.info().name, capability_.major, capability_.minor,
        plain ? DTypeName(source.compute_dtype) : "a quantised format"));
  }

  void Use() const { cudaSetDevice(device_.info().index); }

  const CudaBackendOptions options_;
  Device& device_;
  const Capability capability_;
  AttentionSet attention_;
  std::unique_ptr<CudaStream> load_stream_;
  std::unique_ptr<FastLinear> linear_;               // on Hopper
  std::unique_ptr<BlockScaledLinear> block_scaled_;  // where the tensor cores have it
  Buffer expert_scratch_;  // shared by all layers: they run one after the other
};

}  // namespace

Result<std::unique_ptr<Ops>> MakeCudaOps(const CudaBackendOptions& options, Device& device) {
  auto ops = std::make_unique<CudaOps>(options, device);
  AISP_RETURN_IF_ERROR(ops->Start());
  return ops;
}

}  // namespace aisp::cuda
