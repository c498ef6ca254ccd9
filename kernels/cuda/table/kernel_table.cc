#include "kernels/cuda/table/kernel_table.h"

#include <algorithm>

#include "common/check.h"
#include "kernels/cuda/token_slots.h"

namespace aisp::cuda {
namespace {

uint16_t FormatOf(const LinearTraits& w) {
  switch (w.format) {
    case aisp::WeightFormat::kFp8:
      return kOfFp8;
    case aisp::WeightFormat::kFp8Block:
      return kOfFp8Block;
    case aisp::WeightFormat::kNvfp4:
      return kOfNvfp4;
    case aisp::WeightFormat::kCompute:
      break;
  }
  return w.input == DType::kF32 ? kOfF32 : kOfBf16;
}

uint16_t FormatOf(DType dtype) {
  if (dtype == DType::kF32) return kOfF32;
  return dtype == DType::kF8E4M3 ? kOfFp8 : kOfBf16;
}

// The format that a row's `formats` refers to; kOfAny: none.
uint16_t FormatOf(const Node& node) {
  if (const auto* linear = std::get_if<LinearParams>(&node.params))
    return FormatOf(linear->weight->traits());
  if (const auto* rope = std::get_if<RopeAppendParams>(&node.params))
    return FormatOf(rope->kv.dtype);
  if (const auto* attend = std::get_if<AttentionParams>(&node.params))
    return FormatOf(attend->kv.dtype);
  return kOfAny;
}

const LinearTraits TraitsOf(const Node& node) { return node.As<LinearParams>().weight->traits(); }

Match One(const Query&) { return {1}; }

// Whether rows may have adapters that change this layer. It then has a launch of its own, followed
// by the adapters' part.
bool Adapts(const Query& q, int32_t index = 0) {
  const auto* linear = std::get_if<LinearParams>(&q.node(index).params);
  return q.bucket.adapters && linear != nullptr && linear->adapters != nullptr;
}

// Whether its adapters can run inside a chain.
bool ChainAdapts(const Query& q, int32_t index = 0) {
  const auto* linear = std::get_if<LinearParams>(&q.node(index).params);
  return q.facts.device->exclusive && q.facts.chain_adapts != nullptr &&
         q.RowsOf(q.first + index) <= kMostChainRows && q.facts.chain_adapts(*linear->adapters);
}

// Rows that decide whether activations are rounded to e4m3. A verify step that fits a chain counts
// its sequences, as the step without drafts would: so drafts do not change the arithmetic.
int32_t RoundingRows(const Query& q, int32_t rows) {
  const bool verifies = q.bucket.mode == StepMode::kVerify && rows <= kMostChainRows;
  return verifies ? std::min(rows, q.bucket.sequences) : rows;
}

// The norm of all embedded rows, for its only reader.
Match EmbedNorm(const Query& q) {
  if (!q.has(1) || q.node(1).kind != NodeKind::kNorm) return {};
  if (q.programme.Producer(q.first + 1) != q.first) return {};
  const NodeId reader = q.programme.OnlyReader(q.first + 1);
  return {reader >= 0 && q.programme.node(reader).kind == NodeKind::kLinear ? 2 : 0};
}

Match Gather(const Query& q) { return {q.has(1) && q.node(1).kind == NodeKind::kNorm ? 2 : 0}; }

// Consecutive layers from `q.first` on whose edges may stay inside a launch, and the number of
// nodes up to each.
struct Run {
  std::array<ChainLink, 6> links;
  std::array<int32_t, 6> nodes{};
  size_t count = 0;
  std::span<const ChainLink> all() const { return {links.data(), count}; }
};

Run RunFrom(const Query& q, bool adapters = false) {
  Run run;
  run.links[0] = {TraitsOf(q.node()), false};
  run.nodes[0] = 1;
  run.count = 1;
  const int32_t rows = q.RowsOf(q.first);
  NodeId last = q.first;
  int32_t at = 1;
  while (run.count < run.links.size() && q.has(at)) {
    // If all rows are gathered, the gather is a no-op.
    NodeId source = last;
    if (q.node(at).kind == NodeKind::kGatherRows && q.bucket.all_logits) {
      if (!q.programme.Hands(last, q.first + at, kInsideLaunch)) break;
      source = q.first + at++;
      if (!q.has(at)) break;
    }
    const bool normed = q.node(at).kind == NodeKind::kNorm;
    if (normed) {
      if (!q.programme.Hands(source, q.first + at, kInsideLaunch)) break;
      source = q.first + at++;
      if (!q.has(at)) break;
    }
    const Node& next = q.node(at);
    if (next.kind != NodeKind::kLinear || (Adapts(q, at) && !(adapters && ChainAdapts(q, at))) ||
        q.programme.Producer(q.first + at) != source ||
        !q.programme.Hands(source, q.first + at, kInsideLaunch) || q.RowsOf(q.first + at) != rows)
      break;
    last = q.first + at++;
    run.links[run.count] = {TraitsOf(next), normed};
    run.nodes[run.count++] = at;
  }
  return run;
}

template <LinearKernel kKernel>
Match MatchLinear(const Query& q) {
  LinearTraits w = TraitsOf(q.node());
  int32_t rows = q.RowsOf(q.first);
  const bool adapts = Adapts(q);
  if (adapts && w.epilogue == Epilogue::kGatedSilu) {
    // Gate and up are stored separately, as packed, since the adapters' part is added before SiLU.
    w.epilogue = Epilogue::kStore;
    w.output = DType::kBF16;
    rows = std::min(rows, kMostGatedAdapterRows);
  }
  const auto padded = static_cast<int32_t>(PaddedRows(rows));
  const bool rounds = RoundsRows(w, RoundingRows(q, padded), *q.facts.device);
  const LinearChoice choice = ChooseLinear(w, padded, false, rounds, q.facts);
  if (choice.kernel != kKernel) return {};
  return {1, choice.instance, choice.rounds, choice.rows, adapts};
}

Match MatchOneToken(const Query& q) {
  if (Adapts(q)) return ChainAdapts(q) ? Match{} : MatchLinear<LinearKernel::kOneToken>(q);
  const int32_t rows = q.RowsOf(q.first);
  const Run run = RunFrom(q);
  size_t fitting = OneTokenChain(run.all(), rows);
  if (fitting == 0 || RoundsRows(run.links[0].weight, RoundingRows(q, rows), *q.facts.device))
    return {};
  if (!q.facts.device->exclusive) fitting = 1;
  // As many layers as fit in one launch.
  if (q.facts.device->exclusive &&
      StreamChain(run.all(), rows, q.facts.device->multiprocessors) > std::max<size_t>(1, fitting))
    return {};
  return {run.nodes[fitting - 1], -1, false, rows};
}

Match MatchFewTokens(const Query& q) {
  if (Adapts(q)) return {};
  const int32_t rows = q.RowsOf(q.first);
  const Run run = RunFrom(q);
  const size_t fitting = FewTokensChain(run.all(), rows);
  if (fitting < 2 || RoundsRows(run.links[0].weight, RoundingRows(q, rows), *q.facts.device))
    return {};
  // As many layers as fit in one launch, including those with adapters.
  const Run adapted = RunFrom(q, true);
  if (StreamChain(adapted.all(), rows, q.facts.device->multiprocessors) > fitting) return {};
  return {run.nodes[fitting - 1], -1, false, rows};
}

Match MatchChain(const Query& q) {
  const bool adapts = Adapts(q);
  if (adapts && !ChainAdapts(q)) return {};
  const int32_t rows = q.RowsOf(q.first);
  const Run run = RunFrom(q, true);
  const size_t fitting = StreamChain(run.all(), rows, q.facts.device->multiprocessors);
  if (fitting < (adapts ? 1 : 2) ||
      RoundsRows(run.links[0].weight, RoundingRows(q, rows), *q.facts.device))
    return {};
  return {run.nodes[fitting - 1], FindChain(run.links[0].weight.format, rows), false, rows};
}

// Beyond this, two items per sequence reading the same keys cost more than the saved launches.
// Llama-3.1-8B, 8 rows per sequence at 1k context on an H100, ms per step with decode.cu / two
// items: 5.96 / 5.64 for 1 sequence, 7.13 / 6.73 for 8, 9.08 / 9.63 for 32.
constexpr int32_t kMostTwoItemRows = 64;

Match MatchFused(const Query& q) {
  const bool verifies = q.bucket.mode == StepMode::kVerify;
  if (!verifies && q.bucket.mode != StepMode::kDecode) return {};
  if (!q.has(1) || q.node(1).kind != NodeKind::kAttend) return {};
  const auto& p = q.node(1).As<AttentionParams>();
  const int32_t rows = verifies ? q.bucket.rows_per_sequence : 1;
  if (!HasFusedDecode(q.node().As<RopeAppendParams>(), p, rows, *q.facts.device)) return {};
  const bool two_items = rows > FusedItemTokens(p.num_heads / p.kv.num_kv_heads);
  return {two_items && q.bucket.rows > kMostTwoItemRows ? 0 : 2};
}

// Decoding sequences in a step with prompts.
Match MatchMixed(const Query& q) {
  if (q.bucket.mode != StepMode::kMixed) return {};
  if (!q.has(1) || q.node(1).kind != NodeKind::kAttend) return {};
  const auto& p = q.node(1).As<AttentionParams>();
  return {HasFusedDecode(q.node().As<RopeAppendParams>(), p, 1, *q.facts.device) ? 2 : 0};
}

Match MatchRope(const Query& q) {
  const int32_t dim = q.node().As<RopeAppendParams>().kv.head_dim;
  return {dim == 64 || dim == 128 || dim == 256 ? 1 : 0};
}

Match MatchAttention(const Query& q) {
  return {AttentionRefusal(q.node().As<AttentionParams>(), *q.facts.device).empty() ? 1 : 0};
}

// Without attention/ only f32 is supported.
Match MatchPlainAttention(const Query& q) {
  const auto& p = q.node().As<AttentionParams>();
  const bool f32 = p.q.dtype == DType::kF32 && p.kv.dtype == DType::kF32;
  return {q.facts.device->hopper || f32 ? 1 : 0};
}

// Meant for small f32 models; for others it is a slow path.
Match MatchPlainF32Attention(const Query& q) {
  return {q.node().As<AttentionParams>().kv.dtype == DType::kF32 ? MatchPlainAttention(q).nodes
                                                                 : 0};
}

constexpr uint16_t kFastFormats = kOfBf16 | kOfFp8 | kOfFp8Block | kOfNvfp4;
constexpr uint8_t kRows = kAsRows;
constexpr uint8_t kRowsOrPublished = kAsRows | kPublished;

using enum NodeKind;

constexpr KernelRow kTable[] = {
    // id, name, first node, formats, rows, exclusive, consumes, publishes, match, slow
    {KernelId::kEmbeddingNorm, "embedding + norm", kEmbed, kOfAny, 1, 0, false, kRows, kRows,
     EmbedNorm, ""},
    {KernelId::kEmbedding, "embedding", kEmbed, kOfAny, 1, 0, false, kRows, kRows, One, ""},
    {KernelId::kGatherNorm, "rms norm of gathered rows", kGatherRows, kOfAny, 1, 0, false, kRows,
     kRows, Gather, ""},
    {KernelId::kNorm, "rms norm", kNorm, kOfAny, 1, 0, false, kRows, kRows, One, ""},
    {KernelId::kOneToken, "one token", kLinear, kFastFormats, 1, 1, false, kRowsOrPublished,
     kRowsOrPublished, MatchOneToken, ""},
    {KernelId::kFewTokens, "few tokens", kLinear, kFastFormats, 2, kMostFewTokens, true, kRows,
     kRows, MatchFewTokens, ""},
    {KernelId::kChain, "chain", kLinear, kFastFormats, 1, 64, true, kRows, kRows, MatchChain, ""},
    {KernelId::kStream, "stream", kLinear, kFastFormats, 1, 128, false, kRows, kRows,
     MatchLinear<LinearKernel::kStream>, ""},
    {KernelId::kGemm, "gemm", kLinear, kFastFormats, 1, 0, false, kRows | kAsFp8Rows, kRows,
     MatchLinear<LinearKernel::kGemm>, ""},
    {KernelId::kCublasLt, "cublasLt", kLinear, kFastFormats, 1, 0, false, kRows | kAsFp8Rows, kRows,
     MatchLinear<LinearKernel::kCublasLt>, ""},
    {KernelId::kStreamPieces, "stream, few rows at a time", kLinear, kFastFormats, 1, 0, false,
     kRows, kRows, MatchLinear<LinearKernel::kStreamPieces>,
     "no kernel for many rows of this width"},
    {KernelId::kPlainLinear, "plain product", kLinear, kOfF32, 1, 0, false, kRows, kRows,
     MatchLinear<LinearKernel::kPlain>, ""},
    {KernelId::kPlainLinear, "plain product", kLinear, kOfBf16, 1, 0, false, kRows, kRows,
     MatchLinear<LinearKernel::kPlain>, "columns that are no multiple of 8"},
    {KernelId::kBlockScaled, "cublasLt block-scaled", kLinear, kOfNvfp4, 1, 0, false, kRows, kRows,
     MatchLinear<LinearKernel::kBlockScaled>, ""},
    {KernelId::kFusedDecode, "decode attention", kRopeAppend, kOfBf16 | kOfFp8, 1, 0, false,
     kRowsOrPublished, kRowsOrPublished, MatchFused, ""},
    {KernelId::kMixedAttention, "decode and prompt attention", kRopeAppend, kOfBf16 | kOfFp8, 1, 0,
     false, kRows, kRows, MatchMixed, ""},
    {KernelId::kRopeAppend, "rope + append", kRopeAppend, kOfAny, 1, 0, false, kRows, kRows,
     MatchRope, ""},
    {KernelId::kPlainRopeAppend, "plain rope + append", kRopeAppend, kOfAny, 1, 0, false, kRows,
     kRows, One, ""},
    {KernelId::kLatentAppend, "latent append", kLatentAppend, kOfAny, 1, 0, false, kRows, kRows,
     One, ""},
    {KernelId::kAttention, "attention", kAttend, kOfBf16 | kOfFp8, 1, 0, false, kRows, kRows,
     MatchAttention, ""},
    {KernelId::kPlainAttention, "plain attention", kAttend, kOfF32, 1, 0, false, kRows, kRows,
     MatchPlainF32Attention, ""},
    {KernelId::kPlainAttention, "plain attention", kAttend, kOfBf16 | kOfFp8, 1, 0, false, kRows,
     kRows, MatchPlainAttention, "a shape without attention kernels"},
    {KernelId::kSiluMul, "silu mul", kSiluMul, kOfAny, 1, 0, false, kRows, kRows, One, ""},
    {KernelId::kSiluAdd, "silu add", kSiluAdd, kOfAny, 1, 0, false, kRows, kRows, One, ""},
    {KernelId::kSelectExperts, "select experts", kSelectExperts, kOfAny, 1, 0, false, kRows, kRows,
     One, ""},
    {KernelId::kExperts, "experts row by row", kExperts, kOfAny, 1, 0, false, kRows, kRows, One,
     ""},
    {KernelId::kTap, "copy of rows", kTap, kOfAny, 0, 0, false, kRows, kRows, One, ""},
    {KernelId::kSpread, "spread", kSpread, kOfAny, 0, 0, false, kRows, kRows, One, ""},
    {KernelId::kDraw, "draw", kDraw, kOfAny, 0, 0, false, kRows, kRows, One, ""},
};

}  // namespace

std::span<const KernelRow> KernelTable() { return kTable; }

std::string_view AttentionRefusal(const AttentionParams& p, const DeviceFacts& device) {
  const int32_t dim = p.kv.head_dim;
  const auto rows = [](DType t) { return t == DType::kBF16 || t == DType::kF32; };
  if (!device.hopper) return "a GPU without attention kernels";
  if (dim != 64 && dim != 128 && dim != 256) return "a head size other than 64, 128 and 256";
  if (p.q_head_dim != dim || p.v_head_dim != dim) return "keys and values of different sizes";
  if (p.num_heads / std::max(1, p.kv.num_kv_heads) > 16) return "more than 16 heads per KV head";
  if (p.kv.dtype != DType::kBF16 && p.kv.dtype != DType::kF8E4M3) return "KV in f32";
  return rows(p.q.dtype) && rows(p.out.dtype) ? "" : "rows that are neither bf16 nor f32";
}

bool HasFusedDecode(const RopeAppendParams& rope, const AttentionParams& p, int32_t rows,
                    const DeviceFacts& device) {
  return AttentionRefusal(p, device).empty() && (p.kv.head_dim == 64 || p.kv.head_dim == 128) &&
         rope.qkv.dtype == DType::kBF16 && FusedTakes(p.num_heads / p.kv.num_kv_heads, rows);
}

// Llama-3.1-8B in bf16 on an H100, ms per step of 15 new rows after 1,024, 2,048, 4,096 and 16,384
// keys: 6.01, 6.34, 7.12, 11.3 without splitting, 6.33, 6.41, 6.58, 7.18 with it.
constexpr int32_t kLeastSplitContext = 2560;

int32_t SplitTokens(const Bucket& bucket) {
  constexpr int32_t kFew = 16, kMost = 64;
  const bool prompts = bucket.mode == StepMode::kPrefill || bucket.mode == StepMode::kMixed;
  if (!prompts || bucket.prompt_context < kLeastSplitContext) return 0;
  // A sequence has at most all rows of the step.
  return bucket.rows <= kFew ? kFew : bucket.rows <= kMost ? kMost : 0;
}

bool IsOneSequenceDecode(const Bucket& bucket, const AttentionParams& p,
                         const DeviceFacts& device) {
  return bucket.sequences == 1 && bucket.rows == 1 && p.kv.num_kv_heads <= device.multiprocessors;
}

namespace {

bool Wanted(const Node& node, const Programme& programme, const Bucket& bucket) {
  if (node.kind == NodeKind::kDraw) return bucket.part != StepPart::kForward && bucket.draws > 0;
  if (bucket.part == StepPart::kDraw) return false;
  const bool of_logits = node.output >= 0 && programme.value(node.output).rows == RowSet::kLogits;
  return !of_logits || bucket.logit_rows > 0;
}

const KernelRow* FindRow(const Query& q, Match* match) {
  const Node& node = q.node();
  const uint16_t format = FormatOf(node);
  const int32_t rows = q.RowsOf(q.first);
  for (const KernelRow& row : kTable) {
    if (row.first != node.kind || (row.formats & format) == 0 || rows < row.least_rows ||
        (row.most_rows > 0 && rows > row.most_rows) ||
        (row.exclusive && !q.facts.device->exclusive))
      continue;
    *match = row.match(q);
    if (match->nodes > 0) return &row;
  }
  return nullptr;
}

// Whether two attention layers have the same shape, as far as a plan depends on it.
bool SameShape(const AttentionParams& a, const AttentionParams& b) {
  return a.num_heads == b.num_heads && a.kv.num_kv_heads == b.kv.num_kv_heads &&
         a.kv.head_dim == b.kv.head_dim && a.kv.block_tokens == b.kv.block_tokens &&
         a.window == b.window && a.scale == b.scale && a.kv.dtype == b.kv.dtype &&
         a.q.dtype == b.q.dtype && a.out.dtype == b.out.dtype;
}

const AttentionParams* AttentionOf(const Programme& programme, const PlannedLaunch& launch) {
  if (launch.row->id != KernelId::kFusedDecode && launch.row->id != KernelId::kMixedAttention &&
      launch.row->id != KernelId::kAttention)
    return nullptr;
  return &programme.node(launch.covered().back()).As<AttentionParams>();
}

// The first launch of each shape plans for the others.
void MarkPlans(const Programme& programme, const Bucket& bucket, const DeviceFacts& device,
               std::vector<PlannedLaunch>& launches) {
  std::vector<const AttentionParams*> seen;
  for (PlannedLaunch& launch : launches) {
    const AttentionParams* const p = AttentionOf(programme, launch);
    if (p == nullptr) continue;
    const bool known = std::any_of(seen.begin(), seen.end(), [&](const AttentionParams* other) {
      return SameShape(*p, *other);
    });
    if (!known) seen.push_back(p);
    const bool alone =
        launch.row->id == KernelId::kFusedDecode && IsOneSequenceDecode(bucket, *p, device);
    launch.plans = !known && !alone;
  }
}

// Edges between one sequence's decode attention and the adjacent layers use slots if the launches
// are neighbours, both support it, and the values have no other reader.
void PublishBetweenLaunches(const Programme& programme, const Bucket& bucket,
                            const DeviceFacts& device, std::vector<PlannedLaunch>& launches) {
  constexpr int32_t kMostKvHeads = 64;  // each needs its own CTAs on any card of this kind
  if (!device.exclusive) return;
  for (size_t i = 1; i + 1 < launches.size(); ++i) {
    PlannedLaunch& before = launches[i - 1];
    PlannedLaunch& attention = launches[i];
    PlannedLaunch& after = launches[i + 1];
    if (attention.row->id != KernelId::kFusedDecode || before.row->id != KernelId::kOneToken ||
        after.row->id != KernelId::kOneToken || before.match.adapts || after.match.adapts)
      continue;
    const NodeId rope = attention.nodes[0], attend = attention.nodes[1];
    const NodeId qkv = before.covered().back(), out = after.nodes[0];
    const auto& p = programme.node(attend).As<AttentionParams>();
    const LinearTraits qkv_weight = TraitsOf(programme.node(qkv));
    const auto fits = [](int64_t features) {
      return features % 8 == 0 && features / 2 <= kTokenEdgeSlots;
    };
    if (!IsOneSequenceDecode(bucket, p, device) || p.kv.num_kv_heads > kMostKvHeads ||
        p.out.dtype != DType::kBF16 || StoreOf(qkv_weight) != StoreForm::kBf16 ||
        !fits(qkv_weight.out_features()) || !fits(p.out.cols()) ||
        !programme.Hands(qkv, rope, kPublished) || !programme.Hands(attend, out, kPublished) ||
        TraitsOf(programme.node(out)).k != p.out.cols())
      continue;
    before.publishes_slots = attention.consumes_slots = attention.publishes_slots =
        after.consumes_slots = true;
  }
}

// A norm whose only reader rounds its rows to e4m3 writes e4m3 itself.
void RoundInNorms(const Programme& programme, std::vector<PlannedLaunch>& launches) {
  for (size_t i = 1; i < launches.size(); ++i) {
    PlannedLaunch& norm = launches[i - 1];
    PlannedLaunch& linear = launches[i];
    const NodeId from = norm.nodes[0], to = linear.nodes[0];
    if (norm.row->id != KernelId::kNorm ||
        programme.node(from).As<RmsNormParams>().x.dtype != DType::kF32 || !linear.match.rounds ||
        linear.match.adapts || programme.Producer(to) != from || programme.OnlyReader(from) != to ||
        !programme.Hands(from, to, kAsFp8Rows) || !RoundsInNorm(TraitsOf(programme.node(to)).k))
      continue;
    norm.publishes_fp8 = linear.consumes_fp8 = true;
    linear.match.rounds = false;
  }
}

}  // namespace

// In rows.cu a block must hold the row.
bool RoundsInNorm(int64_t width) { return width % 16 == 0 && width <= 16384; }

Bucket CanonicalBucket(const Bucket& bucket) {
  Bucket b = bucket;
  b.rows = static_cast<int32_t>(PaddedRows(bucket.rows));
  b.logit_rows = static_cast<int32_t>(PaddedRows(bucket.logit_rows));
  // Only one sequence versus several matters here; launchers handle the rest.
  b.sequences = bucket.mode == StepMode::kDecode && bucket.sequences == 1 ? 1 : 2;
  b.rows_per_sequence = bucket.mode == StepMode::kDecode ? 1 : 2;
  if (bucket.mode == StepMode::kVerify) b.rows_per_sequence = VerifyRows(bucket.rows_per_sequence);
  b.prompt_context = SplitTokens(bucket) > 0 ? kLeastSplitContext : 0;
  b.draws = bucket.draws > 0 ? 1 : 0;
  b.draw_filters = b.draw_masks = false;  // one launcher handles all cases
  return b;
}

Result<std::vector<PlannedLaunch>> Resolve(const Programme& programme, const Bucket& bucket,
                                           const ChoiceFacts& facts) {
  std::vector<PlannedLaunch> launches;
  const auto count = static_cast<NodeId>(programme.nodes().size());
  for (NodeId id = 0; id < count;) {
    const Node& node = programme.node(id);
    const bool all = node.kind == NodeKind::kGatherRows && bucket.all_logits;
    if (all || !Wanted(node, programme, bucket)) {
      ++id;
      continue;
    }
    const Query query{programme, bucket, facts, id};
    PlannedLaunch launch;
    launch.row = FindRow(query, &launch.match);
    if (launch.row == nullptr) {
      const auto* attend = std::get_if<AttentionParams>(&node.params);
      return Unimplemented(
          programme.Describe(id) + ": " + facts.device->name + " has no kernel for this " +
          std::string(NodeKindName(node.kind)) +
          (attend != nullptr
               ? "; small models run here with --dtype f32 and --kv-dtype f32, others with "
                 "--device cpu"
               : ""));
    }
    for (int32_t i = 0; i < launch.match.nodes; ++i) {
      const NodeKind kind = programme.node(id + i).kind;
      if (kind == NodeKind::kAttend) launch.completes_layer = programme.node(id + i).layer;
      launch.nodes[static_cast<size_t>(launch.num_nodes++)] = id + i;
    }
    launches.push_back(launch);
    id += launch.match.nodes;
  }
  MarkPlans(programme, bucket, *facts.device, launches);
  PublishBetweenLaunches(programme, bucket, *facts.device, launches);
  RoundInNorms(programme, launches);
  return launches;
}

}  // namespace aisp::cuda
