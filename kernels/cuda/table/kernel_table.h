// The table of the CUDA backend: every kernel that a node of a programme can run in, in the order
// in which they are asked. The first row that takes a node, or a run of nodes that begins with it,
// computes it. There is no other place where a kernel is chosen.
//
// A new kernel is a row here, its launcher in cuda_step.cc or step_linear.cc and a file of its own.
//
// Pure functions and data without any CUDA header: a programme can be resolved where no GPU is.
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

// Most nodes of a launch: a chain of six layers with their norms, and a gathering of all rows.
inline constexpr size_t kMostNodes = 12;

// What a row says when it is asked for the nodes from some node on.
struct Match {
  int32_t nodes = 0;  // how many it computes; 0: none
  int32_t instance = -1;
  bool rounds = false;  // rows are rounded to e4m3 first
  int32_t rows = 0;     // of linear layers: that are computed
  bool adapts = false;  // with what adapters add
};

// What rows are asked about.
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

// Formats of weights or, for attention, of the pool; any number of them.
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
  int32_t least_rows;  // of the step's or the logits', whichever the node has
  int32_t most_rows;   // 0: any number
  bool exclusive;      // needs the device for itself
  uint8_t consumes;    // forms in which it may have its input (HandOver)
  uint8_t publishes;   // forms in which its output may come
  Match (*match)(const Query& query);
  std::string_view slow;  // why it is a slow path; empty: it is none
};

std::span<const KernelRow> KernelTable();

// A launch of a resolved step. Plain data.
struct PlannedLaunch {
  const KernelRow* row = nullptr;
  std::array<NodeId, kMostNodes> nodes{};
  int32_t num_nodes = 0;
  Match match;
  // Slots instead of rows in memory (token_slots.h): of the input, of the output.
  bool consumes_slots = false;
  bool publishes_slots = false;
  // e4m3 rows in the workspace of linear layers instead of rows of its own.
  bool consumes_fp8 = false;
  bool publishes_fp8 = false;
  bool plans = false;            // attention: the step's first of its shape, which plans for all
  int32_t completes_layer = -1;  // KV of this layer is enqueued once this is

  std::span<const NodeId> covered() const { return {nodes.data(), static_cast<size_t>(num_nodes)}; }
};

// UNIMPLEMENTED names the node that no row takes, and why.
Result<std::vector<PlannedLaunch>> Resolve(const Programme& programme, const Bucket& bucket,
                                           const ChoiceFacts& facts);
// Buckets of which the table says the same map to one.
Bucket CanonicalBucket(const Bucket& bucket);

// Whether a norm of such rows may leave them as e4m3 for the layer that rounds them.
bool RoundsInNorm(int64_t width);

// Rows of a gated layer with adapters that are computed before SiLU, at a time.
inline constexpr int32_t kMostGatedAdapterRows = 2048;
// Rows of a chain, and ranks of all adapters of a layer together that one takes: they are all
// multiplied, whichever of them rows have.
inline constexpr int32_t kMostChainRows = 64;
inline constexpr int32_t kMostChainAdapterWidth = 256;

// What people read of a launch; `context`: keys of a sequence that attention is predicted for.
LaunchInfo DescribeLaunch(const Programme& programme, const Bucket& bucket,
                          const ChoiceFacts& facts, const PlannedLaunch& launch, int64_t context);

// ---- attention ----

// Whether attention/ has kernels for the layer; else why not.
std::string_view AttentionRefusal(const AttentionParams& params, const DeviceFacts& device);
// Rotation, append and attention of up to `rows` rows a sequence in one launch.
bool HasFusedDecode(const RopeAppendParams& rope, const AttentionParams& params, int32_t rows,
                    const DeviceFacts& device);
// Rows of a sequence up to which its keys are split over CTAs in a step that computes few rows of
// prompts with many keys; 0: they are not, and a tile of query rows meets its keys in one CTA.
int32_t SplitTokens(const Bucket& bucket);
// The launch of one sequence alone, whose rows may be handed over in slots.
bool IsOneSequenceDecode(const Bucket& bucket, const AttentionParams& params,
                         const DeviceFacts& device);

}  // namespace aisp::cuda
