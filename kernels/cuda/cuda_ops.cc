#include "kernels/cuda/cuda_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "common/check.h"
#include "kernels/cuda/adapter_store.h"
#include "kernels/cuda/attention_set.h"
#include "kernels/cuda/block_scaled.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/cuda_step.h"
#include "kernels/cuda/draw.h"
#include "kernels/cuda/fast_linear.h"
#include "kernels/cuda/random_fill.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/table/dtypes.h"
#include "kernels/cuda/weights.h"

namespace aisp::cuda {
namespace {

class CudaOps final : public Ops {
 public:
  CudaOps(const CudaBackendOptions& options, Device& device)
      : options_(options),
        device_(device),
        capability_(CapabilityOf(device.info().index)),
        attention_(device, options.max_rows, options.max_sequences) {}

  Status Start() {
    AISP_ASSIGN_OR_RETURN(auto stream, device_.CreateStream());
    load_stream_.reset(static_cast<CudaStream*>(stream.release()));
    if (HasBlockScaledCores(capability_)) {
      AISP_ASSIGN_OR_RETURN(block_scaled_,
                            BlockScaledLinear::Create(device_, *load_stream_, options_.max_rows));
    }
    if (HasHopperKernels(capability_)) {
      AISP_ASSIGN_OR_RETURN(linear_,
                            FastLinear::Create({.max_rows = options_.max_rows,
                                                .tuning_cache = TuningFile(),
                                                .fp8_activation_rows = options_.fp8_activation_rows,
                                                .exclusive = options_.exclusive,
                                                .overlap = true},
                                               device_, *load_stream_));
    }
    FillParts();
    return {};
  }

  // A folder holds one file per kind of GPU.
  std::string TuningFile() const {
    std::string file = options_.tuning_cache;
    if (!file.ends_with('/')) return file;
    for (const char c : device_.info().name)
      file += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '-';
    return file + ".tuning";
  }

  std::string Describe() const override {
    return fmt::format("{}; {}", device_.info().name, attention_.Describe());
  }

  DType PreferredComputeDType(DType checkpoint, int64_t elements) const override {
    return PreferredDType(checkpoint, elements);
  }
  int64_t RowCapacity(int64_t rows) const override { return PaddedRows(rows); }
  DType ActivationDType(DType compute) const override { return compute; }
  bool Fuses(Epilogue epilogue, DType compute) const override {
    return FusesEpilogue(epilogue, compute);
  }
  bool Supports(aisp::WeightFormat format, DType compute) const override {
    return SupportsFormat(format, compute);
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
      // Graphs of an earlier model may still use theirs.
      if (expert_scratch_ && named_ > 0) outgrown_.push_back(std::move(expert_scratch_));
      expert_scratch_ = {};
      AISP_ASSIGN_OR_RETURN(expert_scratch_, device_.Allocate(bytes, MemoryKind::kDevice));
    }
    return packed;
  }

  bool DrawsTokens() const override { return true; }

  Status FillRandom(const TensorView& target, float deviation, uint64_t seed,
                    Stream& stream) override {
    Use();
    return LaunchFillNormal(target.data, target.dtype, target.elements(), deviation, seed,
                            HandleOf(stream));
  }

  Bucket Canonical(const Bucket& bucket) const override { return CanonicalBucket(bucket); }

  Result<std::unique_ptr<PreparedStep>> Prepare(const Programme& programme,
                                                const Bucket& bucket) override {
    Use();
    AISP_RETURN_IF_ERROR(FinishLoading());
    AISP_RETURN_IF_ERROR(MakeDrawer(programme));
    if (named_ != programme.nodes().size()) {
      std::vector<std::string> names;
      for (NodeId id = 0; id < static_cast<NodeId>(programme.nodes().size()); ++id)
        names.push_back(programme.Describe(id));
      NameNodes(device_, std::move(names));
      named_ = programme.nodes().size();
    }
    FillParts();
    auto step = PrepareCudaStep(parts_, programme, bucket, load_stream_->handle);
    AISP_RETURN_IF_ERROR(device_.Synchronize(*load_stream_));
    return step;
  }

  Status ReserveAdapters(const Programme& programme, int32_t slots, int32_t rank) override {
    Use();
    // An earlier programme had the same address; it no longer exists.
    std::erase_if(adapters_, [&](const auto& store) { return store->IsOf(programme); });
    AISP_ASSIGN_OR_RETURN(
        auto store,
        AdapterStore::Reserve(programme, slots, rank,
                              static_cast<int32_t>(PaddedRows(options_.max_rows)), device_));
    adapters_.push_back(std::move(store));
    return {};
  }
  Status PlaceAdapter(const Programme& programme, int32_t slot, Stream& stream) override {
    Use();
    for (const auto& store : adapters_) {
      if (store->IsOf(programme)) return store->Place(programme, slot, stream);
    }
    return FailedPrecondition("an adapter before ReserveAdapters");
  }

  Status Embedding(const EmbeddingParams& p, Stream& stream) override {
    return LaunchEmbedding(p, HandleOf(stream));
  }
  Status Linear(const LinearParams& p, Stream& stream) override {
    AISP_CHECK(p.x.dtype == p.weight->input_dtype() && p.x.cols() == p.weight->in_features());
    AISP_CHECK(p.y.dtype == p.weight->output_dtype() && p.y.cols() == p.weight->out_features());
    if (p.rows == 0) return {};
    AISP_RETURN_IF_ERROR(FinishLoading());
    switch (static_cast<LinearFamily>(p.weight->traits().family)) {
      case LinearFamily::kFast:
        return linear_->kernels().Launch(
            FastLinear::CallOf(static_cast<const FastWeight&>(*p.weight), p,
                               static_cast<int32_t>(PaddedRows(p.rows))),
            HandleOf(stream));
      case LinearFamily::kBlockScaled:
        return block_scaled_->Run(static_cast<const BlockScaledWeight&>(*p.weight), p,
                                  HandleOf(stream));
      case LinearFamily::kPlain:
        break;
    }
    return RunPlainLinear(p, HandleOf(stream));
  }
  Status RmsNorm(const RmsNormParams& p, Stream& stream) override {
    AISP_CHECK(p.x.dtype == DType::kF32 || p.x.dtype == DType::kBF16);
    AISP_CHECK(p.y.cols() == p.weight.shape[0]);
    return LaunchRmsNorm(p, HandleOf(stream));
  }
  Status RopeAppend(const RopeAppendParams& p, Stream& stream) override {
    const int32_t dim = p.kv.head_dim;
    return dim == 64 || dim == 128 || dim == 256 ? RunRopeAppend(p, HandleOf(stream))
                                                 : LaunchPlainRopeAppend(p, HandleOf(stream));
  }
  Status LatentAppend(const LatentAppendParams& p, Stream& stream) override {
    return LaunchLatentAppend(p, HandleOf(stream));
  }
  Status PagedAttention(const AttentionParams& p, Stream& stream) override {
    if (!AttentionRefusal(p, facts_).empty()) return LaunchPlainAttention(p, HandleOf(stream));
    AISP_ASSIGN_OR_RETURN(AttentionSet::Instance* const instance,
                          attention_.For(p, 1, 0, HandleOf(stream)));
    AISP_ASSIGN_OR_RETURN(const KvLayer layer,
                          instance->attention->MakeLayer(p.kv.layer, p.kv.num_blocks));
    const AttentionBatch batch{p.batch.sequences, p.batch.block_tables, p.batch.num_sequences};
    const bool decodes = std::any_of(p.batch.host_sequences.begin(), p.batch.host_sequences.end(),
                                     [](const RowSpan& s) { return s.num_rows == 1; });
    const StepKind kind = p.batch.longest_rows <= 1 ? StepKind::kDecode
                          : decodes                 ? StepKind::kMixed
                                                    : StepKind::kPrefill;
    void* const workspace = instance->workspace.data();
    AISP_RETURN_IF_ERROR(instance->attention->PlanStep(batch, kind, workspace, HandleOf(stream)));
    AttentionCall call;
    call.q = p.q.data;
    call.q_row_stride = p.q.strides[0];
    call.out = p.out.data;
    call.out_row_stride = p.out.strides[0];
    call.layer = &layer;
    return instance->attention->Run(batch, kind, call, workspace, HandleOf(stream));
  }
  Status SiluMul(const SiluMulParams& p, Stream& stream) override {
    return LaunchSiluMul(p, HandleOf(stream));
  }
  Status SelectExperts(const SelectExpertsParams& p, Stream& stream) override {
    return LaunchSelectExperts(p, HandleOf(stream));
  }
  Status ExpertMlp(const ExpertMlpParams& p, Stream& stream) override {
    return RunExperts(p, expert_scratch_.data(), HandleOf(stream));
  }

 private:
  Status FinishLoading() {
    return linear_ != nullptr && linear_->pending() ? linear_->FinishPacking() : Status{};
  }

  // Allocates scratch for the maximum rows that the programme can draw. Earlier steps keep theirs.
  Status MakeDrawer(const Programme& programme) {
    for (const Node& node : programme.nodes()) {
      const auto* draw = std::get_if<DrawNodeParams>(&node.params);
      if (draw == nullptr) continue;
      const auto rows = static_cast<int32_t>(draw->logits.rows());
      const auto vocabulary = static_cast<int32_t>(draw->logits.cols());
      const auto known = drawers_.find(vocabulary);
      if (known != drawers_.end() && known->second->max_rows() >= rows) continue;
      AISP_ASSIGN_OR_RETURN(auto drawer, MakeCudaTokenDrawer(rows, vocabulary, device_));
      drawers_[vocabulary] = drawer.get();
      all_drawers_.push_back(std::move(drawer));
    }
    return {};
  }

  void FillParts() {
    facts_.name = device_.info().name;
    facts_.hopper = linear_ != nullptr;
    facts_.block_scaled = block_scaled_ != nullptr;
    facts_.exclusive = options_.exclusive;
    facts_.max_rows = options_.max_rows;
    facts_.max_sequences = options_.max_sequences;
    facts_.bytes_per_us = H200Facts().bytes_per_us;
    facts_.launch_us = H200Facts().launch_us;
    parts_.facts = linear_ != nullptr ? linear_->kernels().facts() : ChoiceFacts{};
    if (linear_ != nullptr) {
      facts_.multiprocessors = parts_.facts.device->multiprocessors;
      facts_.fp8_activation_rows = parts_.facts.device->fp8_activation_rows;
    } else {
      parts_.facts.profile = &no_profile_;
    }
    parts_.facts.device = &facts_;
    parts_.facts.chain_adapts = [this](const AdaptedLinear& adapted) {
      return std::any_of(adapters_.begin(), adapters_.end(), [&](const auto& store) {
        return store->Has(&adapted) && store->ChainOf(adapted) != nullptr;
      });
    };
    parts_.device = &device_;
    parts_.attention = &attention_;
    parts_.linear = linear_ != nullptr ? &linear_->kernels() : nullptr;
    parts_.block_scaled = block_scaled_.get();
    parts_.drawers = &drawers_;
    parts_.expert_scratch = expert_scratch_.data();
    parts_.adapters = &adapters_;
    parts_.slow_paths = &slow_paths_;
  }

  // For GPUs without the kernels of linear/. What is unsupported there is an error now, not a slow
  // path later.
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
  std::unique_ptr<BlockScaledLinear> block_scaled_;  // if the tensor cores support it
  std::vector<std::unique_ptr<TokenDrawer>> all_drawers_;
  std::map<int32_t, TokenDrawer*> drawers_;  // by vocabulary
  Buffer expert_scratch_;                    // shared by all layers, which run one after another
  std::vector<Buffer> outgrown_;
  std::vector<std::unique_ptr<AdapterStore>> adapters_;  // one per programme that has adapters
  DeviceFacts facts_;
  const TuningProfile no_profile_;
  StepParts parts_;   // view of all this for steps
  size_t named_ = 0;  // number of nodes whose names the device knows
};

}  // namespace

Result<std::unique_ptr<Ops>> MakeCudaOps(const CudaBackendOptions& options, Device& device) {
  auto ops = std::make_unique<CudaOps>(options, device);
  AISP_RETURN_IF_ERROR(ops->Start());
  return ops;
}

}  // namespace aisp::cuda
