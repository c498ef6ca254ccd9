// The linear layers of a shape: our kernels, and cuBLASLt's best algorithm for the same operands.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "bench/cuda/kernels/rig.h"
#include "kernels/cuda/linear/blas_lt.h"
#include "kernels/cuda/linear/linear_kernels.h"
#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/random_fill.h"
#include "kernels/cuda/weights.h"

namespace aisp::cuda {
namespace {

// Total size of a weight's copies, over which calls rotate: several times the L2 cache.
constexpr size_t kRotatedBytes = size_t{400} << 20;
constexpr size_t kLtWorkspace = size_t{32} << 20;

struct Format {
  const char* name;
  WeightFormat weight;
  InputFormat input;
};
constexpr std::array<Format, 4> kFormats = {{
    {"bf16", WeightFormat::kBf16, InputFormat::kBf16},
    {"fp8 x bf16", WeightFormat::kFp8, InputFormat::kBf16},
    {"fp8 x fp8", WeightFormat::kFp8, InputFormat::kFp8},
    {"nvfp4 x bf16", WeightFormat::kNvfp4, InputFormat::kBf16},
}};

struct Shape {
  const char* name;
  int64_t n, k;
  Store store;
  bool head = false;
};

size_t OutputBytes(Store store) {
  return store == Store::kBf16 || store == Store::kSiluMulBf16 ? 2 : 4;
}

// Several copies of one weight.
struct Copies {
  Buffer memory;
  std::vector<PackedWeight> weights;
};

class LinearBench {
 public:
  LinearBench(BenchRig& rig, BenchPart part, std::vector<PrefillParts>* prefills)
      : rig_(rig), part_(part), prefills_(*prefills), shapes_(ShapesOf(rig.options())) {}

  Status Run() {
    AISP_RETURN_IF_ERROR(Prepare());
    for (const Format& format : kFormats) {
      if (!rig_.WantsFormat(format.name)) continue;
      if (part_ == BenchPart::kFewRows) {
        for (const int32_t tokens : rig_.options().prefills)
          prefills_.push_back({tokens, format.name, 0, 0, 0});
      }
      std::vector<Copies> layer;  // in the order of the layer's shapes
      for (const Shape& shape : shapes_) {
        if (RowsOf(shape).empty()) continue;
        AISP_ASSIGN_OR_RETURN(Copies copies, Pack(shape, format));
        AISP_RETURN_IF_ERROR(RunShape(shape, format, copies));
        if (!shape.head) layer.push_back(std::move(copies));
      }
      for (const int32_t rows : rig_.options().rows) {
        if (BelongsTo(part_, rows)) AISP_RETURN_IF_ERROR(MeasureChain(format, layer, rows));
      }
    }
    return {};
  }

 private:
  static std::vector<Shape> ShapesOf(const KernelBenchOptions& o) {
    const int64_t qkv = int64_t{o.num_heads + 2 * o.num_kv_heads} * o.head_dim;
    const int64_t mixed = int64_t{o.num_heads} * o.head_dim;
    return {{"qkv", qkv, o.hidden, Store::kBf16},
            {"o", o.hidden, mixed, Store::kAccumulateF32},
            {"gate+up", 2 * int64_t{o.intermediate}, o.hidden, Store::kSiluMulBf16},
            {"down", o.hidden, o.intermediate, Store::kAccumulateF32},
            {"lm_head", o.vocabulary, o.hidden, Store::kF32, true}};
  }

  // Row counts at which a shape is timed in this part: the listed ones, and those of the prompts.
  // The head of a prompt computes only its last row.
  std::vector<int32_t> RowsOf(const Shape& shape) const {
    std::vector<int32_t> rows = rig_.options().rows;
    rows.insert(rows.end(), rig_.options().prefills.begin(), rig_.options().prefills.end());
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    std::erase_if(rows,
                  [&](int32_t r) { return !BelongsTo(part_, r) || (shape.head && r > kFewRows); });
    return rows;
  }

  Status Prepare() {
    int64_t widest = 0;
    size_t y_bytes = 0;
    int32_t most = 1;
    for (const Shape& shape : shapes_) {
      for (const int32_t rows : RowsOf(shape)) {
        most = std::max(most, rows);
        y_bytes = std::max(y_bytes, static_cast<size_t>(rows) * static_cast<size_t>(shape.n) *
                                        OutputBytes(shape.store));
      }
      widest = std::max(widest, shape.k);
    }
    const size_t count = static_cast<size_t>(most) * static_cast<size_t>(widest);
    AISP_ASSIGN_OR_RETURN(x_, rig_.Random(count, DType::kBF16, 11));
    AISP_ASSIGN_OR_RETURN(x8_, rig_.Allocate(count));
    AISP_ASSIGN_OR_RETURN(x_scales_, rig_.Allocate(static_cast<size_t>(most) * sizeof(float)));
    AISP_ASSIGN_OR_RETURN(y_, rig_.Allocate(y_bytes));
    AISP_ASSIGN_OR_RETURN(ones_,
                          rig_.Random(static_cast<size_t>(rig_.options().hidden), DType::kF32, 12));
    AISP_ASSIGN_OR_RETURN(lt_workspace_, rig_.Allocate(kLtWorkspace));
    AISP_ASSIGN_OR_RETURN(kernels_, LinearKernels::Create({.max_rows = most, .tuning_cache = {}}));
    AISP_ASSIGN_OR_RETURN(blas_, BlasLt::Create(""));
    return {};
  }

  // A chain needs the order of shapes_: o, gate+up, down, and the qkv of the next layer.
  Result<Copies> Pack(const Shape& shape, const Format& format) {
    const auto elements = static_cast<size_t>(shape.n * shape.k);
    AISP_ASSIGN_OR_RETURN(const Buffer plain, rig_.Allocate(elements * 2));
    AISP_RETURN_IF_ERROR(LaunchFillNormal(plain.data(), DType::kBF16, shape.n * shape.k,
                                          RandomDeviation(shape.k), 3, rig_.stream().handle));
    std::vector<WeightPart> parts(shape.store == Store::kSiluMulBf16 ? 2 : 1);
    const int64_t part_rows = shape.n / static_cast<int64_t>(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i].data = static_cast<const std::byte*>(plain.data()) +
                      i * static_cast<size_t>(part_rows * shape.k) * 2;
      parts[i].rows = part_rows;
    }
    const WeightSource source{SourceType::kBf16, parts, shape.k, parts.size() == 2, format.weight};
    AISP_ASSIGN_OR_RETURN(const size_t bytes, PackedWeightBytes(source));
    const size_t count =
        std::max<size_t>(1, kRotatedBytes / bytes + (bytes < kRotatedBytes ? 1 : 0));
    Copies copies;
    AISP_ASSIGN_OR_RETURN(copies.memory, rig_.Allocate(bytes * count));
    for (size_t i = 0; i < count; ++i) {
      AISP_ASSIGN_OR_RETURN(
          copies.weights.emplace_back(),
          PackWeight(source, static_cast<std::byte*>(copies.memory.data()) + i * bytes, bytes,
                     rig_.stream().handle));
    }
    AISP_RETURN_IF_ERROR(rig_.device().Synchronize(rig_.stream()));
    const size_t wanted = kernels_->WorkspaceBytes(copies.weights[0]);
    if (wanted > workspace_.bytes()) {
      workspace_ = {};
      AISP_ASSIGN_OR_RETURN(workspace_, rig_.Allocate(wanted));
      AISP_RETURN_IF_ERROR(
          kernels_->SetWorkspace(workspace_.data(), workspace_.bytes(), rig_.stream().handle));
    }
    return copies;
  }

  Status RunShape(const Shape& shape, const Format& format, const Copies& copies) {
    for (const int32_t rows : RowsOf(shape)) {
      const bool summed = std::any_of(prefills_.begin(), prefills_.end(),
                                      [&](const PrefillParts& p) { return p.tokens == rows; });
      const bool listed = std::find(rig_.options().rows.begin(), rig_.options().rows.end(), rows) !=
                          rig_.options().rows.end();
      if (!rig_.Wants(shape.name) && !(rig_.Wants("prefill") && (summed || shape.head))) continue;
      AISP_ASSIGN_OR_RETURN(KernelTiming timing, Measure(shape, format, copies.weights, rows));
      const double best_us =
          timing.vendor_us > 0 ? std::min(timing.us, timing.vendor_us) : timing.us;
      for (PrefillParts& p : prefills_) {
        if (p.format != format.name) continue;
        if (shape.head && rows == 1) p.head_ms = best_us * 1e-3;
        if (!shape.head && p.tokens == rows) p.linear_ms += rig_.options().layers * best_us * 1e-3;
      }
      if (!listed && !summed) continue;
      AddTiming(std::move(timing), shape, format, copies.weights[0], rows);
    }
    return {};
  }

  void AddTiming(KernelTiming timing, const Shape& shape, const Format& format,
                 const PackedWeight& weight, int32_t rows) {
    const bool narrow = format.input == InputFormat::kFp8;
    const double x_bytes =
        static_cast<double>(rows) * static_cast<double>(shape.k) * (narrow ? 1 : 2);
    const double y_bytes = static_cast<double>(rows) * static_cast<double>(weight.out_features()) *
                           static_cast<double>(OutputBytes(shape.store)) *
                           (shape.store == Store::kAccumulateF32 ? 2 : 1);
    const double flops = 2.0 * rows * static_cast<double>(shape.n) * static_cast<double>(shape.k);
    rig_.Add(std::move(timing), static_cast<double>(weight.streamed_bytes()) + x_bytes + y_bytes,
             flops, narrow ? rig_.limits().fp8_flops_per_s : rig_.limits().bf16_flops_per_s);
  }

  Result<LinearCall> CallOf(const Shape& shape, const Format& format, const PackedWeight& weight,
                            int32_t rows) {
    LinearCall call;
    call.weight = &weight;
    call.input = format.input;
    call.x = x_.data();
    call.y = y_.data();
    call.rows = rows;
    call.store = shape.store;
    if (format.input == InputFormat::kFp8) {
      auto* scales = static_cast<float*>(x_scales_.data());
      AISP_RETURN_IF_ERROR(
          QuantizeRows(x_.data(), x8_.data(), scales, rows, shape.k, rig_.stream().handle));
      call.x = x8_.data();
      call.x_scales = scales;
    }
    return call;
  }

  static int CallsFor(size_t copies, int32_t rows) {
    const int least = rows > 1024 ? 4 : rows > 128 ? 8 : 24;
    return std::max(least, static_cast<int>(copies));
  }

  Result<KernelTiming> Measure(const Shape& shape, const Format& format,
                               const std::vector<PackedWeight>& weights, int32_t rows) {
    AISP_ASSIGN_OR_RETURN(const LinearCall call, CallOf(shape, format, weights[0], rows));
    AISP_RETURN_IF_ERROR(kernels_->Prepare(call, rig_.stream().handle));
    KernelTiming timing{shape.name, format.name, std::to_string(rows)};
    const int calls = CallsFor(weights.size(), rows);
    AISP_ASSIGN_OR_RETURN(timing.us, rig_.CallUs(calls, [&](int i) {
      LinearCall one = call;
      one.weight = &weights[static_cast<size_t>(i) % weights.size()];
      return kernels_->Launch(one, rig_.stream().handle);
    }));
    timing.kernel = kernels_->Describe(call);
    AISP_ASSIGN_OR_RETURN(timing.vendor_us, VendorUs(shape, format, weights, call, calls));
    return timing;
  }

  // The library's product of these operands, with bf16 or f32 output like ours, without SiLU; 0 if
  // it does not support them.
  Result<double> VendorUs(const Shape& shape, const Format& format,
                          const std::vector<PackedWeight>& weights, const LinearCall& call,
                          int calls) {
    const bool narrow = format.input == InputFormat::kFp8;
    if (format.weight != WeightFormat::kBf16 && !narrow) return 0;
    LtProduct product;
    product.weight = weights[0].data;
    product.x = call.x;
    product.y = y_.data();
    product.n = shape.n;
    product.k = shape.k;
    product.y_stride = shape.n;
    product.rows = call.rows;
    product.fp8 = narrow;
    product.weight_scales = weights[0].scales;
    product.x_scales = call.x_scales;
    product.f32 = OutputBytes(shape.store) == 4;
    product.add = shape.store == Store::kAccumulateF32;
    // A gated product is twice as wide as its result after SiLU.
    const size_t bytes =
        static_cast<size_t>(call.rows) * static_cast<size_t>(shape.n) * (product.f32 ? 4 : 2);
    Buffer wide;
    if (bytes > y_.bytes()) {
      AISP_ASSIGN_OR_RETURN(wide, rig_.Allocate(bytes));
      product.y = wide.data();
    }
    const Status tuned =
        blas_->Tune(product, lt_workspace_.data(), kLtWorkspace, rig_.stream().handle);
    if (!tuned) return 0;
    return rig_.CallUs(calls, [&](int i) {
      LtProduct one = product;
      const PackedWeight& weight = weights[static_cast<size_t>(i) % weights.size()];
      one.weight = weight.data;
      one.weight_scales = weight.scales;
      return blas_->Run(one, lt_workspace_.data(), kLtWorkspace, rig_.stream().handle);
    });
  }

  // o, gate+up, down and the next layer's qkv in one launch, if the kernels support it.
  Status MeasureChain(const Format& format, const std::vector<Copies>& layer, int32_t rows) {
    constexpr const char* kName = "layer in one launch";
    if (!rig_.Wants(kName) || format.input == InputFormat::kFp8) return {};
    constexpr std::array<size_t, 4> kOrder = {1, 2, 3, 0};
    const auto bytes_of = [&](size_t s) {
      return static_cast<double>(layer[s].weights[0].streamed_bytes());
    };
    std::array<ChainStep, 4> steps;
    const auto fill = [&](int turn) {
      for (size_t i = 0; i < steps.size(); ++i) {
        const Shape& shape = shapes_[kOrder[i]];
        const auto& weights = layer[kOrder[i]].weights;
        LinearCall& call = steps[i].call;
        call = {};
        call.weight = &weights[static_cast<size_t>(turn) % weights.size()];
        call.rows = rows;
        call.store = shape.store;
      }
      steps[1].norm_weight = steps[3].norm_weight = static_cast<const float*>(ones_.data());
      steps[0].call.x = x_.data();
      steps[1].call.x = steps[3].call.x = chain_normed_.data();
      steps[0].call.y = steps[2].call.y = chain_hidden_.data();
      steps[1].call.y = chain_activation_.data();
      steps[2].call.x = chain_activation_.data();
      steps[3].call.y = y_.data();
    };
    if (chain_normed_.bytes() == 0) AISP_RETURN_IF_ERROR(AllocateChain());
    fill(0);
    const std::optional<ChainForm> form = FormOf(steps, kernels_->facts());
    if (!form) return {};
    KernelTiming timing{kName, format.name, std::to_string(rows)};
    AISP_ASSIGN_OR_RETURN(timing.us, rig_.CallUs(16, [&](int i) {
      fill(i);
      return kernels_->LaunchChain(steps, *form, rig_.stream().handle);
    }));
    timing.kernel = "o, gate+up, down, qkv";
    rig_.Add(std::move(timing), bytes_of(0) + bytes_of(1) + bytes_of(2) + bytes_of(3), 0, 1);
    return {};
  }

  Status AllocateChain() {
    const auto rows = static_cast<size_t>(
        *std::max_element(rig_.options().rows.begin(), rig_.options().rows.end()));
    const auto hidden = static_cast<size_t>(rig_.options().hidden);
    AISP_ASSIGN_OR_RETURN(chain_normed_, rig_.Allocate(rows * hidden * 2));
    AISP_ASSIGN_OR_RETURN(chain_hidden_, rig_.Random(rows * hidden, DType::kF32, 13));
    AISP_ASSIGN_OR_RETURN(
        chain_activation_,
        rig_.Allocate(rows * static_cast<size_t>(rig_.options().intermediate) * 2));
    return {};
  }

  BenchRig& rig_;
  const BenchPart part_;
  std::vector<PrefillParts>& prefills_;
  const std::vector<Shape> shapes_;
  std::unique_ptr<LinearKernels> kernels_;
  std::unique_ptr<BlasLt> blas_;
  Buffer x_, x8_, x_scales_, y_, ones_, workspace_, lt_workspace_;
  Buffer chain_normed_, chain_hidden_, chain_activation_;
};

}  // namespace

Status BenchLinear(BenchRig& rig, BenchPart part, std::vector<PrefillParts>* prefills) {
  return LinearBench(rig, part, prefills).Run();
}

}  // namespace aisp::cuda
