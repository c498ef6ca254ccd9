// Operations on the paged pool that ops_test.cc does not cover: FP8 pools, latent attention,
// rotation and attention together. Each is compared with the CPU's on the same, quantised,
// operands.
#include "tests/kernels/cuda/gpu_ops.h"

namespace aisp {
namespace {

using GpuPagedParity = GpuOps;

// ---- a paged pool and a batch over it ----

struct Sequence {
  int32_t rows, context;
};

class PagedRig {
 public:
  PagedRig(CudaBackend& gpu, Stream& stream, const std::vector<Sequence>& sequences,
           int32_t block_tokens, int32_t padding_rows)
      : block_tokens_(block_tokens) {
    int32_t rows = padding_rows, blocks = 0;
    for (const Sequence& s : sequences) {
      rows += s.rows;
      blocks += (s.context + block_tokens - 1) / block_tokens;
    }
    num_blocks = blocks + 1;
    const auto make = [&](int64_t n) {
      return std::make_unique<TwinTensor>(*gpu.device, stream, DType::kI32,
                                          std::initializer_list<int64_t>{n});
    };
    positions_ = make(rows), slots_ = make(rows), tables_ = make(blocks);
    spans_ = make(static_cast<int64_t>(sequences.size()) * 4);
    int32_t row = 0, table = 0;
    for (const Sequence& s : sequences) {
      host_spans_.push_back({row, s.rows, s.context, table});
      for (int32_t i = 0; i < s.rows; ++i, ++row) {
        const int32_t p = s.context - s.rows + i;
        positions_->host.as<int32_t>()[row] = p;
        slots_->host.as<int32_t>()[row] =
            (blocks - (table + p / block_tokens)) * block_tokens + p % block_tokens;
      }
      for (int32_t b = 0; b < (s.context + block_tokens - 1) / block_tokens; ++b, ++table)
        tables_->host.as<int32_t>()[table] = blocks - table;
    }
    for (; row < rows; ++row) positions_->host.as<int32_t>()[row] = -1;
    std::memcpy(spans_->host.data, host_spans_.data(), host_spans_.size() * sizeof(RowSpan));
    positions_->Upload(), slots_->Upload(), tables_->Upload(), spans_->Upload();
    total_rows = rows;
  }

  RaggedBatch Batch(bool gpu, int32_t rows) const {
    const auto side = [&](const TwinTensor& t) { return (gpu ? t.gpu : t.host).data; };
    RaggedBatch b;
    b.rows = rows;
    b.num_sequences = static_cast<int32_t>(host_spans_.size());
    for (const RowSpan& span : host_spans_)
      b.longest_rows = std::max(b.longest_rows, span.num_rows);
    b.host_sequences = host_spans_;
    b.sequences = static_cast<const RowSpan*>(side(*spans_));
    b.positions = static_cast<const int32_t*>(side(*positions_));
    b.kv_slots = static_cast<const int32_t*>(side(*slots_));
    b.block_tables = static_cast<const int32_t*>(side(*tables_));
    return b;
  }
  PagedKvView Pool(void* data, DType dtype, int32_t kv_heads, int32_t dim) const {
    return {data, dtype, kv_heads, dim, block_tokens_, num_blocks};
  }

  int32_t total_rows = 0, num_blocks = 0;

 private:
  const int32_t block_tokens_;
  std::vector<RowSpan> host_spans_;
  std::unique_ptr<TwinTensor> positions_, slots_, tables_, spans_;
};

TEST_F(GpuPagedParity, RopeAppendInEveryFormatLeavesPaddingAlone) {
  for (const int32_t dim : {32, 64, 80, 128, 256}) {
    for (const DType kv : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
      for (const bool norms : {false, true}) {
        SCOPED_TRACE(testing::Message() << "dim " << dim << " " << DTypeName(kv) << norms);
        constexpr int32_t kHeads = 6, kKvHeads = 3, kPadding = 3;
        const PagedRig rig(gpu_, *stream_, {{5, 5}, {1, 33}, {20, 50}}, 16, kPadding);
        const int32_t rows = rig.total_rows;
        const int64_t width = int64_t{kHeads + 2 * kKvHeads} * dim;
        const int64_t elements = int64_t{rig.num_blocks} * kKvHeads * 2 * 16 * dim;
        const DType compute = kv == DType::kF32 ? DType::kF32 : DType::kBF16;
        TwinTensor qkv = Make(compute, {rows, width}), pool = Make(kv, {elements});
        TwinTensor cos_sin = Make(DType::kF32, {64, dim}), norm = Make(DType::kF32, {dim});
        qkv.Randomise(random_, 0.3f), cos_sin.Randomise(random_), norm.Randomise(random_);
        pool.Randomise(random_, 0.1f);
        std::vector<float> wide, wide_pool;
        const TensorView qkv32 = qkv.Widened(&wide), pool32 = pool.Widened(&wide_pool);
        const TensorView q_norm = norms ? norm.host : TensorView{};
        RopeAppendParams p;
        p.qkv = qkv32, p.cos_sin = cos_sin.host, p.q_norm = p.k_norm = q_norm;
        p.num_heads = kHeads;
        p.batch = rig.Batch(false, rows - kPadding);  // the CPU has no padding
        p.kv = rig.Pool(pool32.data, DType::kF32, kKvHeads, dim);
        ASSERT_TRUE(cpu_->RopeAppend(p, *host_stream_).has_value());
        p.qkv = qkv.gpu, p.cos_sin = cos_sin.gpu;
        if (norms) p.q_norm = p.k_norm = norm.gpu;
        p.batch = rig.Batch(true, rows);
        p.kv = rig.Pool(pool.gpu.data, kv, kKvHeads, dim);
        Done(gpu_.ops->RopeAppend(p, *stream_));
        for (int64_t i = 0; i < elements; ++i) pool.Set(i, wide_pool[static_cast<size_t>(i)]);
        // The CPU rotated the queries in place, but not the keys and values.
        for (int64_t r = 0; r < rows - kPadding; ++r) {
          for (int64_t c = 0; c < int64_t{kHeads} * dim; ++c)
            qkv.Set(r * width + c, wide[static_cast<size_t>(r * width + c)]);
        }
        EXPECT_LT(pool.Error(), kv == DType::kF32 ? kF32 : kv == DType::kBF16 ? kBf16 : kQuantised);
        const std::vector<std::byte> got = qkv.Download();
        TensorView queries = qkv.host;
        queries.data = const_cast<std::byte*>(got.data());
        double difference = 0, magnitude = 0;
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < int64_t{kHeads} * dim; ++c) {
            const double a = TwinTensor::Get(qkv.host, r * width + c);
            const double b = TwinTensor::Get(queries, r * width + c);
            difference += (a - b) * (a - b), magnitude += a * a;
          }
        }
        EXPECT_LT(std::sqrt(difference / magnitude), compute == DType::kF32 ? kF32 : kBf16);
      }
    }
  }
}

TEST_F(GpuPagedParity, AttentionOverPoolsOfEveryFormat) {
  struct Case {
    int32_t heads, kv_heads, dim, block_tokens, window;
    float deviation;  // of keys and values: small ones are subnormal in e4m3
    std::vector<Sequence> sequences;
  };
  const std::vector<Case> cases = {
      {4, 2, 64, 16, 0, 1, {{1, 1}, {1, 40}, {1, 517}}},
      {4, 2, 64, 16, 0, 0.01f, {{1, 40}, {1, 517}}},
      {4, 2, 64, 16, 0, 0.01f, {{40, 40}, {200, 200}}},
      {8, 2, 128, 16, 0, 0.02f, {{33, 300}, {1, 77}, {130, 130}}},
      {32, 8, 128, 64, 0, 1, {{256, 256}, {1, 333}, {70, 900}}},
      {8, 1, 64, 64, 24, 0.3f, {{70, 140}, {1, 99}, {2, 50}}},
      {6, 3, 80, 32, 0, 1, {{33, 33}, {1, 7}}},
      {16, 2, 256, 128, 100, 0.3f, {{150, 300}, {1, 260}}},
      {8, 8, 32, 16, 0, 1, {{3, 3}, {1, 65}}},
  };
  for (const Case& c : cases) {
    for (const DType kv : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
      const DType compute = kv == DType::kF32 ? DType::kF32 : DType::kBF16;
      SCOPED_TRACE(testing::Message() << c.heads << "/" << c.kv_heads << " heads of " << c.dim
                                      << " " << DTypeName(kv) << " deviation " << c.deviation);
      const PagedRig rig(gpu_, *stream_, c.sequences, c.block_tokens, 0);
      const int32_t rows = rig.total_rows;
      const int64_t width = int64_t{c.heads} * c.dim;
      TwinTensor pool =
          Make(kv, {int64_t{rig.num_blocks} * c.kv_heads * 2 * c.block_tokens * c.dim});
      pool.Randomise(random_, c.deviation);
      TwinTensor q = Make(compute, {rows, width}), out = Make(compute, {rows, width});
      q.Randomise(random_, 1 / c.deviation), out.Poison();
      std::vector<float> wide_pool, wide_q, wide_out(static_cast<size_t>(rows * width));
      AttentionParams p;
      p.q = q.Widened(&wide_q);
      p.q_head_dim = p.v_head_dim = c.dim;
      p.num_heads = c.heads;
      p.scale = 1 / std::sqrt(static_cast<float>(c.dim));
      p.window = c.window;
      p.batch = rig.Batch(false, rows);
      p.kv = rig.Pool(pool.Widened(&wide_pool).data, DType::kF32, c.kv_heads, c.dim);
      p.out = TensorView::Dense(wide_out.data(), DType::kF32, {rows, width});
      ASSERT_TRUE(cpu_->PagedAttention(p, *host_stream_).has_value());
      for (int64_t i = 0; i < rows * width; ++i) out.Set(i, wide_out[static_cast<size_t>(i)]);
      p.q = q.gpu, p.batch = rig.Batch(true, rows), p.out = out.gpu;
      p.kv = rig.Pool(pool.gpu.data, kv, c.kv_heads, c.dim);
      Done(gpu_.ops->PagedAttention(p, *stream_));
      const double limit = kv == DType::kF32 ? kF32 : kv == DType::kBF16 ? kBf16 : kQuantised;
      EXPECT_LT(out.Error(), limit);
    }
  }
}

class GpuPagedTogether : public GpuPagedParity {
 protected:
  static constexpr int32_t kHeads = 8, kKvHeads = 2, kDim = 128, kBlock = 64;

  // A programme of both nodes on the GPU, for a batch with one pool.
  void RunTogether(const RopeAppendParams& rope, const AttentionParams& attention,
                   int32_t sequences, int32_t rows) {
    ProgrammeBuilder b;
    b.SetLayer(0);
    RopeAppendParams rope_node = rope;
    AttentionParams attend_node = attention;
    rope_node.batch = attend_node.batch = {};
    b.Attend(b.RopeAppend(b.Given(rope.qkv), rope_node), attend_node);
    Programme programme = b.Finish();
    ASSERT_TRUE(programme.BindKv(std::span(&attention.kv, 1)).has_value());
    Bucket bucket;
    bucket.sequences = sequences;
    bucket.rows = rows;
    bucket.rows_per_sequence = attention.batch.longest_rows;
    bucket.mode = attention.batch.longest_rows <= 1 ? StepMode::kDecode : StepMode::kMixed;
    StepInputs inputs;
    inputs.batch = attention.batch;
    RunOnGpu(programme, bucket, inputs);
  }

  void Run(const std::vector<Sequence>& sequences, DType kv, bool norms) {
    const PagedRig rig(gpu_, *stream_, sequences, kBlock, 0);
    const int32_t rows = rig.total_rows;
    const int64_t qkv_width = int64_t{kHeads + 2 * kKvHeads} * kDim;
    const int64_t width = int64_t{kHeads} * kDim;
    TwinTensor pool = Make(kv, {int64_t{rig.num_blocks} * kKvHeads * 2 * kBlock * kDim});
    TwinTensor qkv = Make(DType::kBF16, {rows, qkv_width}), out = Make(DType::kBF16, {rows, width});
    TwinTensor cos_sin = Make(DType::kF32, {2048, kDim}), norm = Make(DType::kF32, {kDim});
    pool.Randomise(random_), qkv.Randomise(random_), norm.Randomise(random_);
    std::uniform_real_distribution<float> angle(0, 6.28f);
    for (int64_t i = 0; i < 2048; ++i) {
      for (int64_t j = 0; j < kDim / 2; ++j) {
        const float a = angle(random_);
        cos_sin.Set(i * kDim + j, std::cos(a));
        cos_sin.Set(i * kDim + kDim / 2 + j, std::sin(a));
      }
    }
    cos_sin.Upload(), out.Poison();
    std::vector<float> wide_pool, wide_qkv, wide_out(static_cast<size_t>(rows * width));
    RopeAppendParams rope;
    rope.qkv = qkv.Widened(&wide_qkv), rope.cos_sin = cos_sin.host;
    if (norms) rope.q_norm = rope.k_norm = norm.host;
    rope.num_heads = kHeads, rope.batch = rig.Batch(false, rows);
    rope.kv = rig.Pool(pool.Widened(&wide_pool).data, DType::kF32, kKvHeads, kDim);
    ASSERT_TRUE(cpu_->RopeAppend(rope, *host_stream_).has_value());
    // Attention reads the pool in its stored precision.
    for (float& v : wide_pool) v = kv == DType::kBF16 ? FromBf16(ToBf16(v)) : FromE4M3(ToE4M3(v));
    AttentionParams p;
    p.q = rope.qkv, p.q_head_dim = p.v_head_dim = kDim, p.num_heads = kHeads;
    p.scale = 0.088f, p.batch = rope.batch, p.kv = rope.kv;
    p.out = TensorView::Dense(wide_out.data(), DType::kF32, {rows, width});
    ASSERT_TRUE(cpu_->PagedAttention(p, *host_stream_).has_value());
    for (int64_t i = 0; i < rows * width; ++i) out.Set(i, wide_out[static_cast<size_t>(i)]);
    rope.qkv = qkv.gpu, rope.cos_sin = cos_sin.gpu;
    if (norms) rope.q_norm = rope.k_norm = norm.gpu;
    rope.batch = p.batch = rig.Batch(true, rows);
    rope.kv = p.kv = rig.Pool(pool.gpu.data, kv, kKvHeads, kDim);
    p.q = qkv.gpu, p.q.shape[1] = width, p.out = out.gpu;
    RunTogether(rope, p, static_cast<int32_t>(sequences.size()), rows);
    EXPECT_LT(out.Error(), kBf16);
    for (int64_t i = 0; i < pool.host.elements(); ++i)
      pool.Set(i, wide_pool[static_cast<size_t>(i)]);
    EXPECT_LT(pool.Error(), kv == DType::kBF16 ? kBf16 : kQuantised);
  }
};

TEST_F(GpuPagedTogether, RopeAndAttentionAreOneAfterTheOther) {
  for (const std::vector<Sequence>& sequences : {std::vector<Sequence>{{1, 1}, {1, 40}, {1, 300}},
                                                 {{1, 2000}},
                                                 {{5, 17}, {1, 40}, {80, 80}}}) {
    for (const DType kv : {DType::kBF16, DType::kF8E4M3}) {
      for (const bool norms : {false, true}) {
        SCOPED_TRACE(testing::Message() << sequences.size() << DTypeName(kv) << norms);
        Run(sequences, kv, norms);
      }
    }
  }
}

TEST_F(GpuPagedParity, LatentAppendAndItsAttention) {
  constexpr int32_t kHeads = 4, kNope = 32, kRope = 16, kValue = 32, kDim = 48;
  const PagedRig rig(gpu_, *stream_, {{40, 40}, {9, 9}, {1, 1}}, 16, 0);
  const int32_t rows = rig.total_rows;
  for (const DType kv : {DType::kF32, DType::kBF16}) {
    TwinTensor q = Make(DType::kF32, {rows, kHeads * (kNope + kRope)});
    TwinTensor latent = Make(DType::kF32, {rows, kHeads * (kNope + kValue)});
    TwinTensor k_rope = Make(DType::kF32, {rows, kRope + 5});
    TwinTensor cos_sin = Make(DType::kF32, {64, kRope});
    TwinTensor pool = Make(kv, {int64_t{rig.num_blocks} * kHeads * 2 * 16 * kDim});
    q.Randomise(random_), latent.Randomise(random_), k_rope.Randomise(random_);
    cos_sin.Randomise(random_);
    std::vector<float> wide_pool;
    LatentAppendParams p;
    p.num_heads = kHeads, p.nope_dim = kNope, p.rope_dim = kRope, p.v_dim = kValue;
    p.q = q.host, p.kv = latent.host, p.k_rope = k_rope.host, p.cos_sin = cos_sin.host;
    p.batch = rig.Batch(false, rows);
    p.pool = rig.Pool(pool.Widened(&wide_pool).data, DType::kF32, kHeads, kDim);
    ASSERT_TRUE(cpu_->LatentAppend(p, *host_stream_).has_value());
    p.q = q.gpu, p.kv = latent.gpu, p.k_rope = k_rope.gpu, p.cos_sin = cos_sin.gpu;
    p.batch = rig.Batch(true, rows);
    p.pool = rig.Pool(pool.gpu.data, kv, kHeads, kDim);
    Done(gpu_.ops->LatentAppend(p, *stream_));
    EXPECT_LT(q.Error(), kF32);
    for (int64_t i = 0; i < pool.host.elements(); ++i)
      pool.Set(i, wide_pool[static_cast<size_t>(i)]);
    EXPECT_LT(pool.Error(), kv == DType::kF32 ? kF32 : kBf16);

    pool.Upload();
    TwinTensor out = Make(DType::kF32, {rows, kHeads * kValue});
    out.Poison();
    AttentionParams a;
    a.q = q.host, a.q_head_dim = kNope + kRope, a.v_head_dim = kValue, a.num_heads = kHeads;
    a.scale = 0.2f, a.batch = rig.Batch(false, rows), a.out = out.host;
    a.kv = rig.Pool(pool.Widened(&wide_pool).data, DType::kF32, kHeads, kDim);
    ASSERT_TRUE(cpu_->PagedAttention(a, *host_stream_).has_value());
    q.Upload();
    a.q = q.gpu, a.batch = p.batch, a.out = out.gpu, a.kv = p.pool;
    Done(gpu_.ops->PagedAttention(a, *stream_));
    EXPECT_LT(out.Error(), kv == DType::kF32 ? kF32 : kBf16);
  }
}

}  // namespace
}  // namespace aisp
