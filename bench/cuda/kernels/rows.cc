// The operations between the matrix products, through the Ops interface: embedding, norms, RoPE
// with the append to the pool, drawing. All are bound by bytes or, with few rows, by launch cost.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "bench/cuda/kernels/rig.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/draw.h"

namespace aisp::cuda {
namespace {

constexpr int kCalls = 32;

class RowsBench {
 public:
  RowsBench(BenchRig& rig, BenchPart part) : rig_(rig), part_(part), o_(rig.options()) {}

  Status Run() {
    constexpr std::array<std::string_view, 4> kNames = {"embedding", "norm", "rope + append",
                                                        "drawing"};
    if (std::none_of(kNames.begin(), kNames.end(), [&](auto name) { return rig_.Wants(name); }))
      return {};
    std::vector<int32_t> rows = o_.rows;
    rows.insert(rows.end(), o_.prefills.begin(), o_.prefills.end());
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    std::erase_if(rows, [&](int32_t r) { return !BelongsTo(part_, r); });
    if (rows.empty()) return {};
    most_ = rows.back();
    CudaBackendOptions options;
    options.index = o_.index;
    options.max_rows = most_;
    options.max_sequences = kFewRows;
    AISP_ASSIGN_OR_RETURN(ops_, MakeCudaOps(options, rig_.device()));
    AISP_RETURN_IF_ERROR(Prepare());
    for (const int32_t n : rows) {
      if (rig_.Wants("embedding")) AISP_RETURN_IF_ERROR(Embedding(n));
      if (rig_.Wants("norm")) AISP_RETURN_IF_ERROR(Norm(n));
      // Decode has it in the attention launch (attention.cc).
      if (n > kFewRows && rig_.Wants("rope + append")) AISP_RETURN_IF_ERROR(RopeAppend(n));
      if (n <= kFewRows && rig_.Wants("drawing")) {
        AISP_RETURN_IF_ERROR(Drawing(n, "greedy"));
        AISP_RETURN_IF_ERROR(Drawing(n, "top-k, top-p"));
      }
    }
    return {};
  }

 private:
  int64_t Width() const { return int64_t{o_.num_heads + 2 * o_.num_kv_heads} * o_.head_dim; }

  Status Prepare() {
    const auto most = static_cast<size_t>(most_);
    const auto hidden = static_cast<size_t>(o_.hidden);
    const auto vocabulary = static_cast<size_t>(o_.vocabulary);
    std::vector<int32_t> counting(most);
    std::iota(counting.begin(), counting.end(), 0);
    std::vector<int32_t> tokens = counting;
    for (int32_t& t : tokens) t = static_cast<int32_t>(int64_t{t} * 7919 % o_.vocabulary);
    AISP_ASSIGN_OR_RETURN(tokens_, rig_.Upload(tokens.data(), most * sizeof(int32_t)));
    AISP_ASSIGN_OR_RETURN(counting_, rig_.Upload(counting.data(), most * sizeof(int32_t)));
    AISP_ASSIGN_OR_RETURN(table_, rig_.Random(vocabulary * hidden, DType::kBF16, 21));
    AISP_ASSIGN_OR_RETURN(hidden_, rig_.Random(most * hidden, DType::kF32, 22));
    AISP_ASSIGN_OR_RETURN(normed_, rig_.Allocate(most * hidden * 2));
    AISP_ASSIGN_OR_RETURN(weight_, rig_.Random(std::max<size_t>(hidden, 256), DType::kF32, 23));
    AISP_ASSIGN_OR_RETURN(qkv_, rig_.Random(most * static_cast<size_t>(Width()), DType::kBF16, 24));
    AISP_ASSIGN_OR_RETURN(cos_sin_,
                          rig_.Random(most * static_cast<size_t>(o_.head_dim), DType::kF32, 25));
    const int32_t blocks = (most_ + o_.block_tokens - 1) / o_.block_tokens;
    kv_ = {nullptr, DType::kBF16, o_.num_kv_heads, o_.head_dim, o_.block_tokens, blocks};
    AISP_ASSIGN_OR_RETURN(pool_, rig_.Allocate(static_cast<size_t>(blocks) * kv_.block_bytes()));
    kv_.layer = pool_.data();
    AISP_ASSIGN_OR_RETURN(logits_, rig_.Random(kFewRows * vocabulary, DType::kF32, 26));
    AISP_ASSIGN_OR_RETURN(drawn_, rig_.Allocate(kFewRows * sizeof(DrawnToken)));
    AISP_ASSIGN_OR_RETURN(drawer_, MakeCudaTokenDrawer(kFewRows, o_.vocabulary, rig_.device()));
    return {};
  }

  Status Measure(KernelTiming timing, double bytes, const std::function<Status(int)>& call) {
    AISP_ASSIGN_OR_RETURN(timing.us, rig_.CallUs(kCalls, call));
    rig_.Add(std::move(timing), bytes, 0, 1);
    return {};
  }

  Status Embedding(int32_t n) {
    EmbeddingParams p;
    p.table = TensorView::Dense(table_.data(), DType::kBF16, {o_.vocabulary, o_.hidden});
    p.tokens = static_cast<const int32_t*>(tokens_.data());
    p.slot_of_row = p.slot_tokens = static_cast<const int32_t*>(counting_.data());
    p.rows = n;
    p.hidden = TensorView::Dense(hidden_.data(), DType::kF32, {most_, o_.hidden});
    return Measure({"embedding", "bf16", std::to_string(n)}, 6.0 * n * o_.hidden,
                   [&](int) { return ops_->Embedding(p, rig_.stream()); });
  }

  Status Norm(int32_t n) {
    RmsNormParams p;
    p.x = TensorView::Dense(hidden_.data(), DType::kF32, {most_, o_.hidden});
    p.weight = TensorView::Dense(weight_.data(), DType::kF32, {o_.hidden});
    p.y = TensorView::Dense(normed_.data(), DType::kBF16, {most_, o_.hidden});
    p.rows = n;
    return Measure({"norm", "bf16", std::to_string(n)}, 6.0 * n * o_.hidden + 4.0 * o_.hidden,
                   [&](int) { return ops_->RmsNorm(p, rig_.stream()); });
  }

  Status RopeAppend(int32_t n) {
    RopeAppendParams p;
    p.qkv = TensorView::Dense(qkv_.data(), DType::kBF16, {most_, Width()});
    p.cos_sin = TensorView::Dense(cos_sin_.data(), DType::kF32, {most_, o_.head_dim});
    if (o_.qk_norm)
      p.q_norm = p.k_norm = TensorView::Dense(weight_.data(), DType::kF32, {o_.head_dim});
    p.num_heads = o_.num_heads;
    p.batch.rows = n;
    p.batch.positions = p.batch.kv_slots = static_cast<const int32_t*>(counting_.data());
    p.kv = kv_;
    // q, k and v are read and written once; the angles of a position are read once.
    const double bytes = 4.0 * n * static_cast<double>(Width()) + 4.0 * n * o_.head_dim;
    return Measure({"rope + append", "bf16", std::to_string(n)}, bytes,
                   [&](int) { return ops_->RopeAppend(p, rig_.stream()); });
  }

  Status Drawing(int32_t n, const char* how) {
    std::vector<DrawRow> rows(static_cast<size_t>(n));
    for (int32_t i = 0; i < n; ++i) {
      DrawRow& r = rows[static_cast<size_t>(i)];
      r.logit_index = r.slot = r.drawn_at = i;
      r.position = 1000;
      r.seed = static_cast<uint64_t>(i) + 1;
      r.temperature = 0;
      if (how[0] != 'g') r.temperature = 0.8f, r.top_p = 0.95f, r.top_k = 50;
    }
    AISP_ASSIGN_OR_RETURN(const Buffer on_device,
                          rig_.Upload(rows.data(), rows.size() * sizeof(DrawRow)));
    DrawParams p;
    p.logits = TensorView::Dense(logits_.data(), DType::kF32, {kFewRows, o_.vocabulary});
    p.rows = static_cast<const DrawRow*>(on_device.data());
    p.num_rows = n;
    p.filters = how[0] != 'g';
    // Slots of drawn tokens use memory that the embedding no longer needs.
    p.slot_tokens = static_cast<int32_t*>(normed_.data());
    p.drawn = static_cast<DrawnToken*>(drawn_.data());
    return Measure({"drawing", how, std::to_string(n)}, 4.0 * n * o_.vocabulary,
                   [&](int) { return drawer_->Draw(p, {}, rig_.stream().handle); });
  }

  BenchRig& rig_;
  const BenchPart part_;
  const KernelBenchOptions& o_;
  int32_t most_ = 0;
  std::unique_ptr<Ops> ops_;
  Buffer tokens_, counting_, table_, hidden_, normed_, weight_, qkv_, cos_sin_, pool_, logits_,
      drawn_;
  PagedKvView kv_;
  std::unique_ptr<TokenDrawer> drawer_;
};

}  // namespace

Status BenchRows(BenchRig& rig, BenchPart part) { return RowsBench(rig, part).Run(); }

}  // namespace aisp::cuda
