// The kernel table of the CUDA backend: every kernel that can compute a node of a programme, in
// order of preference. The first row that accepts a node, or a run of nodes starting with it,
// computes it. Kernels are chosen nowhere else.
//
// A new kernel needs a row here, a launcher in cuda_step.cc or step_linear.cc, and its own file.
//
// Pure functions and data without CUDA headers: a programme can be resolved without a GPU.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "kernels/cuda/table/linear_choice.h"
#include "kernels/ops.h"

namespace aisp::cuda {

enum class KernelId : uint8_t {
  kEmbeddingNorm,
  kEmbedding,
  kGatherNorm,
  kNorm,
  kOneToken,
  kFewTokens,
  kChain,
  kStream,
  kGemm,
  kCublasLt,
  kStreamPieces,
  kPlainLinear,
  kBlockScaled,
  kFusedDecode,
  kMixedAttention,
  kRopeAppend,
  kPlainRopeAppend,
  kLatentAppend,
  kAttention,
  kPlainAttention,
  kSiluMul,
  kSiluAdd,
  kSelectExperts,
  kExperts,
  kTap,
  kSpread,
  kDraw,
};

// Maximum of nodes per launch: a chain of six layers with norms, and a gather of all rows.
inline constexpr size_t kMostNodes = 12;

// A row's answer for the nodes from some node on.
struct Match {
  int32_t nodes = 0;  // number of nodes that it computes; 0: none
  int32_t instance = -1;
  bool rounds = false;  // rows are rounded to e4m3 first
  int32_t rows = 0;     // of linear layers: rows that are computed
  bool adapts = false;  // includes adapters
};

// The question to a row.
struct Query {
  const Programme& programme;
  const Bucket& bucket;
  const ChoiceFacts& facts;
  NodeId first = 0;

  const Node& node(int32_t index = 0) const { return programme.node(first + index); }
  bool has(int32_t index) const {
    return static_cast<size_t>(first + index) < programme.nodes().size();
  }
  int32_t RowsOf(NodeId id) const {
    const ValueId output = programme.node(id).output;
    return output >= 0 && programme.value(output).rows == RowSet::kLogits ? bucket.logit_rows
                                                                          : bucket.rows;
  }
};

// Formats of weights or, for attention, of the pool, as a bit set.
enum FormatSet : uint16_t {
  kOfF32 = 1,
  kOfBf16 = 2,
  kOfFp8 = 4,
  kOfFp8Block = 8,
  kOfNvfp4 = 16,
  kOfAny = 31,
};

struct KernelRow {
  KernelId id;
  std::string_view name;
  NodeKind first;      // kind of the first node that it computes
  uint16_t formats;    // FormatSet
  int32_t least_rows;  // rows of the step or logit rows, whichever the node has
  int32_t most_rows;   // 0: any number
  bool exclusive;      // needs the device exclusively
  uint8_t consumes;    // HandOver forms accepted for its input
  uint8_t publishes;   // HandOver forms possible for its output
  Match (*match)(const Query& query);
  std::string_view slow;  // why it is a slow path; "": it is none
};

std::span<const KernelRow> KernelTable();

// A launch of a resolved step. Plain data.
struct PlannedLaunch {
  const KernelRow* row = nullptr;
  std::array<NodeId, kMostNodes> nodes{};
  int32_t num_nodes = 0;
  Match match;
  // Input / output in slots instead of rows in memory (token_slots.h).
  bool consumes_slots = false;
  bool publishes_slots = false;
  // Input / output as e4m3 rows in the workspace of linear layers.
  bool consumes_fp8 = false;
  bool publishes_fp8 = false;
  bool plans = false;            // attention: the first of its shape, which plans for all
  int32_t completes_layer = -1;  // KV of this layer is enqueued after this launch

  std::span<const NodeId> covered() const { return {nodes.data(), static_cast<size_t>(num_nodes)}; }
};

// UNIMPLEMENTED names the node that no row accepts, and why.
Result<std::vector<PlannedLaunch>> Resolve(const Programme& programme, const Bucket& bucket,
                                           const ChoiceFacts& facts);
// Maps buckets with equal answers from the table to one.
Bucket CanonicalBucket(const Bucket& bucket);

// Whether a norm of such rows may write e4m3 for the layer that rounds them.
bool RoundsInNorm(int64_t width);

// Rows of a gated layer with adapters computed before SiLU at a time.
inline constexpr int32_t kMostGatedAdapterRows = 2048;
// Limits of a chain with adapters: rows, and the sum of all adapters' ranks per layer, since all
// adapters are multiplied for all rows.
inline constexpr int32_t kMostChainRows = 64;
inline constexpr int32_t kMostChainAdapterWidth = 256;

// Describes a launch for people; `context`: keys per sequence for which attention is predicted.
LaunchInfo DescribeLaunch(const Programme& programme, const Bucket& bucket,
                          const ChoiceFacts& facts, const PlannedLaunch& launch, int64_t context);

// ---- attention ----

// Why attention/ has no kernel for the layer; "": it has.
std::string_view AttentionRefusal(const AttentionParams& params, const DeviceFacts& device);
// Whether one launch can rotate, append and attend for up to `rows` rows per sequence.
bool HasFusedDecode(const RopeAppendParams& rope, const AttentionParams& params, int32_t rows,
                    const DeviceFacts& device);
// For steps with few prompt rows and long contexts: the maximum rows per sequence whose keys are
// split over CTAs; 0: not split, one CTA processes a tile of query rows with all its keys.
int32_t SplitTokens(const Bucket& bucket);
// Whether this is the launch for a single sequence, whose rows may use slots.
bool IsOneSequenceDecode(const Bucket& bucket, const AttentionParams& params,
                         const DeviceFacts& device);

}  // namespace aisp::cuda
