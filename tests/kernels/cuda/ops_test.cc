// Every operation on the GPU against the same one on the CPU, on fresh random inputs of odd shapes.
#include <functional>

#include "tests/kernels/cuda/gpu_ops.h"

namespace aisp {
namespace {

TEST_F(GpuOps, LinearStoresAndAccumulates) {
  struct Shape {
    int64_t n, k;
    int32_t rows;
  };
  for (const Shape s :
       {Shape{17, 33, 1}, {96, 64, 7}, {768, 256, 33}, {130, 520, 130}, {64, 8, 300}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAccumulate}) {
        SCOPED_TRACE(testing::Message()
                     << s.n << "x" << s.k << ", " << s.rows << " rows, " << DTypeName(dtype));
        TwinTensor w1 = Make(DType::kF32, {s.n, s.k}), w2 = Make(DType::kF32, {3, s.k});
        w1.Randomise(random_), w2.Randomise(random_);
        TwinTensor bias = Make(DType::kF32, {s.n});
        bias.Randomise(random_);
        const TensorView parts[] = {w1.host, w2.host};
        const TensorView biases[] = {bias.host, TensorView{}};
        const int64_t capacity = std::max(cpu_->RowCapacity(s.rows), gpu_.ops->RowCapacity(s.rows));
        TwinTensor x = Make(dtype, {capacity, s.k}), y = Make(DType::kF32, {capacity, s.n + 3});
        x.Randomise(random_);
        if (epilogue == Epilogue::kAccumulate) {
          y.Randomise(random_);
        } else {
          y.Poison();
        }
        LinearSource source{parts, biases, dtype, epilogue};
        auto on_gpu = gpu_.ops->PackLinear(source);
        ASSERT_TRUE(on_gpu.has_value()) << on_gpu.error().message;
        // The CPU uses f32 whatever the GPU uses: a reference of higher precision.
        source.compute_dtype = DType::kF32;
        auto on_cpu = cpu_->PackLinear(source);
        ASSERT_TRUE(on_cpu.has_value());
        std::vector<float> wide(static_cast<size_t>(x.host.elements()));
        for (size_t i = 0; i < wide.size(); ++i)
          wide[i] = TwinTensor::Get(x.host, static_cast<int64_t>(i));
        const TensorView x32 = TensorView::Dense(wide.data(), DType::kF32, {capacity, s.k});
        ASSERT_TRUE(cpu_->Linear({on_cpu->get(), x32, y.host, s.rows}, *host_stream_).has_value());
        Done(gpu_.ops->Linear({on_gpu->get(), x.gpu, y.gpu, s.rows}, *stream_));
        EXPECT_LT(y.Error(s.rows * (s.n + 3)), dtype == DType::kF32 ? kF32 : kBf16);
      }
    }
  }
}

TEST_F(GpuOps, GatedSiluIsItsParts) {
  if (!gpu_.ops->Fuses(Epilogue::kGatedSilu, DType::kBF16)) GTEST_SKIP() << "not fused";
  for (const int32_t rows : {1, 5, 64, 200}) {
    constexpr int64_t n = 328, k = 264;
    TwinTensor gate = Make(DType::kF32, {n, k}), up = Make(DType::kF32, {n, k});
    gate.Randomise(random_, 0.06f), up.Randomise(random_, 0.06f);
    const TensorView parts[] = {gate.host, up.host};
    const int64_t capacity = std::max(cpu_->RowCapacity(rows), gpu_.ops->RowCapacity(rows));
    TwinTensor x = Make(DType::kBF16, {capacity, k}), y = Make(DType::kBF16, {capacity, n});
    x.Randomise(random_), y.Poison();
    LinearSource source{parts, {}, DType::kBF16, Epilogue::kGatedSilu, DType::kBF16};
    auto fused = gpu_.ops->PackLinear(source);
    ASSERT_TRUE(fused.has_value()) << fused.error().message;
    auto plain = cpu_->PackLinear({parts, {}, DType::kF32, Epilogue::kStore});
    std::vector<float> wide(static_cast<size_t>(x.host.elements()));
    for (size_t i = 0; i < wide.size(); ++i)
      wide[i] = TwinTensor::Get(x.host, static_cast<int64_t>(i));
    std::vector<float> both(static_cast<size_t>(capacity * 2 * n));
    const TensorView x32 = TensorView::Dense(wide.data(), DType::kF32, {capacity, k});
    const TensorView both32 = TensorView::Dense(both.data(), DType::kF32, {capacity, 2 * n});
    ASSERT_TRUE(cpu_->Linear({plain->get(), x32, both32, rows}, *host_stream_).has_value());
    ASSERT_TRUE(cpu_->SiluMul({both32, y.host, rows}, *host_stream_).has_value());
    Done(gpu_.ops->Linear({fused->get(), x.gpu, y.gpu, rows}, *stream_));
    EXPECT_LT(y.Error(rows * n), kBf16) << rows;
  }
}

TEST_F(GpuOps, RmsNorm) {
  for (const int64_t dim : {33, 64, 1000, 4096, 7168, 20000}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      TwinTensor x = Make(DType::kF32, {5, dim}), w = Make(DType::kF32, {dim}),
                 y = Make(dtype, {3, dim});
      x.Randomise(random_), w.Randomise(random_), y.Poison();
      TwinTensor rows = Make(DType::kI32, {3});
      for (int i = 0; i < 3; ++i) rows.host.as<int32_t>()[i] = 4 - 2 * i;
      rows.Upload();
      ASSERT_TRUE(
          cpu_->RmsNorm({x.host, rows.host.as<int32_t>(), w.host, y.host, 3, 1e-5f}, *host_stream_)
              .has_value());
      Done(gpu_.ops->RmsNorm({x.gpu, rows.gpu.as<int32_t>(), w.gpu, y.gpu, 3, 1e-5f}, *stream_));
      EXPECT_LT(y.Error(), dtype == DType::kF32 ? kF32 : kBf16) << dim;
    }
  }
}

class GpuEmbedding : public GpuOps, public testing::WithParamInterface<int64_t> {};
INSTANTIATE_TEST_SUITE_P(OddAndEven, GpuEmbedding, testing::Values(37, 64, 1536));

TEST_P(GpuEmbedding, ReadsTokensAndSlots) {
  const int64_t dim = GetParam();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    TwinTensor table = Make(dtype, {50, dim}), hidden = Make(DType::kF32, {4, dim});
    table.Randomise(random_), hidden.Poison();
    TwinTensor tokens = Make(DType::kI32, {4}), slots = Make(DType::kI32, {4}),
               last = Make(DType::kI32, {3});
    for (int i = 0; i < 4; ++i) {
      tokens.host.as<int32_t>()[i] = i == 2 ? -1 : i * 11;
      slots.host.as<int32_t>()[i] = i % 3;
      if (i < 3) last.host.as<int32_t>()[i] = 40 + i;
    }
    tokens.Upload(), slots.Upload(), last.Upload();
    const auto params = [&](auto side) {
      return EmbeddingParams{side(table),
                             side(tokens).template as<int32_t>(),
                             side(slots).template as<int32_t>(),
                             side(last).template as<int32_t>(),
                             4,
                             side(hidden),
                             {}};
    };
    ASSERT_TRUE(
        cpu_->Embedding(params([](TwinTensor& t) { return t.host; }), *host_stream_).has_value());
    Done(gpu_.ops->Embedding(params([](TwinTensor& t) { return t.gpu; }), *stream_));
    EXPECT_EQ(hidden.Error(), 0);
    // With the norm of the embedded rows.
    TwinTensor w = Make(DType::kF32, {dim});
    w.Randomise(random_);
    for (const DType out : {DType::kF32, DType::kBF16}) {
      TwinTensor y = Make(out, {4, dim});
      hidden.Poison(), y.Poison();
      const auto normed = [&](auto side) {
        EmbeddingParams p = params(side);
        p.norm = {side(hidden), nullptr, side(w), side(y), 4, 1e-5f};
        return p;
      };
      ASSERT_TRUE(
          cpu_->Embedding(normed([](TwinTensor& t) { return t.host; }), *host_stream_).has_value());
      Done(gpu_.ops->Embedding(normed([](TwinTensor& t) { return t.gpu; }), *stream_));
      EXPECT_EQ(hidden.Error(), 0);
      EXPECT_LT(y.Error(), out == DType::kF32 ? kF32 : kBf16) << dim;
    }
  }
}

struct PagedShape {
  int32_t heads, kv_heads, dim, block_tokens, window;
  std::vector<std::pair<int32_t, int32_t>> sequences;  // rows, context
};

// A batch of a paged pool's rows on both devices: whole contexts, or the last rows of each
// sequence.
struct PagedBatch {
  PagedBatch(const std::function<TwinTensor(int64_t)>& make, const PagedShape& s, bool whole,
             int32_t n, int32_t blocks)
      : rows(n),
        positions(make(n)),
        slots(make(n)),
        tables(make(blocks)),
        spans(make(static_cast<int64_t>(s.sequences.size()) * 4)) {
    int32_t row = 0, table = 0;
    for (const auto& [own_rows, context] : s.sequences) {
      const int32_t count = whole ? context : own_rows;
      host_spans.push_back({row, count, context, table});
      for (int32_t i = 0; i < count; ++i, ++row) {
        const int32_t p = context - count + i;
        positions.host.as<int32_t>()[row] = p;
        slots.host.as<int32_t>()[row] =
            (blocks - (table + p / s.block_tokens)) * s.block_tokens + p % s.block_tokens;
      }
      for (int32_t b = 0; b < (context + s.block_tokens - 1) / s.block_tokens; ++b, ++table)
        tables.host.as<int32_t>()[table] = blocks - table;
    }
    std::memcpy(spans.host.data, host_spans.data(), host_spans.size() * sizeof(RowSpan));
    positions.Upload(), slots.Upload(), tables.Upload(), spans.Upload();
  }
  RaggedBatch On(bool gpu) const {
    const auto side = [&](const TwinTensor& t) { return gpu ? t.gpu : t.host; };
    RaggedBatch b;
    b.rows = rows;
    b.num_sequences = static_cast<int32_t>(host_spans.size());
    for (const RowSpan& span : host_spans) b.longest_rows = std::max(b.longest_rows, span.num_rows);
    b.host_sequences = host_spans;
    b.sequences = reinterpret_cast<const RowSpan*>(side(spans).data);
    b.positions = side(positions).as<int32_t>();
    b.kv_slots = side(slots).as<int32_t>();
    b.block_tables = side(tables).as<int32_t>();
    return b;
  }

  int32_t rows;
  TwinTensor positions, slots, tables, spans;
  std::vector<RowSpan> host_spans;
};

class GpuPagedPool : public GpuOps {
 protected:
  void Run(const PagedShape& s, DType compute, DType kv) {
    int32_t total = 0, rows = 0, blocks = 0;
    for (const auto& [n, context] : s.sequences) {
      total += context, rows += n;
      blocks += (context + s.block_tokens - 1) / s.block_tokens;
    }
    TwinTensor pool = Make(kv, {blocks + 1, s.kv_heads, 2, int64_t{s.block_tokens} * s.dim});
    const PagedKvView kv_host{pool.host.data, kv, s.kv_heads, s.dim, s.block_tokens, blocks + 1};
    const auto make = [&](int64_t n) { return Make(DType::kI32, {n}); };
    const PagedBatch whole(make, s, true, total, blocks);
    Append(s, compute, whole, pool, kv_host);
    if (HasFatalFailure()) return;
    // From here on both read the same pool.
    pool.Upload();
    const PagedBatch last(make, s, false, rows, blocks);
    Attend(s, compute, last, pool, kv_host);
  }

 private:
  void Append(const PagedShape& s, DType compute, const PagedBatch& batch, TwinTensor& pool,
              const PagedKvView& kv_host) {
    TwinTensor cos_sin = Make(DType::kF32, {512, s.dim}), norm = Make(DType::kF32, {s.dim});
    cos_sin.Randomise(random_), norm.Randomise(random_);
    const int64_t width = (s.heads + 2 * s.kv_heads) * s.dim;
    std::vector<float> wide;
    TwinTensor qkv = Make(compute, {batch.rows, width});
    qkv.Randomise(random_);
    RopeAppendParams p{qkv.Widened(&wide), cos_sin.host, norm.host, norm.host, 1e-6f, s.heads,
                       batch.On(false),    kv_host};
    ASSERT_TRUE(cpu_->RopeAppend(p, *host_stream_).has_value());
    p.qkv = qkv.gpu, p.cos_sin = cos_sin.gpu, p.q_norm = p.k_norm = norm.gpu;
    p.batch = batch.On(true), p.kv.layer = pool.gpu.data;
    Done(gpu_.ops->RopeAppend(p, *stream_));
    EXPECT_LT(pool.Error(), kv_host.dtype == DType::kF32 ? kF32 : kBf16);
  }
  void Attend(const PagedShape& s, DType compute, const PagedBatch& batch, const TwinTensor& pool,
              const PagedKvView& kv_host) {
    const int64_t width = (s.heads + 2 * s.kv_heads) * s.dim;
    std::vector<float> wide;
    TwinTensor qkv = Make(compute, {batch.rows, width});
    qkv.Randomise(random_);
    TwinTensor out = Make(compute, {batch.rows, int64_t{s.heads} * s.dim});
    out.Poison();
    std::vector<float> out_wide(static_cast<size_t>(out.host.elements()));
    AttentionParams p{
        qkv.Widened(&wide),
        s.dim,
        s.dim,
        s.heads,
        0.1f,
        s.window,
        batch.On(false),
        kv_host,
        TensorView::Dense(out_wide.data(), DType::kF32, {batch.rows, int64_t{s.heads} * s.dim})};
    ASSERT_TRUE(cpu_->PagedAttention(p, *host_stream_).has_value());
    for (size_t i = 0; i < out_wide.size(); ++i) out.Set(static_cast<int64_t>(i), out_wide[i]);
    p.q = qkv.gpu, p.batch = batch.On(true), p.kv.layer = pool.gpu.data, p.out = out.gpu;
    Done(gpu_.ops->PagedAttention(p, *stream_));
    EXPECT_LT(out.Error(), compute == DType::kF32 ? kF32 : kBf16);
  }
};

// Appends whole contexts in one step, then attends with the last rows of each sequence.
TEST_F(GpuPagedPool, RopeAppendAndAttention) {
  const std::vector<PagedShape> shapes = {
      {4, 2, 32, 16, 0, {{1, 1}, {1, 40}, {5, 17}}},
      {4, 4, 80, 32, 0, {{33, 33}, {1, 7}}},
      {8, 2, 128, 16, 0, {{1, 300}, {1, 1}, {1, 77}}},
      {8, 1, 64, 64, 24, {{70, 140}, {1, 99}, {2, 50}}},
      {32, 8, 128, 16, 0, {{200, 500}, {1, 333}}},
  };
  for (const PagedShape& s : shapes) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(testing::Message()
                   << "heads " << s.heads << " dim " << s.dim << " " << DTypeName(type));
      Run(s, type, type);
    }
  }
}

TEST_F(GpuOps, SelectExpertsAndTheirMlps) {
  for (const bool grouped : {false, true}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      constexpr int32_t rows = 9, n = 24, top_k = 5;
      constexpr int64_t hidden = 72, intermediate = 40;
      TwinTensor logits = Make(DType::kF32, {rows, n}), bias = Make(DType::kF32, {n});
      logits.Randomise(random_, 2), bias.Randomise(random_, 0.1f);
      TwinTensor experts = Make(DType::kI32, {rows, top_k}),
                 weights = Make(DType::kF32, {rows, top_k});
      SelectExpertsParams p;
      p.score = grouped ? ExpertScore::kSigmoid : ExpertScore::kSoftmax;
      p.top_k = top_k, p.rows = rows, p.scale = 1.7f, p.normalise = grouped;
      p.num_groups = grouped ? 6 : 1, p.top_groups = grouped ? 3 : 1;
      const auto on = [&](auto side) {
        SelectExpertsParams q = p;
        q.logits = side(logits), q.experts = side(experts), q.weights = side(weights);
        if (grouped) q.correction_bias = side(bias);
        return q;
      };
      ASSERT_TRUE(
          cpu_->SelectExperts(on([](TwinTensor& t) { return t.host; }), *host_stream_).has_value());
      Done(gpu_.ops->SelectExperts(on([](TwinTensor& t) { return t.gpu; }), *stream_));
      const auto got = experts.Download();
      EXPECT_EQ(std::memcmp(got.data(), experts.host.data, experts.host.bytes()), 0);
      EXPECT_LT(weights.Error(), kF32);
      std::vector<TwinTensor> matrices;
      std::vector<ExpertsSource::Expert> list;
      for (int e = 0; e < n; ++e) {
        for (int m = 0; m < 3; ++m) {
          matrices.push_back(m < 2 ? Make(DType::kF32, {intermediate, hidden})
                                   : Make(DType::kF32, {hidden, intermediate}));
          matrices.back().Randomise(random_, 0.15f);
        }
      }
      for (size_t e = 0; e < n; ++e)
        list.push_back({matrices[3 * e].host, matrices[3 * e + 1].host, matrices[3 * e + 2].host});
      ExpertsSource source{list, dtype, 16, top_k};
      auto on_gpu = gpu_.ops->PackExperts(source);
      ASSERT_TRUE(on_gpu.has_value()) << on_gpu.error().message;
      source.compute_dtype = DType::kF32;
      auto on_cpu = cpu_->PackExperts(source);
      TwinTensor x = Make(dtype, {16, hidden}), y = Make(DType::kF32, {16, hidden});
      x.Randomise(random_), y.Randomise(random_);
      std::vector<float> wide(static_cast<size_t>(x.host.elements()));
      for (size_t i = 0; i < wide.size(); ++i)
        wide[i] = TwinTensor::Get(x.host, static_cast<int64_t>(i));
      const TensorView x32 = TensorView::Dense(wide.data(), DType::kF32, {16, hidden});
      experts.Upload(), weights.Upload();
      ASSERT_TRUE(cpu_->ExpertMlp({on_cpu->get(), x32, experts.host, weights.host, y.host, rows},
                                  *host_stream_)
                      .has_value());
      Done(gpu_.ops->ExpertMlp({on_gpu->get(), x.gpu, experts.gpu, weights.gpu, y.gpu, rows},
                               *stream_));
      EXPECT_LT(y.Error(rows * hidden), dtype == DType::kF32 ? kF32 : kBf16);
    }
  }
}

TEST_F(GpuOps, SiluMul) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    TwinTensor x = Make(DType::kF32, {3, 2 * 1037}), y = Make(dtype, {3, 1037});
    x.Randomise(random_, 3), y.Poison();
    ASSERT_TRUE(cpu_->SiluMul({x.host, y.host, 3}, *host_stream_).has_value());
    Done(gpu_.ops->SiluMul({x.gpu, y.gpu, 3}, *stream_));
    EXPECT_LT(y.Error(), dtype == DType::kF32 ? kF32 : kBf16);
  }
}

TEST_F(GpuOps, DeviceMemoryIsZeroedAndRangesAreCopied) {
  auto a = gpu_.device->Allocate(4096, MemoryKind::kShareable);
  ASSERT_TRUE(a.has_value());
  std::vector<uint8_t> bytes(4096, 7), back(4096, 9);
  const CopyRange ranges[] = {{0, 100, 10}, {50, 1000, 33}, {7, 4000, 96}};
  Done(gpu_.device->CopyRanges(a->data(), bytes.data(), ranges, *stream_));
  Done(gpu_.device->Copy(back.data(), a->data(), back.size(), *stream_));
  std::vector<uint8_t> want(4096, 0);
  for (const CopyRange& r : ranges)
    std::fill_n(want.begin() + static_cast<int64_t>(r.target_offset), r.bytes, 7);
  EXPECT_EQ(back, want);
  EXPECT_EQ(gpu_.device->Allocate(size_t{1} << 50, MemoryKind::kDevice).error().code,
            Code::kResourceExhausted);
  auto handle = gpu_.device->Export(*a);
  EXPECT_TRUE(handle.has_value()) << handle.error().message;
}

// More ranges than one launch takes, at odd offsets and lengths among aligned ones, between two
// device buffers.
TEST_F(GpuOps, ManyRangesArriveAndNothingElseChanges) {
  constexpr size_t kSource = size_t{8} << 20;
  std::vector<uint8_t> from(kSource);
  for (uint8_t& b : from) b = static_cast<uint8_t>(random_());
  auto source = gpu_.device->Allocate(kSource, MemoryKind::kDevice);
  ASSERT_TRUE(source.has_value());
  Done(gpu_.device->Copy(source->data(), from.data(), from.size(), *stream_));
  for (const int count : {8, 40, 300, 1500}) {
    std::vector<CopyRange> ranges;
    size_t end = 0;
    for (int i = 0; i < count; ++i) {
      const bool odd = i % 3 == 2;
      const size_t bytes = odd ? 1 + random_() % 5000 : 16 * (1 + random_() % 2000) + i % 2;
      const size_t begin = random_() % (kSource - bytes);
      end = odd ? end + 3 : (end + 31) / 16 * 16;
      ranges.push_back({odd ? begin : begin / 16 * 16, end, bytes});
      end += bytes;
    }
    std::vector<uint8_t> want(end + 100, 0xab), got(want.size());
    auto target = gpu_.device->Allocate(want.size(), MemoryKind::kDevice);
    ASSERT_TRUE(target.has_value());
    Done(gpu_.device->Copy(target->data(), want.data(), want.size(), *stream_));
    for (const CopyRange& r : ranges)
      std::memcpy(&want[r.target_offset], &from[r.source_offset], r.bytes);
    Done(gpu_.device->CopyRanges(target->data(), source->data(), ranges, *stream_));
    Done(gpu_.device->Copy(got.data(), target->data(), got.size(), *stream_));
    EXPECT_TRUE(got == want) << count;
  }
}

}  // namespace
}  // namespace aisp
