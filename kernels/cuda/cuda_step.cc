#include "kernels/cuda/cuda_step.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "kernels/cuda/fast_linear.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/weights.h"

namespace aisp::cuda {
namespace {

constexpr size_t kNotSlow = SIZE_MAX;

struct BoundLaunch {
  PlannedLaunch plan;
  std::vector<ChainStep> steps;  // of several layers, or of one token
  AttentionSet::Instance* attention = nullptr;
  KvLayer kv;
  TokenDrawer* drawer = nullptr;
  const AdapterStore* adapters = nullptr;
  PollTag poll;
  size_t slow = kNotSlow;  // of SlowPaths
};

// What a launcher gets.
struct Call {
  const StepParts& parts;
  const Programme& programme;
  const Bucket& bucket;
  const BoundLaunch& launch;
  const StepInputs& in;
  cudaStream_t stream;

  NodeId id(size_t index = 0) const { return launch.plan.nodes[index]; }
  template <typename T>
  const T& Params(size_t index = 0) const {
    return programme.node(id(index)).As<T>();
  }
  int32_t rows(size_t index = 0) const {
    const ValueId output = programme.node(id(index)).output;
    return output >= 0 && programme.value(output).rows == RowSet::kLogits ? in.num_logit_rows
                                                                          : in.batch.rows;
  }
};

Status Embed(const Call& c) {
  EmbeddingParams p = c.Params<EmbeddingParams>();
  p.tokens = c.in.tokens;
  p.slot_of_row = c.in.slot_of_row;
  p.slot_tokens = c.in.slot_tokens;
  p.rows = c.rows();
  if (c.launch.plan.num_nodes > 1) {
    p.norm = c.Params<RmsNormParams>(1);
    p.norm.rows = p.rows;
  }
  return LaunchEmbedding(p, c.stream);
}

Status Norm(const Call& c) {
  RmsNormParams p = c.Params<RmsNormParams>();
  p.rows = c.rows();
  return LaunchRmsNorm(p, c.stream);
}

Status GatherNorm(const Call& c) {
  RmsNormParams p = c.Params<RmsNormParams>(1);
  p.row_indices = c.in.logit_rows;
  p.rows = c.rows(1);
  return LaunchRmsNorm(p, c.stream);
}

Status LinearChain(const Call& c) {
  const PlannedLaunch& plan = c.launch.plan;
  const ChainForm form{plan.row->id == KernelId::kOneToken, plan.awaits, plan.leaves};
  return c.parts.linear->LaunchChain(c.launch.steps, form, c.stream);
}

LinearKernel KernelOf(KernelId id) {
  switch (id) {
    case KernelId::kOneToken:
      return LinearKernel::kOneToken;
    case KernelId::kStream:
      return LinearKernel::kStream;
    case KernelId::kGemm:
      return LinearKernel::kGemm;
    case KernelId::kCublasLt:
      return LinearKernel::kCublasLt;
    case KernelId::kStreamPieces:
      return LinearKernel::kStreamPieces;
    default:
      return LinearKernel::kPlain;
  }
}

Status LinearAlone(const Call& c) {
  LinearParams p = c.Params<LinearParams>();
  const Match& match = c.launch.plan.match;
  const LinearKernel kernel = KernelOf(c.launch.plan.row->id);
  if (kernel == LinearKernel::kPlain) {
    p.rows = c.rows();
    return RunPlainLinear(p, c.stream);
  }
  LinearCall call = FastLinear::CallOf(static_cast<const FastWeight&>(*p.weight), p, match.rows);
  call.poll = c.launch.poll;
  return c.parts.linear->Launch(call, {kernel, match.instance, match.rounds, match.rows}, c.stream);
}

// What adapters add comes before SiLU: gate and up of some rows at a time.
Status GatedWithAdapters(const Call& c) {
  const auto& p = c.Params<LinearParams>();
  const PlannedLaunch& plan = c.launch.plan;
  const AdapterStore& store = *c.launch.adapters;
  PackedWeight both = static_cast<const FastWeight&>(*p.weight).weight;
  both.gated = false;
  for (int32_t begin = 0; begin < c.rows(); begin += kMostGatedAdapterRows) {
    const int32_t rows = std::min(c.rows() - begin, kMostGatedAdapterRows);
    const int32_t* const adapter_of_row = c.in.adapter_of_row + begin;
    LinearCall call;
    call.weight = &both;
    call.x = p.x.as<uint16_t>() + begin * both.k;
    call.y = store.gated_rows();
    call.store = Store::kBf16;
    call.rows = std::min(static_cast<int32_t>(PaddedRows(rows)), plan.match.rows);
    call.poll = c.launch.poll;
    const auto columns = static_cast<int32_t>(both.n / 2);
    const AdapterOutput out{p.y.as<uint16_t>() + int64_t{begin} * columns, DType::kBF16, columns,
                            call.y};
    AISP_RETURN_IF_ERROR(store.Down(*p.adapters, call.x, adapter_of_row, rows, c.stream));
    AISP_RETURN_IF_ERROR(c.parts.linear->Launch(
        call, {KernelOf(plan.row->id), plan.match.instance, plan.match.rounds, call.rows},
        c.stream));
    AISP_RETURN_IF_ERROR(store.Up(*p.adapters, adapter_of_row, rows, out, c.stream));
  }
  return {};
}

// What adapters add to the residual stream is there before the layer's own product, whose weights
// are on their way meanwhile; to rows that are stored it comes behind.
Status LinearWithAdapters(const Call& c) {
  const auto& p = c.Params<LinearParams>();
  const Epilogue epilogue = p.weight->traits().epilogue;
  if (epilogue == Epilogue::kGatedSilu) return GatedWithAdapters(c);
  const AdapterStore& store = *c.launch.adapters;
  const AdapterOutput out{p.y.data, p.y.dtype, static_cast<int32_t>(p.y.cols()), nullptr};
  const auto up = [&] {
    return store.Up(*p.adapters, c.in.adapter_of_row, c.rows(), out, c.stream);
  };
  AISP_RETURN_IF_ERROR(store.Down(*p.adapters, p.x.data, c.in.adapter_of_row, c.rows(), c.stream));
  if (epilogue == Epilogue::kAccumulate) {
    AISP_RETURN_IF_ERROR(up());
    return LinearAlone(c);
  }
  AISP_RETURN_IF_ERROR(LinearAlone(c));
  return up();
}

Status BlockScaled(const Call& c) {
  LinearParams p = c.Params<LinearParams>();
  p.rows = c.rows();
  return c.parts.block_scaled->Run(static_cast<const BlockScaledWeight&>(*p.weight), p, c.stream);
}

AttentionBatch BatchOf(const StepInputs& in) {
  return {in.batch.sequences, in.batch.block_tables, in.batch.num_sequences};
}

Status FusedDecode(const Call& c) {
  RopeAppendParams rope_params = c.Params<RopeAppendParams>();
  rope_params.batch = c.in.batch;
  const auto& p = c.Params<AttentionParams>(1);
  const RopeAppendCall rope = RopeCallOf(rope_params);
  const AttentionBatch batch = BatchOf(c.in);
  const Attention& attention = *c.launch.attention->attention;
  void* const workspace = c.launch.attention->workspace.data();
  AttentionCall call;
  call.out = p.out.data;
  call.out_row_stride = p.out.strides[0];
  call.layer = &c.launch.kv;
  call.poll = c.launch.poll;
  if (c.launch.plan.awaits) call.words = c.parts.linear->words();
  if (c.launch.plan.plans) {
    AISP_ASSIGN_OR_RETURN(call.after_plan, attention.PlanDecode(batch, rope.positions, rope.rows,
                                                                workspace, c.stream));
  }
  return attention.RunDecode(batch, rope, call, workspace, c.stream);
}

Status RopeAppend(const Call& c) {
  RopeAppendParams p = c.Params<RopeAppendParams>();
  p.batch = c.in.batch;
  return RunRopeAppend(p, c.stream);
}

Status PlainRopeAppend(const Call& c) {
  RopeAppendParams p = c.Params<RopeAppendParams>();
  p.batch = c.in.batch;
  return LaunchPlainRopeAppend(p, c.stream);
}

Status LatentAppend(const Call& c) {
  LatentAppendParams p = c.Params<LatentAppendParams>();
  p.batch = c.in.batch;
  return LaunchLatentAppend(p, c.stream);
}

StepKind KindOf(StepMode mode) {
  if (mode == StepMode::kDecode || mode == StepMode::kVerify) return StepKind::kDecode;
  return mode == StepMode::kMixed ? StepKind::kMixed : StepKind::kPrefill;
}

Status Attend(const Call& c) {
  const auto& p = c.Params<AttentionParams>();
  const StepKind kind = KindOf(c.bucket.mode);
  const AttentionBatch batch = BatchOf(c.in);
  const Attention& attention = *c.launch.attention->attention;
  void* const workspace = c.launch.attention->workspace.data();
  if (c.launch.plan.plans)
    AISP_RETURN_IF_ERROR(attention.PlanStep(batch, kind, workspace, c.stream));
  AttentionCall call;
  call.q = p.q.data;
  call.q_row_stride = p.q.strides[0];
  call.out = p.out.data;
  call.out_row_stride = p.out.strides[0];
  call.layer = &c.launch.kv;
  return attention.Run(batch, kind, call, workspace, c.stream);
}

Status PlainAttend(const Call& c) {
  AttentionParams p = c.Params<AttentionParams>();
  p.batch = c.in.batch;
  return LaunchPlainAttention(p, c.stream);
}

Status SiluMul(const Call& c) {
  SiluMulParams p = c.Params<SiluMulParams>();
  p.rows = c.rows();
  return LaunchSiluMul(p, c.stream);
}

Status SelectExperts(const Call& c) {
  SelectExpertsParams p = c.Params<SelectExpertsParams>();
  p.rows = c.rows();
  return LaunchSelectExperts(p, c.stream);
}

Status Experts(const Call& c) {
  ExpertMlpParams p = c.Params<ExpertMlpParams>();
  p.rows = c.rows();
  return RunExperts(p, c.parts.expert_scratch, c.stream);
}

Status Tap(const Call& c) {
  // It has no output: its rows are those of what it reads.
  const Node& node = c.programme.node(c.id());
  const bool gathered = c.programme.value(node.inputs[0]).rows == RowSet::kLogits;
  return LaunchTap(c.Params<TapParams>(), gathered ? c.in.logit_rows : nullptr,
                   gathered ? c.in.num_logit_rows : c.in.batch.rows, c.stream);
}

Status Spread(const Call& c) { return LaunchSpread(c.Params<SpreadParams>(), c.rows(), c.stream); }

Status Draw(const Call& c) {
  DrawParams p = c.in.draw;
  p.logits = c.Params<DrawNodeParams>().logits;
  p.slot_tokens = c.in.slot_tokens;
  return c.launch.drawer->Draw(p, c.launch.poll, c.stream);
}

using Launcher = Status (*)(const Call&);

Launcher LauncherOf(KernelId id) {
  switch (id) {
    case KernelId::kEmbeddingNorm:
    case KernelId::kEmbedding:
      return Embed;
    case KernelId::kGatherNorm:
      return GatherNorm;
    case KernelId::kNorm:
      return Norm;
    case KernelId::kOneToken:
    case KernelId::kChain:
      return LinearChain;
    case KernelId::kStream:
    case KernelId::kGemm:
    case KernelId::kCublasLt:
    case KernelId::kStreamPieces:
    case KernelId::kPlainLinear:
      return LinearAlone;
    case KernelId::kBlockScaled:
      return BlockScaled;
    case KernelId::kFusedDecode:
      return FusedDecode;
    case KernelId::kRopeAppend:
      return RopeAppend;
    case KernelId::kPlainRopeAppend:
      return PlainRopeAppend;
    case KernelId::kLatentAppend:
      return LatentAppend;
    case KernelId::kAttention:
      return Attend;
    case KernelId::kPlainAttention:
      return PlainAttend;
    case KernelId::kSiluMul:
      return SiluMul;
    case KernelId::kSelectExperts:
      return SelectExperts;
    case KernelId::kExperts:
      return Experts;
    case KernelId::kTap:
      return Tap;
    case KernelId::kSpread:
      return Spread;
    case KernelId::kDraw:
      return Draw;
  }
  return nullptr;
}

class CudaStep final : public PreparedStep {
 public:
  CudaStep(const StepParts& parts, const Programme& programme, const Bucket& bucket)
      : parts_(parts), programme_(programme), bucket_(bucket) {}

  Status Bind(const std::vector<PlannedLaunch>& plan, cudaStream_t stream) {
    for (const PlannedLaunch& planned : plan) {
      BoundLaunch& launch = launches_.emplace_back();
      launch.plan = planned;
      launch.poll = {PollReportOf(*parts_.device), planned.nodes[0]};
      const KernelId id = planned.row->id;
      if (planned.match.adapts) {
        AISP_RETURN_IF_ERROR(BindAdapters(launch));
      } else if (id == KernelId::kOneToken || id == KernelId::kChain) {
        BindChain(launch);
      }
      if (id == KernelId::kFusedDecode || id == KernelId::kAttention)
        AISP_RETURN_IF_ERROR(BindAttention(launch, stream));
      if (id == KernelId::kDraw) {
        const auto& draw = programme_.node(planned.nodes[0]).As<DrawNodeParams>();
        launch.drawer = parts_.drawers->at(static_cast<int32_t>(draw.logits.cols()));
      }
      if (!planned.row->slow.empty()) {
        launch.slow = parts_.slow_paths->Note(std::string(NodeKindName(planned.row->first)),
                                              std::string(planned.row->slow),
                                              programme_.Describe(planned.nodes[0]));
      }
    }
    return {};
  }

  Status Run(const StepInputs& inputs, const std::function<void(int32_t)>& on_layer,
             Stream& stream) override {
    // A launch goes to the thread's current device.
    cudaSetDevice(parts_.device->info().index);
    for (const BoundLaunch& launch : launches_) {
      const Launcher launcher =
          launch.plan.match.adapts ? LinearWithAdapters : LauncherOf(launch.plan.row->id);
      AISP_RETURN_IF_ERROR(
          launcher({parts_, programme_, bucket_, launch, inputs, HandleOf(stream)}));
      if (launch.slow != kNotSlow) parts_.slow_paths->Count(launch.slow);
      if (launch.plan.completes_layer >= 0 && on_layer) on_layer(launch.plan.completes_layer);
    }
    return {};
  }

  std::vector<LaunchInfo> Describe() const override {
    std::vector<LaunchInfo> out;
    for (const BoundLaunch& launch : launches_)
      out.push_back(DescribeLaunch(programme_, bucket_, parts_.facts, launch.plan, 0));
    return out;
  }

  std::vector<size_t> slow_launches() const override {
    std::vector<size_t> out;
    for (const BoundLaunch& launch : launches_) {
      if (launch.slow != kNotSlow) out.push_back(launch.slow);
    }
    return out;
  }

 private:
  void BindChain(BoundLaunch& launch) const {
    const RmsNormParams* norm = nullptr;
    for (const NodeId id : launch.plan.covered()) {
      const Node& node = programme_.node(id);
      if (node.kind == NodeKind::kNorm) norm = &node.As<RmsNormParams>();
      if (node.kind != NodeKind::kLinear) continue;
      const auto& p = node.As<LinearParams>();
      ChainStep& step = launch.steps.emplace_back();
      step.call =
          FastLinear::CallOf(static_cast<const FastWeight&>(*p.weight), p, launch.plan.match.rows);
      step.call.poll = {launch.poll.report, id};
      if (norm != nullptr) {
        step.norm_weight = norm->weight.as<const float>();
        step.norm_epsilon = norm->epsilon;
      }
      norm = nullptr;
    }
  }

  Status BindAdapters(BoundLaunch& launch) const {
    const auto* const adapted = programme_.node(launch.plan.nodes[0]).As<LinearParams>().adapters;
    for (const auto& store : *parts_.adapters) {
      if (store->Has(adapted)) launch.adapters = store.get();
    }
    if (launch.adapters != nullptr) return {};
    return FailedPrecondition(programme_.Describe(launch.plan.nodes[0]) +
                              ": steps with adapters before ReserveAdapters");
  }

  Status BindAttention(BoundLaunch& launch, cudaStream_t stream) const {
    const auto& p = programme_.node(launch.plan.covered().back()).As<AttentionParams>();
    const int32_t decode_tokens = bucket_.mode == StepMode::kVerify ? bucket_.rows_per_sequence : 1;
    AISP_ASSIGN_OR_RETURN(launch.attention, parts_.attention->For(p, decode_tokens, stream));
    AISP_ASSIGN_OR_RETURN(launch.kv,
                          launch.attention->attention->MakeLayer(p.kv.layer, p.kv.num_blocks));
    return {};
  }

  const StepParts& parts_;
  const Programme& programme_;
  const Bucket bucket_;
  std::vector<BoundLaunch> launches_;
};

}  // namespace

Status RunPlainLinear(const LinearParams& p, cudaStream_t stream) {
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
  return LaunchPlainLinear(call, stream);
}

Status RunExperts(const ExpertMlpParams& p, void* scratch, cudaStream_t stream) {
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
  call.activation = scratch;
  call.y = p.y.as<float>();
  call.rows = p.rows;
  return LaunchExperts(call, stream);
}

RopeAppendCall RopeCallOf(const RopeAppendParams& p) {
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
  return call;
}

Status RunRopeAppend(const RopeAppendParams& p, cudaStream_t stream) {
  return cuda::RopeAppend(RopeCallOf(p), stream);
}

Result<std::unique_ptr<PreparedStep>> PrepareCudaStep(const StepParts& parts,
                                                      const Programme& programme,
                                                      const Bucket& bucket, cudaStream_t stream) {
  AISP_ASSIGN_OR_RETURN(const auto plan, Resolve(programme, bucket, parts.facts));
  auto step = std::make_unique<CudaStep>(parts, programme, bucket);
  AISP_RETURN_IF_ERROR(step->Bind(plan, stream));
  return step;
}

}  // namespace aisp::cuda
