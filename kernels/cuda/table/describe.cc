// Describes a resolved launch for people: kernel, grid, bytes, predicted time.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/cuda/table/kernel_table.h"

namespace aisp::cuda {
namespace {

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Cost {
  double bytes = 0;
  double flops = 0;
  double us = 0;  // set if a formula gives it directly
};

// Weights, input rows and output rows of a layer.
Cost CostOf(const LinearTraits& w, double rows) {
  const double x = rows * static_cast<double>(w.k) * static_cast<double>(DTypeBytes(w.input));
  const double y = rows * static_cast<double>(w.out_features()) *
                   static_cast<double>(DTypeBytes(w.output)) *
                   (w.epilogue == Epilogue::kAccumulate ? 2 : 1);
  return {static_cast<double>(w.bytes) + x + y,
          2 * rows * static_cast<double>(w.n) * static_cast<double>(w.k), 0};
}

double BytesOf(const TensorView& view, double rows) {
  return rows * static_cast<double>(view.cols()) * static_cast<double>(DTypeBytes(view.dtype));
}

// Keys and values of `context` tokens per sequence, and the rows.
Cost CostOf(const AttentionParams& p, const Bucket& bucket, double context) {
  const double key =
      2.0 * p.kv.num_kv_heads * p.kv.head_dim * static_cast<double>(DTypeBytes(p.kv.dtype));
  Cost cost;
  cost.bytes = bucket.sequences * context * key +
               2 * bucket.rows * static_cast<double>(p.num_heads) * p.v_head_dim *
                   static_cast<double>(DTypeBytes(p.out.dtype));
  cost.flops = 4.0 * bucket.rows * context * p.num_heads * p.q_head_dim;
  return cost;
}

Cost CostOf(const Programme& programme, const Bucket& bucket, const PlannedLaunch& launch,
            double context) {
  Cost sum;
  for (const NodeId id : launch.covered()) {
    const Node& node = programme.node(id);
    const bool of_logits = node.output >= 0 && programme.value(node.output).rows == RowSet::kLogits;
    const double rows = of_logits ? bucket.logit_rows : bucket.rows;
    Cost cost;
    if (const auto* linear = std::get_if<LinearParams>(&node.params)) {
      cost = CostOf(linear->weight->traits(), rows);
    } else if (const auto* attend = std::get_if<AttentionParams>(&node.params)) {
      cost = CostOf(*attend, bucket, context);
    } else if (const auto* norm = std::get_if<RmsNormParams>(&node.params)) {
      if (launch.covered().front() == id) cost.bytes = BytesOf(norm->x, rows);
    } else if (const auto* embed = std::get_if<EmbeddingParams>(&node.params)) {
      cost.bytes = BytesOf(embed->table, rows) + BytesOf(embed->hidden, rows);
    } else if (const auto* experts = std::get_if<ExpertMlpParams>(&node.params)) {
      // Expected fraction of experts chosen under uniform routing.
      const double part = static_cast<double>(experts->experts.cols()) /
                          std::max(1, experts->packed->num_experts());
      cost.bytes = static_cast<double>(experts->packed->bytes()) * (1 - std::pow(1 - part, rows));
    } else if (const auto* tap = std::get_if<TapParams>(&node.params)) {
      cost.bytes = BytesOf(tap->from, rows) + BytesOf(tap->to, rows);
    } else if (const auto* added = std::get_if<SiluAddParams>(&node.params)) {
      cost.bytes = 3 * BytesOf(added->y, rows);
    } else if (const auto* spread = std::get_if<SpreadParams>(&node.params)) {
      cost.bytes = 2 * BytesOf(spread->from, rows);
    } else if (const auto* draw = std::get_if<DrawNodeParams>(&node.params)) {
      cost.bytes = BytesOf(draw->logits, std::max(bucket.draws, bucket.logit_rows));
    }
    sum.bytes += cost.bytes;
    sum.flops += cost.flops;
  }
  return sum;
}

std::string GridOf(const Programme& programme, const Bucket& bucket, const DeviceFacts& device,
                   const PlannedLaunch& launch) {
  const Node& first = programme.node(launch.nodes[0]);
  const auto* linear = std::get_if<LinearParams>(&first.params);
  const int64_t ctas = device.multiprocessors;
  switch (launch.row->id) {
    case KernelId::kOneToken:
    case KernelId::kFewTokens:
    case KernelId::kChain:
      return std::to_string(ctas);
    case KernelId::kStream: {
      const StreamInstance& s = StreamInstances()[static_cast<size_t>(launch.match.instance)];
      const LinearTraits w = linear->weight->traits();
      return std::to_string(std::min(ctas, DivideUp(w.n, s.rows) * DivideUp(w.k, s.stage_k)));
    }
    case KernelId::kGemm: {
      const GemmInstance& g = GemmInstances()[static_cast<size_t>(launch.match.instance)];
      const int64_t tiles = DivideUp(launch.match.rows, g.tokens) *
                            DivideUp(linear->weight->traits().n, kGemmPairRows);
      const int splits = GemmSplits(linear->weight->traits(), launch.match.rows,
                                    launch.match.instance, static_cast<int>(ctas));
      return std::to_string(std::min(ctas / 2, tiles * splits) * 2);
    }
    case KernelId::kFusedDecode: {
      const auto& p = programme.node(launch.nodes[1]).As<AttentionParams>();
      const int32_t group = p.num_heads / std::max(1, p.kv.num_kv_heads);
      const bool verifies = bucket.mode == StepMode::kVerify;
      const int32_t rows = verifies ? group * FusedItemTokens(group) : group;
      const int64_t each = bucket.sequences <= 8 ? 1 : rows > 8 ? 2 : 3;
      int64_t grid = ctas * each;
      if (IsOneSequenceDecode(bucket, p, device)) grid -= grid % p.kv.num_kv_heads;
      return std::to_string(grid);
    }
    case KernelId::kMixedAttention:
    case KernelId::kAttention:
      return std::to_string(ctas);
    case KernelId::kEmbeddingNorm:
    case KernelId::kEmbedding:
    case KernelId::kNorm:
      return std::to_string(bucket.rows);
    default:
      return "";
  }
}

std::string KernelName(const PlannedLaunch& launch) {
  std::string name(launch.row->name);
  const auto instance = static_cast<size_t>(std::max(0, launch.match.instance));
  switch (launch.row->id) {
    case KernelId::kChain:
      name += fmt::format(" {} tokens", ChainInstances()[instance].tokens);
      break;
    case KernelId::kStream: {
      const StreamInstance& s = StreamInstances()[instance];
      name += fmt::format(" {}x{} x {} tokens", s.rows, s.stage_k, s.tokens);
      break;
    }
    case KernelId::kGemm:
      name += fmt::format(" {}x{}", kGemmPairRows, GemmInstances()[instance].tokens);
      break;
    default:
      break;
  }
  if (launch.match.adapts) name += ", adapters before and behind";
  if (launch.publishes_fp8) name += " to e4m3";
  if (launch.consumes_fp8) name += ", e4m3 rows";
  if (launch.match.rounds) name = "round to e4m3, " + name;
  if (launch.plans) name = "plan, " + name;
  if (launch.consumes_slots) name += ", consumes slots";
  if (launch.publishes_slots) name += ", publishes slots";
  return name;
}

// "layer 3 o, norm, gate_up, down; layer 4 norm, qkv"
std::string NodesOf(const Programme& programme, const PlannedLaunch& launch) {
  std::string text;
  int32_t layer = -2;
  for (const NodeId id : launch.covered()) {
    const Node& node = programme.node(id);
    if (layer == -2) {
      text = programme.Describe(id);
    } else if (layer == node.layer || node.layer < 0) {
      text += fmt::format("{} {}", layer == node.layer ? "," : ";", node.name);
    } else {
      text += "; " + programme.Describe(id);
    }
    layer = node.layer;
  }
  return text;
}

}  // namespace

LaunchInfo DescribeLaunch(const Programme& programme, const Bucket& bucket,
                          const ChoiceFacts& facts, const PlannedLaunch& launch, int64_t context) {
  LaunchInfo info;
  info.nodes = NodesOf(programme, launch);
  info.kernel = KernelName(launch);
  const KernelId id = launch.row->id;
  if ((id == KernelId::kAttention || id == KernelId::kMixedAttention) && SplitTokens(bucket) > 0)
    info.kernel += ", keys split";
  info.grid = GridOf(programme, bucket, *facts.device, launch);
  info.slow = launch.row->slow;
  const Cost cost = CostOf(programme, bucket, launch, static_cast<double>(context));
  info.bytes = cost.bytes;
  const DeviceFacts& d = *facts.device;
  if (d.bytes_per_us > 0) {
    const double read = cost.bytes / d.bytes_per_us;
    // Approximate speedup of e4m3 rows on the tensor cores.
    const double speed = d.bf16_flops_per_us * (launch.match.rounds ? 1.6 : 1.0);
    const double multiplied = speed > 0 ? cost.flops / speed : 0;
    info.us = std::max(read, multiplied) + d.launch_us;
  }
  return info;
}

}  // namespace aisp::cuda
