// The CPU's table of kernels: which one computes a node, or two consecutive nodes. Every kernel
// serves any number of rows, so results do not depend on the batch.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "kernels/cpu/cpu_ops_impl.h"

namespace aisp {
namespace {

int32_t RowsOf(const Programme& programme, const Node& node, const StepInputs& in) {
  return node.output >= 0 && programme.value(node.output).rows == RowSet::kLogits
             ? in.num_logit_rows
             : in.batch.rows;
}

// A launcher's arguments: its first node, and the step.
struct Call {
  CpuOps& ops;
  const Programme& programme;
  NodeId first;
  const StepInputs& in;
  Stream& stream;

  // Parameters of node first + `index`.
  template <typename T>
  const T& Params(int32_t index = 0) const {
    return programme.node(first + index).As<T>();
  }
  int32_t rows(int32_t index = 0) const {
    return RowsOf(programme, programme.node(first + index), in);
  }
};

Status Embed(const Call& c) {
  EmbeddingParams p = c.Params<EmbeddingParams>();
  p.tokens = c.in.tokens;
  p.slot_of_row = c.in.slot_of_row;
  p.slot_tokens = c.in.slot_tokens;
  p.rows = c.rows();
  return c.ops.Embedding(p, c.stream);
}
Status Norm(const Call& c) {
  RmsNormParams p = c.Params<RmsNormParams>();
  p.rows = c.rows();
  return c.ops.RmsNorm(p, c.stream);
}
Status GatherNorm(const Call& c) {
  RmsNormParams p = c.Params<RmsNormParams>(1);
  p.row_indices = c.in.logit_rows;
  p.rows = c.rows(1);
  return c.ops.RmsNorm(p, c.stream);
}
Status Linear(const Call& c) {
  LinearParams p = c.Params<LinearParams>();
  p.rows = c.rows();
  AISP_RETURN_IF_ERROR(c.ops.Linear(p, c.stream));
  if (p.adapters != nullptr && c.in.adapter_of_row != nullptr)
    c.ops.AddAdapters(p, c.in.adapter_of_row);
  return {};
}
Status RopeAppend(const Call& c) {
  RopeAppendParams p = c.Params<RopeAppendParams>();
  p.batch = c.in.batch;
  return c.ops.RopeAppend(p, c.stream);
}
Status LatentAppend(const Call& c) {
  LatentAppendParams p = c.Params<LatentAppendParams>();
  p.batch = c.in.batch;
  return c.ops.LatentAppend(p, c.stream);
}
Status Attend(const Call& c) {
  AttentionParams p = c.Params<AttentionParams>();
  p.batch = c.in.batch;
  return c.ops.PagedAttention(p, c.stream);
}
Status SiluMul(const Call& c) {
  SiluMulParams p = c.Params<SiluMulParams>();
  p.rows = c.rows();
  return c.ops.SiluMul(p, c.stream);
}
Status SiluAdd(const Call& c) { return c.ops.SiluAdd(c.Params<SiluAddParams>(), c.rows()); }
Status SelectExperts(const Call& c) {
  SelectExpertsParams p = c.Params<SelectExpertsParams>();
  p.rows = c.rows();
  return c.ops.SelectExperts(p, c.stream);
}
Status Experts(const Call& c) {
  ExpertMlpParams p = c.Params<ExpertMlpParams>();
  p.rows = c.rows();
  return c.ops.ExpertMlp(p, c.stream);
}
Status AllReduce(const Call& c) {
  const auto& p = c.Params<AllReduceParams>();
  return p.collective->AllReduceOnHost(p.x.as<float>(), c.rows() * p.x.cols());
}

Status Tap(const Call& c) {
  const auto& p = c.Params<TapParams>();
  const auto size = static_cast<size_t>(p.from.cols());
  // It has no output value, so the row count is that of its input.
  const StepValue& read = c.programme.value(c.programme.node(c.first).inputs[0]);
  const bool gathered = read.rows == RowSet::kLogits;
  const int64_t rows = gathered ? c.in.num_logit_rows : c.in.batch.rows;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t from = gathered && c.in.logit_rows != nullptr ? c.in.logit_rows[row] : row;
    std::memcpy(p.to.as<float>() + row * p.to.strides[0],
                p.from.as<float>() + from * p.from.strides[0], size * sizeof(float));
  }
  return {};
}
Status Spread(const Call& c) {
  const auto& p = c.Params<SpreadParams>();
  for (int64_t row = 0; row < c.rows(); ++row) {
    const float* const from = p.from.as<float>() + row * p.from.strides[0];
    float* const to = p.to.as<float>() + row * p.to.strides[0];
    for (int64_t i = 0; i < p.from.cols(); ++i) to[p.columns[i]] = from[i];
  }
  return {};
}

bool Always(const Node&) { return true; }
bool TapFits(const Node& n) { return n.As<TapParams>().to.dtype == DType::kF32; }
bool LinearFits(const Node& n) {
  const LinearTraits t = n.As<LinearParams>().weight->traits();
  return t.format == WeightFormat::kCompute && t.epilogue != Epilogue::kGatedSilu &&
         t.output == DType::kF32;
}
bool AttendFits(const Node& n) {
  const auto& p = n.As<AttentionParams>();
  const bool kv =
      p.kv.dtype == DType::kF32 || p.kv.dtype == DType::kBF16 || p.kv.dtype == DType::kF8E4M3;
  return p.q.dtype == DType::kF32 && kv && p.q_head_dim % 16 == 0 && p.v_head_dim % 16 == 0 &&
         p.kv.block_tokens % kAttentionTile == 0;
}
bool ReduceFits(const Node& n) { return n.As<AllReduceParams>().collective != nullptr; }

struct Row {
  std::string_view kernel;
  NodeKind first;
  std::optional<NodeKind> second;  // of a launch of two nodes
  bool (*fits)(const Node& first);
  Status (*launch)(const Call& call);  // null: no computation on the CPU
};

// The first matching row is used.
constexpr Row kTable[] = {
    {"embedding", NodeKind::kEmbed, {}, Always, Embed},
    {"rms norm of gathered rows", NodeKind::kGatherRows, NodeKind::kNorm, Always, GatherNorm},
    {"rms norm", NodeKind::kNorm, {}, Always, Norm},
    {"product of panels", NodeKind::kLinear, {}, LinearFits, Linear},
    {"rope + append", NodeKind::kRopeAppend, {}, Always, RopeAppend},
    {"latent append", NodeKind::kLatentAppend, {}, Always, LatentAppend},
    {"attention over tiles of keys", NodeKind::kAttend, {}, AttendFits, Attend},
    {"silu mul", NodeKind::kSiluMul, {}, Always, SiluMul},
    {"silu add", NodeKind::kSiluAdd, {}, Always, SiluAdd},
    {"select experts", NodeKind::kSelectExperts, {}, Always, SelectExperts},
    {"experts one by one", NodeKind::kExperts, {}, Always, Experts},
    {"all-reduce in host memory", NodeKind::kAllReduce, {}, ReduceFits, AllReduce},
    {"copy of rows", NodeKind::kTap, {}, TapFits, Tap},
    {"spread", NodeKind::kSpread, {}, Always, Spread},
    {"the engine's sampler", NodeKind::kDraw, {}, Always, nullptr},
};

struct Launch {
  const Row* row = nullptr;
  NodeId first = 0;
  int32_t completes_layer = -1;
};

class CpuStep final : public PreparedStep {
 public:
  CpuStep(CpuOps& ops, const Programme& programme, std::vector<Launch> launches)
      : ops_(ops), programme_(programme), launches_(std::move(launches)) {}

  Status Run(const StepInputs& inputs, const std::function<void(int32_t)>& on_layer,
             Stream& stream) override {
    for (const Launch& launch : launches_) {
      if (launch.row->launch != nullptr) {
        AISP_RETURN_IF_ERROR(launch.row->launch({ops_, programme_, launch.first, inputs, stream}));
      }
      if (launch.completes_layer >= 0 && on_layer) on_layer(launch.completes_layer);
    }
    return {};
  }

  std::vector<LaunchInfo> Describe() const override {
    std::vector<LaunchInfo> out;
    for (const Launch& launch : launches_) {
      LaunchInfo info;
      info.nodes = programme_.Describe(launch.first);
      if (launch.row->second) info.nodes += ", " + programme_.Describe(launch.first + 1);
      info.kernel = launch.row->kernel;
      if (const auto* p = std::get_if<LinearParams>(&programme_.node(launch.first).params))
        info.bytes = static_cast<double>(p->weight->bytes());
      out.push_back(std::move(info));
    }
    return out;
  }

 private:
  CpuOps& ops_;
  const Programme& programme_;
  const std::vector<Launch> launches_;
};

const Row* Find(const Programme& programme, NodeId id) {
  const auto count = static_cast<NodeId>(programme.nodes().size());
  for (const Row& row : kTable) {
    if (row.first != programme.node(id).kind) continue;
    if (row.second && (id + 1 == count || programme.node(id + 1).kind != *row.second)) continue;
    if (row.fits(programme.node(id))) return &row;
  }
  return nullptr;
}

}  // namespace

// Kernels do not depend on sizes: only the part and the presence of logit rows differ.
Bucket CpuOps::Canonical(const Bucket& bucket) const {
  Bucket one;
  one.part = bucket.part;
  one.logit_rows = bucket.logit_rows > 0 ? 1 : 0;
  return one;
}

Result<std::unique_ptr<PreparedStep>> CpuOps::Prepare(const Programme& programme,
                                                      const Bucket& bucket) {
  std::vector<Launch> launches;
  const auto count = static_cast<NodeId>(programme.nodes().size());
  for (NodeId id = 0; id < count;) {
    const Node& node = programme.node(id);
    const Row* const row = Find(programme, id);
    if (row == nullptr) {
      return Unimplemented(fmt::format("{}: the CPU has no kernel for such a node ({})",
                                       programme.Describe(id), NodeKindName(node.kind)));
    }
    const bool of_logits = node.output >= 0 && programme.value(node.output).rows == RowSet::kLogits;
    const bool draws = node.kind == NodeKind::kDraw;
    const bool wanted = draws                            ? bucket.part != StepPart::kForward
                        : bucket.part == StepPart::kDraw ? false
                                                         : !of_logits || bucket.logit_rows > 0;
    if (wanted) {
      Launch launch{row, id, -1};
      if (node.kind == NodeKind::kAttend) launch.completes_layer = node.layer;
      launches.push_back(launch);
    }
    id += row->second ? 2 : 1;
  }
  return std::make_unique<CpuStep>(*this, programme, std::move(launches));
}

}  // namespace aisp
