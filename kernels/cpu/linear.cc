#include "kernels/cpu/linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "common/check.h"
#include "kernels/cpu/convert.h"

namespace aisp {
namespace {

constexpr std::align_val_t kAlignment{64};
// A panel's units and the rows of one pass stay in the second-level cache. If all rows fit one
// tile, whole panels are processed at once.
constexpr int64_t kPassUnits = 512;
constexpr int64_t kPassRows = 240;
constexpr int64_t kFewRows = 6;

struct FreeAligned {
  void operator()(std::byte* p) const { ::operator delete(p, kAlignment); }
};

class PanelLinear final : public PackedLinear {
 public:
  LinearTraits traits() const override {
    LinearTraits t;
    t.input = dtype;
    t.output = DType::kF32;
    t.epilogue = accumulate ? Epilogue::kAccumulate : Epilogue::kStore;
    t.bias = !bias.empty();
    t.n = out;
    t.k = in;
    t.bytes = bytes();
    return t;
  }
  size_t bytes() const override { return panel_bytes + bias.size() * sizeof(float); }

  int64_t in = 0;
  int64_t out = 0;
  DType dtype = DType::kF32;
  bool accumulate = false;
  int64_t units = 0;  // per panel
  int64_t panels = 0;
  size_t panel_bytes = 0;  // of all panels
  std::unique_ptr<std::byte, FreeAligned> data;
  std::vector<float> bias;
};

std::vector<float> StackBiases(const LinearSource& source) {
  std::vector<float> out;
  bool any = false;
  for (size_t i = 0; i < source.biases.size(); ++i) {
    const auto n = static_cast<size_t>(source.parts[i].rows());
    const size_t begin = out.size();
    out.resize(begin + n, 0.0f);
    if (source.biases[i].data == nullptr) continue;
    any = true;
    ConvertElements(source.biases[i], 0, static_cast<int64_t>(n), DType::kF32, &out[begin]);
  }
  return any ? out : std::vector<float>();
}

// Rows [begin, begin + count) of the stacked parts, in the compute dtype.
void StackRows(const LinearSource& source, int64_t begin, int64_t count, std::byte* to) {
  const int64_t in = source.parts[0].cols();
  const size_t row_bytes = static_cast<size_t>(in) * DTypeBytes(source.compute_dtype);
  int64_t part_begin = 0;
  for (const TensorView& part : source.parts) {
    const int64_t first = std::max(begin, part_begin);
    const int64_t last = std::min(begin + count, part_begin + part.rows());
    if (first < last) {
      ConvertElements(part, (first - part_begin) * in, (last - first) * in, source.compute_dtype,
                      to + static_cast<size_t>(first - begin) * row_bytes);
    }
    part_begin += part.rows();
  }
}

// Transposes rows of units into one panel: unit by unit, columns side by side. Missing rows are
// already zero.
void FillPanel(const uint32_t* rows, int64_t count, int64_t units, int64_t columns,
               uint32_t* panel) {
  constexpr int64_t kBlock = 16;  // units per cache line
  for (int64_t begin = 0; begin < units; begin += kBlock) {
    const int64_t end = std::min(units, begin + kBlock);
    for (int64_t c = 0; c < count; ++c) {
      for (int64_t u = begin; u < end; ++u) panel[u * columns + c] = rows[c * units + u];
    }
  }
}

// Initial values of the sums: y itself or zero, plus the bias.
void Start(const PanelLinear& w, float* y, int64_t rows, int64_t column, int64_t columns) {
  for (int64_t row = 0; row < rows; ++row) {
    float* to = y + row * w.out + column;
    const auto bytes = static_cast<size_t>(columns) * sizeof(float);
    if (w.accumulate) {
      for (int64_t i = 0; i < columns && !w.bias.empty(); ++i)
        to[i] += w.bias[static_cast<size_t>(column + i)];
    } else if (w.bias.empty()) {
      std::memset(to, 0, bytes);
    } else {
      std::memcpy(to, &w.bias[static_cast<size_t>(column)], bytes);
    }
  }
}

}  // namespace

std::string LinearEngine::Describe() const {
  return fmt::format("{} products in panels of {}", kernels_.isa, kernels_.columns);
}

Status LinearEngine::CheckSource(const LinearSource& source) const {
  if (source.parts.empty()) return InvalidArgument("a linear weight without parts");
  const bool bf16 = source.compute_dtype == DType::kBF16;
  if (source.compute_dtype != DType::kF32 && !(bf16 && SupportsBf16())) {
    return Unimplemented(fmt::format("products in {} do not run on this CPU; use f32 (--dtype f32)",
                                     DTypeName(source.compute_dtype)));
  }
  const int64_t in = source.parts[0].cols();
  for (const TensorView& part : source.parts) {
    if (part.rank != 2 || part.cols() != in || part.rows() <= 0 || in <= 0)
      return InvalidArgument(fmt::format("parts of a linear weight have to be [out, {}]", in));
  }
  if (bf16 && in % 2 != 0) {
    return Unimplemented(
        fmt::format("products in bf16 take inputs in pairs, not {}; use f32 (--dtype f32)", in));
  }
  if (!source.biases.empty() && source.biases.size() != source.parts.size()) {
    return InvalidArgument(fmt::format("{} biases for {} parts of a linear weight",
                                       source.biases.size(), source.parts.size()));
  }
  return {};
}

Result<std::unique_ptr<PackedLinear>> LinearEngine::Pack(const LinearSource& source) {
  AISP_RETURN_IF_ERROR(CheckSource(source));
  auto packed = std::make_unique<PanelLinear>();
  packed->in = source.parts[0].cols();
  for (const TensorView& part : source.parts) packed->out += part.rows();
  packed->dtype = source.compute_dtype;
  packed->accumulate = source.epilogue == Epilogue::kAccumulate;
  const auto row_bytes = packed->in * static_cast<int64_t>(DTypeBytes(packed->dtype));
  packed->units = row_bytes / kPanelUnitBytes;
  packed->panels = (packed->out + kernels_.columns - 1) / kernels_.columns;
  const int64_t panel_bytes = row_bytes * kernels_.columns;
  packed->panel_bytes = static_cast<size_t>(packed->panels * panel_bytes);
  try {
    packed->bias = StackBiases(source);
    packed->data.reset(static_cast<std::byte*>(::operator new(packed->panel_bytes, kAlignment)));
    std::vector<uint32_t> rows(static_cast<size_t>(packed->units * kernels_.columns));
    for (int64_t panel = 0; panel < packed->panels; ++panel) {
      std::byte* to = packed->data.get() + panel * panel_bytes;
      const int64_t begin = panel * kernels_.columns;
      const int64_t count = std::min(kernels_.columns, packed->out - begin);
      if (count < kernels_.columns) std::memset(to, 0, static_cast<size_t>(panel_bytes));
      StackRows(source, begin, count, reinterpret_cast<std::byte*>(rows.data()));
      FillPanel(rows.data(), count, packed->units, kernels_.columns,
                reinterpret_cast<uint32_t*>(to));
    }
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(fmt::format("no memory for a packed weight of {} bytes [{}, {}]",
                                         packed->panel_bytes, packed->out, packed->in));
  }
  return packed;
}

void LinearEngine::Run(const PackedLinear& weight, const void* x, float* y, int64_t rows) {
  const auto& w = static_cast<const PanelLinear&>(weight);
  const auto multiply = w.dtype == DType::kBF16 ? kernels_.bf16 : kernels_.f32;
  const int64_t threads = pool_->threads();
  const int64_t share = (w.panels + threads - 1) / threads;
  const int64_t pass = rows <= kFewRows ? w.units : kPassUnits;
  PanelTask all;
  all.x_stride = w.units * kPanelUnitBytes;
  all.panel_stride = all.x_stride * kernels_.columns;
  all.y_stride = w.out;
  pool_->For((w.panels + share - 1) / share, [&](int64_t i, int) {
    PanelTask task = all;
    const int64_t panel = i * share, column = panel * kernels_.columns;
    task.panels = std::min(share, w.panels - panel);
    task.columns = std::min(w.out - column, task.panels * kernels_.columns);
    Start(w, y, rows, column, task.columns);
    for (int64_t unit = 0; unit < w.units; unit += pass) {
      task.units = std::min(pass, w.units - unit);
      task.w = w.data.get() + panel * all.panel_stride + unit * kernels_.columns * kPanelUnitBytes;
      for (int64_t row = 0; row < rows; row += kPassRows) {
        task.rows = std::min(kPassRows, rows - row);
        task.x = static_cast<const std::byte*>(x) + row * all.x_stride + unit * kPanelUnitBytes;
        task.y = y + row * w.out + column;
        multiply(task);
      }
    }
  });
}

}  // namespace aisp
