#include "kernels/cuda/cuda_step.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "kernels/cuda/fast_linear.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/step_call.h"
#include "kernels/cuda/weights.h"

namespace aisp::cuda {
namespace {

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
  if (c.launch.plan.publishes_fp8) {
    const auto to = c.parts.linear->rounded_rows();
    return LaunchRoundedNorm(p, to.rows, to.scales, c.stream);
  }
  return LaunchRmsNorm(p, c.stream);
}

Status GatherNorm(const Call& c) {
  RmsNormParams p = c.Params<RmsNormParams>(1);
  p.row_indices = c.in.logit_rows;
  p.rows = c.rows(1);
  return LaunchRmsNorm(p, c.stream);
}

Status BlockScaled(const Call& c) {
  LinearParams p = c.Params<LinearParams>();
  p.rows = c.rows();
  return c.parts.block_scaled->Run(static_cast<const BlockScaledWeight&>(*p.weight), p, c.stream);
}

AttentionBatch BatchOf(const StepInputs& in) {
  return {in.batch.sequences, in.batch.block_tables, in.batch.num_sequences};
}

AttentionCall CallOf(const AttentionParams& p, const Call& c) {
  AttentionCall call;
  call.q = p.q.data;
  call.q_row_stride = p.q.strides[0];
  call.out = p.out.data;
  call.out_row_stride = p.out.strides[0];
  call.layer = &c.launch.kv;
  call.poll = c.launch.poll;
  return call;
}

// The arguments of rotation, append and attention in one launch.
struct FusedCall {
  explicit FusedCall(const Call& c)
      : rope(RopeOf(c)),
        batch(BatchOf(c.in)),
        attention(*c.launch.attention->attention),
        workspace(c.launch.attention->workspace.data()),
        attend(CallOf(c.Params<AttentionParams>(1), c)) {}

  static RopeAppendCall RopeOf(const Call& c) {
    RopeAppendParams params = c.Params<RopeAppendParams>();
    params.batch = c.in.batch;
    return RopeCallOf(params);
  }

  const RopeAppendCall rope;
  const AttentionBatch batch;
  const Attention& attention;
  void* const workspace;
  AttentionCall attend;
};

Status FusedDecode(const Call& c) {
  FusedCall f(c);
  if (c.launch.plan.consumes_slots) f.attend.token_slots = c.parts.linear->token_slots();
  if (c.launch.plan.plans) {
    AISP_ASSIGN_OR_RETURN(
        f.attend.after_plan,
        f.attention.PlanDecode(f.batch, f.rope.positions, f.rope.rows, f.workspace, c.stream));
  }
  return f.attention.RunDecode(f.batch, f.rope, f.attend, f.workspace, c.stream);
}

Status MixedAttention(const Call& c) {
  FusedCall f(c);
  if (c.launch.plan.plans) {
    AISP_ASSIGN_OR_RETURN(
        f.attend.after_plan,
        f.attention.PlanMixed(f.batch, f.rope.positions, f.rope.rows, f.workspace, c.stream));
  }
  return f.attention.RunMixed(f.batch, c.in.batch.host_sequences, f.rope, f.attend, f.workspace,
                              c.stream);
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
  const AttentionCall call = CallOf(p, c);
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

Status SiluAdd(const Call& c) {
  return LaunchSiluAdd(c.Params<SiluAddParams>(), c.rows(), c.stream);
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
  // It has no output of its own: its rows are those of its input.
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
    case KernelId::kFewTokens:
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
    case KernelId::kMixedAttention:
      return MixedAttention;
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
    case KernelId::kSiluAdd:
      return SiluAdd;
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
      } else if (id == KernelId::kOneToken || id == KernelId::kFewTokens ||
                 id == KernelId::kChain) {
        BindChain(launch);
      }
      if (id == KernelId::kFusedDecode || id == KernelId::kMixedAttention ||
          id == KernelId::kAttention)
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
      const AdapterStore* const store = bucket_.adapters ? StoreOf(p.adapters) : nullptr;
      if (store != nullptr) step.adapters = store->ChainOf(*p.adapters);
    }
  }

  const AdapterStore* StoreOf(const AdaptedLinear* adapted) const {
    for (const auto& store : *parts_.adapters) {
      if (store->Has(adapted)) return store.get();
    }
    return nullptr;
  }

  Status BindAdapters(BoundLaunch& launch) const {
    launch.adapters = StoreOf(programme_.node(launch.plan.nodes[0]).As<LinearParams>().adapters);
    if (launch.adapters != nullptr) return {};
    return FailedPrecondition(programme_.Describe(launch.plan.nodes[0]) +
                              ": steps with adapters before ReserveAdapters");
  }

  Status BindAttention(BoundLaunch& launch, cudaStream_t stream) const {
    const auto& p = programme_.node(launch.plan.covered().back()).As<AttentionParams>();
    const int32_t decode_tokens = bucket_.mode == StepMode::kVerify ? bucket_.rows_per_sequence : 1;
    AISP_ASSIGN_OR_RETURN(launch.attention,
                          parts_.attention->For(p, decode_tokens, SplitTokens(bucket_), stream));
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
