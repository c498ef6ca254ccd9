// Operations on rows that ops_test.cc does not cover: quantised weights, layers that run together,
// every setting of routing, copies of large host memory. Each is compared with the CPU's on the
// same, quantised, operands.
#include "tests/kernels/cuda/gpu_ops.h"

namespace aisp {
namespace {

using GpuParity = GpuOps;

constexpr float kE2M1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0, -0.5f, -1, -1.5f, -2, -3, -4, -6};

// A matrix of a quantised checkpoint, and its values.
struct StoredWeight {
  int64_t n, k;
  std::vector<uint8_t> codes, groups;
  std::vector<float> scales, values;
  PartScales part;
  TensorView view, values_view;
};

StoredWeight RandomStored(WeightFormat format, bool one_scale, int64_t n, int64_t k,
                          std::mt19937& random) {
  StoredWeight w;
  w.n = n, w.k = k;
  w.values.resize(static_cast<size_t>(n * k));
  std::uniform_real_distribution<float> some(0.005f, 0.02f);
  const auto at = [&](int64_t r, int64_t c) -> float& {
    return w.values[static_cast<size_t>(r * k + c)];
  };
  if (format == WeightFormat::kNvfp4) {
    w.codes.resize(static_cast<size_t>(n * k / 2));
    w.groups.resize(static_cast<size_t>(n * k / 16));
    for (uint8_t& c : w.codes) c = static_cast<uint8_t>(random());
    // From the subnormals of e4m3 up to 15.
    for (uint8_t& g : w.groups) g = static_cast<uint8_t>(1 + random() % 0x56);
    w.part.scale = some(random);
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t c = 0; c < k; ++c) {
        const uint8_t pair = w.codes[static_cast<size_t>((r * k + c) / 2)];
        at(r, c) = kE2M1[c % 2 == 0 ? pair & 15 : pair >> 4] *
                   FromE4M3(w.groups[static_cast<size_t>((r * k + c) / 16)]) * w.part.scale;
      }
    }
    w.part.group_scales = w.groups.data();
    w.view = TensorView::Dense(w.codes.data(), DType::kU8, {n, k / 2});
  } else {
    const bool block = format == WeightFormat::kFp8Block;
    const int64_t columns = (k + 127) / 128;
    w.codes.resize(static_cast<size_t>(n * k));
    for (uint8_t& c : w.codes)
      c = static_cast<uint8_t>((random() & 0x80) | random() % 0x58);  // up to 16, subnormals too
    w.scales.resize(static_cast<size_t>(block ? (n + 127) / 128 * columns : one_scale ? 1 : n));
    for (float& s : w.scales) s = some(random);
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t c = 0; c < k; ++c) {
        const int64_t scale = block ? r / 128 * columns + c / 128 : one_scale ? 0 : r;
        at(r, c) = FromE4M3(w.codes[static_cast<size_t>(r * k + c)]) *
                   w.scales[static_cast<size_t>(scale)];
      }
    }
    // Whoever reads the checkpoint spreads a part's single scale over its rows.
    if (one_scale && !block) w.scales.assign(static_cast<size_t>(n), w.scales[0]);
    w.part.scales = w.scales;
    w.view = TensorView::Dense(w.codes.data(), DType::kF8E4M3, {n, k});
  }
  w.values_view = TensorView::Dense(w.values.data(), DType::kF32, {n, k});
  return w;
}

class GpuQuantisedLinear : public GpuParity {
 protected:
  struct Shape {
    int64_t n1, n2, k;
  };
  // Blocks of scales must not straddle parts; gate and up have the same height.
  static std::vector<Shape> ShapesOf(WeightFormat format, Epilogue epilogue) {
    if (epilogue == Epilogue::kGatedSilu) return {{128, 128, 144}, {384, 384, 1040}};
    if (format == WeightFormat::kFp8Block) return {{128, 72, 144}, {256, 520, 1040}};
    return {{33, 64, 64}, {131, 72, 144}, {600, 57, 1040}};
  }

  // Two stacked parts; on the CPU in f32, gated ones before SiLU.
  struct Layer {
    std::unique_ptr<PackedLinear> gpu, cpu;
    DType output = DType::kF32;
    bool gated = false;
  };
  Result<Layer> Pack(WeightFormat format, Epilogue epilogue, const Shape& s) {
    const StoredWeight a = RandomStored(format, false, s.n1, s.k, random_);
    const StoredWeight b = RandomStored(format, true, s.n2, s.k, random_);
    const TensorView parts[] = {a.view, b.view}, values[] = {a.values_view, b.values_view};
    const PartScales scales[] = {a.part, b.part};
    TwinTensor bias = Make(DType::kF32, {s.n1});
    bias.Randomise(random_);
    const TensorView biases[] = {bias.host, TensorView{}};
    Layer layer;
    layer.gated = epilogue == Epilogue::kGatedSilu;
    LinearSource source{parts, biases, DType::kBF16, epilogue, DType::kF32};
    if (layer.gated) source.biases = {}, source.output_dtype = DType::kBF16;
    const LinearSource plain{values, source.biases, DType::kF32,
                             layer.gated ? Epilogue::kStore : epilogue};
    source.format = format, source.scales = scales;
    layer.output = source.output_dtype;
    AISP_ASSIGN_OR_RETURN(layer.gpu, gpu_.ops->PackLinear(source));
    AISP_ASSIGN_OR_RETURN(layer.cpu, cpu_->PackLinear(plain));
    return layer;
  }

  // |gpu - cpu| / |cpu| of a product of random rows.
  double Error(const Layer& layer, const Shape& s, Epilogue epilogue, int32_t rows) {
    const int64_t capacity = std::max(cpu_->RowCapacity(rows), gpu_.ops->RowCapacity(rows));
    const int64_t width = layer.gated ? s.n1 : s.n1 + s.n2;
    TwinTensor x = Make(DType::kBF16, {capacity, s.k});
    TwinTensor y = Make(layer.output, {capacity, width});
    x.Randomise(random_);
    if (epilogue == Epilogue::kAccumulate) {
      y.Randomise(random_);
    } else {
      y.Poison();
    }
    std::vector<float> wide;
    const TensorView x32 = x.Widened(&wide);
    if (layer.gated) {
      std::vector<float> both(static_cast<size_t>(capacity * 2 * width));
      const TensorView both32 = TensorView::Dense(both.data(), DType::kF32, {capacity, 2 * width});
      Done(cpu_->Linear({layer.cpu.get(), x32, both32, rows}, *host_stream_));
      Done(cpu_->SiluMul({both32, y.host, rows}, *host_stream_));
    } else {
      Done(cpu_->Linear({layer.cpu.get(), x32, y.host, rows}, *host_stream_));
    }
    Done(gpu_.ops->Linear({layer.gpu.get(), x.gpu, y.gpu, rows}, *stream_));
    return y.Error(rows * width);
  }
};

TEST_F(GpuQuantisedLinear, IsTheProductOfItsQuantisedOperands) {
  for (const WeightFormat format :
       {WeightFormat::kFp8, WeightFormat::kFp8Block, WeightFormat::kNvfp4}) {
    for (const Epilogue epilogue :
         {Epilogue::kStore, Epilogue::kAccumulate, Epilogue::kGatedSilu}) {
      for (const Shape& s : ShapesOf(format, epilogue)) {
        const auto layer = Pack(format, epilogue, s);
        ASSERT_TRUE(layer.has_value()) << layer.error().message;
        for (const int32_t rows : {1, 3, 17, 33, 64, 65, 130, 300}) {
          SCOPED_TRACE(testing::Message()
                       << "format " << int(format) << " epilogue " << int(epilogue) << " " << s.n1
                       << "+" << s.n2 << "x" << s.k << " rows " << rows);
          EXPECT_LT(Error(*layer, s, epilogue, rows),
                    format == WeightFormat::kFp8Block ? kQuantisedBlocks : kQuantised);
        }
      }
    }
  }
}

// o, then norm and gate+up, then down, then norm and qkv, as a layer runs them.
class GpuLinearLayers : public GpuParity {
 protected:
  static constexpr int64_t kHidden = 264, kMixed = 192, kInner = 520, kQkv = 296;

  using Packed = std::unique_ptr<PackedLinear>;
  struct Layers {
    Packed o, gate, down, qkv;
  };
  struct Weights {
    TwinTensor o, gate, up, down, qkv, norm;
  };
  Weights RandomWeights() {
    Weights w{Make(DType::kF32, {kHidden, kMixed}), Make(DType::kF32, {kInner, kHidden}),
              Make(DType::kF32, {kInner, kHidden}), Make(DType::kF32, {kHidden, kInner}),
              Make(DType::kF32, {kQkv, kHidden}),   Make(DType::kF32, {kHidden})};
    for (TwinTensor* each : {&w.o, &w.gate, &w.up, &w.down, &w.qkv}) {
      each->Randomise(random_, 0.06f);
      for (int64_t i = 0; i < each->host.elements(); ++i)
        each->Set(i, FromBf16(ToBf16(TwinTensor::Get(each->host, i))));
    }
    w.norm.Randomise(random_);
    return w;
  }
  // `gated`: gate and up with SiLU in one; otherwise a single layer.
  static Layers Pack(Ops& ops, const Weights& w, DType dtype, Epilogue gated) {
    const auto pack = [&](std::vector<TensorView> parts, Epilogue epilogue, DType output) {
      auto packed = ops.PackLinear({parts, {}, dtype, epilogue, output});
      AISP_CHECK_MSG(packed.has_value(), packed.error().message);
      return std::move(*packed);
    };
    return {pack({w.o.host}, Epilogue::kAccumulate, DType::kF32),
            pack({w.gate.host, w.up.host}, gated, dtype),
            pack({w.down.host}, Epilogue::kAccumulate, DType::kF32),
            pack({w.qkv.host}, Epilogue::kStore, dtype)};
  }

  // x, the residual, the intermediate results, and q, k and v.
  struct Rows {
    TwinTensor x, hidden, normed, inner, normed2, y;
  };
  void RunOnGpuTogether(const Layers& l, const TwinTensor& norm, const Rows& r, int32_t rows) {
    // The norms of rows after `rows` may have any value.
    ProgrammeBuilder b;
    b.GivenResidual(r.hidden.gpu);
    b.LinearAdd(b.Given(r.x.gpu), {l.o.get(), r.x.gpu, r.hidden.gpu}, "o");
    const RmsNormParams norm1{r.hidden.gpu, nullptr, norm.gpu, r.normed.gpu, 0, 1e-5f};
    const ValueId n_mlp = b.Norm(b.residual(), norm1);
    const ValueId activated = b.Linear(n_mlp, {l.gate.get(), r.normed.gpu, r.inner.gpu}, "gate_up");
    b.LinearAdd(activated, {l.down.get(), r.inner.gpu, r.hidden.gpu}, "down");
    const RmsNormParams norm2{r.hidden.gpu, nullptr, norm.gpu, r.normed2.gpu, 0, 1e-5f};
    b.Linear(b.Norm(b.residual(), norm2), {l.qkv.get(), r.normed2.gpu, r.y.gpu}, "qkv");
    const Programme programme = b.Finish();
    Bucket bucket;
    bucket.sequences = bucket.rows = rows;
    bucket.rows_per_sequence = 1;
    StepInputs inputs;
    inputs.batch.rows = inputs.batch.num_sequences = rows;
    RunOnGpu(programme, bucket, inputs);
  }
  // The same in f32, one layer after the other, up to q, k and v.
  std::vector<float> RunOnCpu(const Layers& l, const TwinTensor& norm, const Rows& r, int32_t rows,
                              int64_t capacity) {
    const auto size = [&](int64_t cols) { return static_cast<size_t>(capacity * cols); };
    std::vector<float> wide, n1(size(kHidden)), n2(n1.size()), both(size(2 * kInner)),
        act(size(kInner)), out(size(kQkv));
    const auto view = [&](std::vector<float>& v, int64_t cols) {
      return TensorView::Dense(v.data(), DType::kF32, {capacity, cols});
    };
    const TensorView& hidden = r.hidden.host;
    Stream& s = *host_stream_;
    Done(cpu_->Linear({l.o.get(), r.x.Widened(&wide), hidden, rows}, s));
    Done(cpu_->RmsNorm({hidden, nullptr, norm.host, view(n1, kHidden), rows, 1e-5f}, s));
    Done(cpu_->Linear({l.gate.get(), view(n1, kHidden), view(both, 2 * kInner), rows}, s));
    Done(cpu_->SiluMul({view(both, 2 * kInner), view(act, kInner), rows}, s));
    Done(cpu_->Linear({l.down.get(), view(act, kInner), hidden, rows}, s));
    Done(cpu_->RmsNorm({hidden, nullptr, norm.host, view(n2, kHidden), rows, 1e-5f}, s));
    Done(cpu_->Linear({l.qkv.get(), view(n2, kHidden), view(out, kQkv), rows}, s));
    return out;
  }
};

TEST_F(GpuLinearLayers, IsOneLayerAfterTheOther) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    if (!gpu_.ops->Fuses(Epilogue::kGatedSilu, dtype)) continue;
    const Weights w = RandomWeights();
    const Layers on_gpu = Pack(*gpu_.ops, w, dtype, Epilogue::kGatedSilu);
    const Layers on_cpu = Pack(*cpu_, w, DType::kF32, Epilogue::kStore);
    for (const int32_t rows : {1, 2, 5, 8, 16, 40}) {
      SCOPED_TRACE(rows);
      const int64_t capacity = std::max(cpu_->RowCapacity(rows), gpu_.ops->RowCapacity(rows));
      Rows r{Make(dtype, {capacity, kMixed}),  Make(DType::kF32, {capacity, kHidden}),
             Make(dtype, {capacity, kHidden}), Make(dtype, {capacity, kInner}),
             Make(dtype, {capacity, kHidden}), Make(dtype, {capacity, kQkv})};
      r.x.Randomise(random_), r.hidden.Randomise(random_), r.y.Poison();
      r.normed.Poison(), r.inner.Poison(), r.normed2.Poison();
      RunOnGpuTogether(on_gpu, w.norm, r, rows);
      const std::vector<float> out = RunOnCpu(on_cpu, w.norm, r, rows, capacity);
      if (HasFatalFailure()) return;
      for (int64_t i = 0; i < rows * kQkv; ++i) r.y.Set(i, out[static_cast<size_t>(i)]);
      const double limit = dtype == DType::kF32 ? kF32 : kBf16;
      EXPECT_LT(r.y.Error(rows * kQkv), limit);
      EXPECT_LT(r.hidden.Error(rows * kHidden), limit);
    }
  }
}

TEST_F(GpuParity, RmsNormOfStridedRows) {
  for (const int64_t dim : {48, 512, 1537}) {
    for (const int32_t rows : {1, 7, 300}) {
      TwinTensor x = Make(DType::kF32, {rows, dim + 19}), w = Make(DType::kF32, {dim});
      TwinTensor y = Make(DType::kBF16, {rows, dim});
      x.Randomise(random_, 5), w.Randomise(random_), y.Poison();
      const auto part = [&](TensorView view) {
        view.shape[1] = dim;
        return view;
      };
      ASSERT_TRUE(cpu_->RmsNorm({part(x.host), nullptr, w.host, y.host, rows, 1e-6f}, *host_stream_)
                      .has_value());
      Done(gpu_.ops->RmsNorm({part(x.gpu), nullptr, w.gpu, y.gpu, rows, 1e-6f}, *stream_));
      EXPECT_LT(y.Error(), kBf16) << dim << " " << rows;
    }
  }
}

TEST_F(GpuParity, SelectExpertsWithEverySetting) {
  for (int turn = 0; turn < 60; ++turn) {
    SelectExpertsParams p;
    const auto pick = [&](int n) {
      return static_cast<int32_t>(random_() % static_cast<unsigned>(n));
    };
    const int32_t groups = 1 << pick(4), per_group = 2 + pick(15), n = groups * per_group;
    p.num_groups = groups;
    p.top_groups = 1 + pick(groups);
    p.top_k = 1 + pick(std::min(p.top_groups * per_group, 12));
    p.rows = 1 + pick(70);
    p.score = pick(2) == 0 ? ExpertScore::kSoftmax : ExpertScore::kSigmoid;
    p.normalise = pick(2) == 0;
    p.scale = pick(2) == 0 ? 1.0f : 2.5f;
    const bool bias = pick(2) == 0, ties = pick(4) == 0;
    SCOPED_TRACE(testing::Message() << n << " experts in " << groups << ", top " << p.top_k
                                    << " of " << p.top_groups << " groups, ties " << ties);
    TwinTensor logits = Make(DType::kF32, {p.rows, n}), correction = Make(DType::kF32, {n});
    logits.Randomise(random_, 2), correction.Randomise(random_, 0.1f);
    if (ties) {
      for (int64_t i = 0; i < logits.host.elements(); ++i)
        logits.Set(i, std::round(TwinTensor::Get(logits.host, i)));
      logits.Upload();
    }
    TwinTensor experts = Make(DType::kI32, {p.rows, p.top_k}),
               weights = Make(DType::kF32, {p.rows, p.top_k});
    experts.Poison(), weights.Poison();
    SelectExpertsParams q = p;
    q.logits = logits.host, q.experts = experts.host, q.weights = weights.host;
    if (bias) q.correction_bias = correction.host;
    ASSERT_TRUE(cpu_->SelectExperts(q, *host_stream_).has_value());
    q.logits = logits.gpu, q.experts = experts.gpu, q.weights = weights.gpu;
    if (bias) q.correction_bias = correction.gpu;
    Done(gpu_.ops->SelectExperts(q, *stream_));
    const auto got = experts.Download();
    EXPECT_EQ(std::memcmp(got.data(), experts.host.data, experts.host.bytes()), 0);
    EXPECT_LT(weights.Error(), kF32);
  }
}

// Above a certain size, copies of pageable memory are split over threads and page-locked pieces.
TEST_F(GpuParity, LargeHostMemoryArrivesWhole) {
  for (const size_t bytes : {(size_t{4} << 20) - 1, size_t{4} << 20, (size_t{37} << 20) + 12'347}) {
    std::vector<uint8_t> from(bytes + 3), back(bytes, 0);
    for (uint8_t& b : from) b = static_cast<uint8_t>(random_());
    auto memory = gpu_.device->Allocate(bytes, MemoryKind::kDevice);
    ASSERT_TRUE(memory.has_value());
    for (int turn = 0; turn < 3; ++turn) {
      from[bytes / 2] ^= 0x55;
      Done(gpu_.device->Copy(memory->data(), from.data() + 3, bytes, *stream_));
      Done(gpu_.device->Copy(back.data(), memory->data(), bytes, *stream_));
      EXPECT_TRUE(std::equal(back.begin(), back.end(), from.begin() + 3)) << bytes;
    }
  }
}

}  // namespace
}  // namespace aisp
