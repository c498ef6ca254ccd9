// Attention over the paged pool: decode compared with the bytes of keys and values, prefill with
// the products under the causal mask.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include "bench/cuda/kernels/rig.h"
#include "kernels/cuda/attention/attention.h"

namespace aisp::cuda {
namespace {

constexpr size_t kRotatedBytes = size_t{512} << 20;
constexpr int64_t kLongKeys = 65536;  // AttentionBatch::long_contexts

struct Load {
  const char* op;
  int32_t sequences, rows, context;  // rows: per sequence
  DType kv;
  StepKind kind;
};

const char* FormatOf(const Load& load) { return load.kv == DType::kBF16 ? "bf16 kv" : "fp8 kv"; }

class AttentionBench {
 public:
  explicit AttentionBench(BenchRig& rig) : rig_(rig), o_(rig.options()) {}

  // As the engine runs it: decode with RoPE and append in the same launch, if there is a kernel for
  // that.
  Result<KernelTiming> Measure(const Load& load) {
    AISP_RETURN_IF_ERROR(Prepare(load));
    KernelTiming timing{load.op, FormatOf(load),
                        fmt::format("{} x {}", load.sequences, load.context)};
    timing.kernel = attention_->Describe();
    if (load.kind != StepKind::kDecode) {
      AISP_ASSIGN_OR_RETURN(timing.us, Alone(4, load));
      return timing;
    }
    AISP_ASSIGN_OR_RETURN(const auto in_one, WithRope(load));
    if (in_one) {
      timing.us = *in_one;
      timing.kernel = "with rope and append; " + timing.kernel;
    } else {
      AISP_ASSIGN_OR_RETURN(timing.us, Alone(16, load));
    }
    return timing;
  }

  // The plan kernel, which a step runs once for all layers.
  Result<KernelTiming> MeasurePlan(const Load& load) {
    AISP_RETURN_IF_ERROR(Prepare(load));
    KernelTiming timing{"attention plan", "-",
                        fmt::format("{} x {}", load.sequences, load.context)};
    AISP_ASSIGN_OR_RETURN(timing.us, rig_.CallUs(32, [&](int) {
      return attention_->PlanStep(batch_, load.kind, workspace_.data(), rig_.stream().handle);
    }));
    return timing;
  }

  void Add(const Load& load, KernelTiming timing) {
    const double sequences = load.sequences, rows = load.rows, context = load.context;
    const double bytes = 2.0 * sequences * context * o_.num_kv_heads * o_.head_dim *
                             static_cast<double>(DTypeBytes(load.kv)) +
                         4.0 * sequences * rows * o_.num_heads * o_.head_dim;
    const double keys = context - rows + (rows + 1) / 2;  // mean over rows
    const double flops = 4.0 * sequences * rows * keys * o_.num_heads * o_.head_dim;
    rig_.Add(std::move(timing), bytes, flops, rig_.limits().bf16_flops_per_s);
  }

 private:
  AttentionCall CallOf(const Load& load, int turn) {
    AttentionCall call;
    call.q = q_.data();
    call.out = out_.data();
    call.q_row_stride = call.out_row_stride = int64_t{o_.num_heads} * o_.head_dim;
    call.layer = &layers_[static_cast<size_t>(turn) % layers_.size()];
    call.k_scale = call.v_scale = load.kv == DType::kBF16 ? 1.0f : 1.0f / 128;
    return call;
  }

  Result<double> Alone(int least_calls, const Load& load) {
    return rig_.CallUs(std::max(least_calls, static_cast<int>(layers_.size())), [&](int i) {
      return attention_->Run(batch_, load.kind, CallOf(load, i), workspace_.data(),
                             rig_.stream().handle);
    });
  }

  // Empty if there is no such kernel.
  Result<std::optional<double>> WithRope(const Load& load) {
    AISP_RETURN_IF_ERROR(PrepareRope(load));
    RopeAppendCall rope;
    rope.qkv = qkv_.data();
    rope.qkv_type = DType::kBF16;
    rope.qkv_row_stride = int64_t{o_.num_heads + 2 * o_.num_kv_heads} * o_.head_dim;
    rope.cos_sin = static_cast<const float*>(cos_sin_.data());
    if (o_.qk_norm) rope.q_norm = rope.k_norm = rope.cos_sin;
    rope.rows = load.sequences;
    rope.num_heads = o_.num_heads;
    rope.positions = static_cast<const int32_t*>(positions_.data());
    rope.kv_slots = static_cast<const int32_t*>(slots_.data());
    const auto run = [&](int i) {
      return attention_->RunDecode(batch_, rope, CallOf(load, i), workspace_.data(),
                                   rig_.stream().handle);
    };
    AttentionCall first = CallOf(load, 0);
    AISP_ASSIGN_OR_RETURN(first.after_plan,
                          attention_->PlanDecode(batch_, rope.positions, rope.rows,
                                                 workspace_.data(), rig_.stream().handle));
    if (const Status there =
            attention_->RunDecode(batch_, rope, first, workspace_.data(), rig_.stream().handle);
        !there && there.error().code == Code::kUnimplemented) {
      return std::nullopt;
    }
    return rig_.CallUs(std::max(16, static_cast<int>(layers_.size())), run);
  }

  // The last token of each sequence is appended.
  Status PrepareRope(const Load& load) {
    std::vector<int32_t> positions(static_cast<size_t>(load.sequences), load.context - 1), slots;
    const int32_t blocks_each = (load.context + o_.block_tokens - 1) / o_.block_tokens;
    for (int32_t s = 0; s < load.sequences; ++s) {
      const int32_t block = host_tables_[static_cast<size_t>((s + 1) * blocks_each - 1)];
      slots.push_back(block * o_.block_tokens + (load.context - 1) % o_.block_tokens);
    }
    AISP_ASSIGN_OR_RETURN(positions_,
                          rig_.Upload(positions.data(), positions.size() * sizeof(int32_t)));
    AISP_ASSIGN_OR_RETURN(slots_, rig_.Upload(slots.data(), slots.size() * sizeof(int32_t)));
    const size_t width =
        static_cast<size_t>(o_.num_heads + 2 * o_.num_kv_heads) * static_cast<size_t>(o_.head_dim);
    AISP_ASSIGN_OR_RETURN(
        qkv_, rig_.Random(static_cast<size_t>(load.sequences) * width, DType::kBF16, 7));
    AISP_ASSIGN_OR_RETURN(
        cos_sin_, rig_.Random(static_cast<size_t>(load.context) * static_cast<size_t>(o_.head_dim),
                              DType::kF32, 8));
    batch_.long_contexts = int64_t{load.sequences} * load.context >= kLongKeys;
    return {};
  }

  Status Prepare(const Load& load) {
    AttentionConfig config;
    config.num_heads = o_.num_heads;
    config.num_kv_heads = o_.num_kv_heads;
    config.head_dim = o_.head_dim;
    config.block_tokens = o_.block_tokens;
    config.kv = load.kv;
    config.scale = 1.0f / std::sqrt(static_cast<float>(o_.head_dim));
    config.window = o_.window;
    config.max_sequences = load.sequences;
    config.max_rows = load.sequences * load.rows;
    AISP_ASSIGN_OR_RETURN(attention_, Attention::Create(config));

    const int32_t blocks_each = (load.context + o_.block_tokens - 1) / o_.block_tokens;
    std::vector<RowSpan> spans;
    spans.reserve(static_cast<size_t>(load.sequences));
    for (int32_t s = 0; s < load.sequences; ++s)
      spans.push_back({s * load.rows, load.rows, load.context, s * blocks_each});
    std::vector<int32_t>& tables = host_tables_;
    tables.resize(static_cast<size_t>(load.sequences) * static_cast<size_t>(blocks_each));
    std::iota(tables.begin(), tables.end(), 0);
    std::shuffle(tables.begin(), tables.end(), std::mt19937(3));

    const size_t layer_elements = tables.size() * static_cast<size_t>(o_.block_tokens) *
                                  static_cast<size_t>(o_.head_dim) *
                                  static_cast<size_t>(o_.num_kv_heads) * 2;
    const size_t layer_bytes = layer_elements * DTypeBytes(load.kv);
    const size_t count = std::clamp<size_t>(kRotatedBytes / layer_bytes, 1, 64);
    const size_t q_elements =
        static_cast<size_t>(config.max_rows) * static_cast<size_t>(o_.num_heads * o_.head_dim);
    pool_ = {};
    AISP_ASSIGN_OR_RETURN(pool_, rig_.Random(layer_elements * count, load.kv, 5));
    AISP_ASSIGN_OR_RETURN(q_, rig_.Random(q_elements, DType::kBF16, 6));
    AISP_ASSIGN_OR_RETURN(out_, rig_.Allocate(q_elements * 2));
    AISP_ASSIGN_OR_RETURN(spans_, rig_.Upload(spans.data(), spans.size() * sizeof(RowSpan)));
    AISP_ASSIGN_OR_RETURN(tables_, rig_.Upload(tables.data(), tables.size() * sizeof(int32_t)));
    AISP_ASSIGN_OR_RETURN(workspace_,
                          rig_.Allocate(std::max<size_t>(attention_->workspace_bytes(), 256)));
    batch_ = {static_cast<const RowSpan*>(spans_.data()),
              static_cast<const int32_t*>(tables_.data()), load.sequences, false};
    layers_.clear();
    for (size_t l = 0; l < count; ++l) {
      AISP_ASSIGN_OR_RETURN(
          layers_.emplace_back(),
          attention_->MakeLayer(static_cast<std::byte*>(pool_.data()) + l * layer_bytes,
                                static_cast<int64_t>(tables.size())));
    }
    AISP_RETURN_IF_ERROR(attention_->ZeroWorkspace(workspace_.data(), rig_.stream().handle));
    return attention_->PlanStep(batch_, load.kind, workspace_.data(), rig_.stream().handle);
  }

  BenchRig& rig_;
  const KernelBenchOptions& o_;
  std::unique_ptr<Attention> attention_;
  Buffer pool_, q_, out_, spans_, tables_, workspace_;
  Buffer qkv_, cos_sin_, positions_, slots_;
  std::vector<int32_t> host_tables_;
  AttentionBatch batch_;
  std::vector<KvLayer> layers_;
};

}  // namespace

namespace {

std::vector<Load> LoadsOf(BenchPart part, const KernelBenchOptions& o) {
  std::vector<Load> loads;
  for (const DType kv : {DType::kBF16, DType::kF8E4M3}) {
    if (part == BenchPart::kFewRows) {
      for (const auto& [sequences, context] :
           {std::pair{1, 1024}, {8, 1024}, {32, 1024}, {128, 1024}, {1, 8192}, {32, 8192}}) {
        loads.push_back({"decode attention", sequences, 1, context, kv, StepKind::kDecode});
      }
    } else {
      for (const int32_t tokens : o.prefills)
        loads.push_back({"prefill attention", 1, tokens, tokens, kv, StepKind::kPrefill});
    }
  }
  return loads;
}

}  // namespace

Status BenchAttention(BenchRig& rig, BenchPart part, std::vector<PrefillParts>* prefills) {
  AttentionBench bench(rig);
  for (const Load& load : LoadsOf(part, rig.options())) {
    if (rig.Wants(load.op) && rig.WantsFormat(FormatOf(load))) {
      AISP_ASSIGN_OR_RETURN(KernelTiming timing, bench.Measure(load));
      if (load.kind == StepKind::kPrefill) {
        for (PrefillParts& p : *prefills) {
          if (p.tokens == load.rows && p.attention_ms == 0)
            p.attention_ms = rig.options().layers * timing.us * 1e-3;
        }
      }
      bench.Add(load, std::move(timing));
    }
    // The plan of single-launch decode is not timed.
    if (load.kind == StepKind::kPrefill && load.kv == DType::kBF16 && rig.Wants("attention plan")) {
      AISP_ASSIGN_OR_RETURN(KernelTiming timing, bench.MeasurePlan(load));
      rig.Add(std::move(timing), 0, 0, 1);
    }
  }
  return {};
}

}  // namespace aisp::cuda
