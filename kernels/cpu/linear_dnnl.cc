#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>
#include <vector>

#include "common/check.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/linear_tiles.h"

namespace aisp {
namespace {

using dnnl::memory;

// Shape of one product but for its rows.
struct ProductKey {
  int64_t in = 0;
  int64_t out = 0;
  DType dtype = DType::kF32;
  bool accumulate = false;
  bool bias = false;
  auto Tied() const { return std::tie(in, out, dtype, accumulate, bias); }
  friend bool operator<(const ProductKey& a, const ProductKey& b) { return a.Tied() < b.Tied(); }
};

memory::data_type DnnlType(DType t) {
  return t == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
}

struct Product {
  // One for each worker: their addresses are set before every run, so that no run allocates.
  struct Operands {
    memory x, y, scratchpad;
  };
  dnnl::matmul primitive;
  std::vector<Operands> operands;
};

dnnl::matmul::primitive_desc MakeDesc(const ProductKey& key, int64_t rows,
                                      const memory::desc& weights, const dnnl::engine& engine) {
  dnnl::primitive_attr attr;
  // Scratchpads are ours, one for each thread: the library's own is shared by all primitives of the
  // process.
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (key.accumulate) {
    dnnl::post_ops ops;
    ops.append_sum(1.0f);
    attr.set_post_ops(ops);
  }
  const memory::desc x({rows, key.in}, DnnlType(key.dtype), memory::dims{key.in, 1});
  const memory::desc y({rows, key.out}, memory::data_type::f32, memory::dims{key.out, 1});
  const memory::desc bias({1, key.out}, memory::data_type::f32, memory::format_tag::ab);
#if DNNL_VERSION_MAJOR >= 3
  if (key.bias) return dnnl::matmul::primitive_desc(engine, x, weights, bias, y, attr);
  return dnnl::matmul::primitive_desc(engine, x, weights, y, attr);
#else
  if (key.bias)
    return dnnl::matmul::primitive_desc(dnnl::matmul::desc(x, weights, bias, y), attr, engine);
  return dnnl::matmul::primitive_desc(dnnl::matmul::desc(x, weights, y), attr, engine);
#endif
}

// All tile heights of one shape.
struct ProductSet {
  memory::desc weights;
  std::array<Product, kTileRows.size()> products;
  std::string implementation;
  // In which heights a row's result is the same bits wherever it stands: 0: in all; else in this
  // one.
  int64_t safe_rows = 0;

  const Product& For(int64_t rows) const {
    const auto it = std::lower_bound(kTileRows.begin(), kTileRows.end(), rows);
    return products[static_cast<size_t>(it - kTileRows.begin())];
  }
};

// oneDNN splits a product by OpenMP threads; we split it ourselves, so every thread that calls it
// has one.
void UseOneOpenMpThread() {
  thread_local bool done = false;
  if (!done) {
    omp_set_num_threads(1);
    done = true;
  }
}

class DnnlLinear final : public PackedLinear {
 public:
  struct Slice {
    int64_t begin = 0;  // of the output
    int64_t out = 0;
    const ProductSet* set = nullptr;
    memory weights;
    std::vector<float> bias;
    memory bias_memory;
  };
  LinearTraits traits() const override {
    LinearTraits t;
    t.input = dtype;
    t.output = DType::kF32;
    t.epilogue = accumulate ? Epilogue::kAccumulate : Epilogue::kStore;
    t.bias = !slices.empty() && !slices.front().bias.empty();
    t.n = out;
    t.k = in;
    t.bytes = bytes();
    return t;
  }
  size_t bytes() const override {
    size_t sum = 0;
    for (const Slice& s : slices)
      sum += s.weights.get_desc().get_size() + s.bias.size() * sizeof(float);
    return sum;
  }

  int64_t in = 0;
  int64_t out = 0;
  DType dtype = DType::kF32;
  bool accumulate = false;
  std::vector<Slice> slices;  // by output columns, one for each thread
};

// Pseudo-random operands in [-1, 1], always the same: enough digits for any change in the order of
// a sum to show.
struct ProbeData {
  ProbeData(const ProductKey& key, int64_t rows) {
    Fill(key.out * key.in, key.dtype, &weights);
    Fill(rows * key.in, key.dtype, &x);
    for (int64_t i = 0; i < key.out && key.bias; ++i) bias.push_back(Next());
  }
  std::vector<std::byte> weights, x;
  std::vector<float> bias;

 private:
  float Next() {
    state_ = state_ * 1664525u + 1013904223u;
    return static_cast<float>(static_cast<int32_t>(state_)) * 0x1.0p-31f;
  }
  void Fill(int64_t n, DType dtype, std::vector<std::byte>* out) {
    std::vector<float> values;
    values.reserve(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) values.push_back(Next());
    out->resize(values.size() * DTypeBytes(dtype));
    ConvertElements(TensorView::Dense(values.data(), DType::kF32, {n}), 0, n, dtype, out->data());
  }
  uint32_t state_ = 1;
};

// For a library error that can only come from this machine or this build.
Error FromDnnl(const dnnl::error& e, std::string_view doing) {
  const bool memory_short = e.status == dnnl_out_of_memory;
  return Error{memory_short ? Code::kResourceExhausted : Code::kInternal,
               fmt::format("oneDNN, {}: {}", doing, e.what())};
}

class DnnlLinearEngine final : public LinearEngine {
 public:
  explicit DnnlLinearEngine(ThreadPool* pool)
      : pool_(pool),
        engine_(dnnl::engine::kind::cpu, 0),
        scratchpads_(static_cast<size_t>(pool->threads())),
        slice_output_(static_cast<size_t>(pool->threads())) {
    for (int i = 0; i < pool->threads(); ++i) streams_.emplace_back(engine_);
    supports_bf16_ = dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx512_core_bf16;
  }

  std::string Describe() const override {
    const dnnl_version_t* v = dnnl_version();
    return fmt::format("oneDNN {}.{}.{} {}{}", v->major, v->minor, v->patch, implementation_,
                       safe_rows_ > 0 ? fmt::format(" in tiles of {}", safe_rows_) : "");
  }
  bool SupportsBf16() const override { return supports_bf16_; }

  Result<std::unique_ptr<PackedLinear>> Pack(const LinearSource& source) override {
    UseOneOpenMpThread();
    try {
      return PackChecked(source);
    } catch (const dnnl::error& e) {
      return tl::unexpected(FromDnnl(e, "packing a weight"));
    }
  }

  Status Run(const PackedLinear& weight, const void* x, float* y, int64_t rows) override {
    const auto& w = static_cast<const DnnlLinear&>(weight);
    const size_t x_row_bytes = static_cast<size_t>(w.in) * DTypeBytes(w.dtype);
    std::atomic<bool> failed = false;
    pool_->For(static_cast<int64_t>(w.slices.size()), [&](int64_t i, int worker) {
      const DnnlLinear::Slice& slice = w.slices[static_cast<size_t>(i)];
      for (int64_t row = 0; row < rows;) {
        const int64_t tile = safe_rows_ > 0 ? safe_rows_ : NextTileRows(rows - row);
        const auto* from =
            static_cast<const std::byte*>(x) + static_cast<size_t>(row) * x_row_bytes;
        if (!MultiplySlice(w, slice, tile, from, y + row * w.out, worker)) failed = true;
        row += tile;
      }
    });
    if (failed)
      return Internal(
          "oneDNN failed to run a matrix product; the process is probably out of memory");
    return {};
  }

 private:
  Result<std::unique_ptr<PackedLinear>> PackChecked(const LinearSource& source) {
    AISP_RETURN_IF_ERROR(CheckSource(source));
    auto packed = std::make_unique<DnnlLinear>();
    packed->in = source.parts[0].cols();
    packed->dtype = source.compute_dtype;
    for (const TensorView& part : source.parts) packed->out += part.rows();
    std::vector<std::byte> staging;
    const std::vector<float> bias = StackBiases(source);
    const int64_t width = SliceWidth(packed->out);
    packed->accumulate = source.epilogue == Epilogue::kAccumulate;
    // Slices are multiplied into memory of their own (see MultiplySlice), which does the
    // accumulation then.
    const bool sliced = width < packed->out;
    for (int64_t begin = 0; begin < packed->out; begin += width) {
      const int64_t out = std::min(width, packed->out - begin);
      const ProductKey key{packed->in, out, source.compute_dtype, packed->accumulate && !sliced,
                           !bias.empty()};
      if (sliced) ReserveSliceOutput(out);
      AISP_ASSIGN_OR_RETURN(const ProductSet* set, SetFor(key));
      StackRows(source, begin, out, &staging);
      DnnlLinear::Slice slice;
      slice.begin = begin;
      slice.out = out;
      slice.set = set;
      slice.weights = memory(set->weights, engine_);
      const memory plain({{packed->in, out}, DnnlType(key.dtype), memory::dims{1, packed->in}},
                         engine_, staging.data());
      dnnl::reorder(plain, slice.weights)
          .execute(streams_[0], const_cast<memory&>(plain), slice.weights);
      streams_[0].wait();
      if (key.bias) slice.bias.assign(bias.begin() + begin, bias.begin() + begin + out);
      packed->slices.push_back(std::move(slice));
      DnnlLinear::Slice& kept = packed->slices.back();
      if (key.bias) {
        kept.bias_memory = memory({{1, out}, memory::data_type::f32, memory::format_tag::ab},
                                  engine_, kept.bias.data());
      }
    }
    return packed;
  }

  Status CheckSource(const LinearSource& source) const {
    if (source.parts.empty()) return InvalidArgument("a linear weight without parts");
    if (source.compute_dtype != DType::kF32 &&
        !(source.compute_dtype == DType::kBF16 && supports_bf16_)) {
      return Unimplemented(
          fmt::format("products in {} do not run on this CPU; use f32 (--dtype f32)",
                      DTypeName(source.compute_dtype)));
    }
    for (const TensorView& part : source.parts) {
      if (part.rank != 2 || part.cols() != source.parts[0].cols() || part.rows() <= 0 ||
          part.cols() <= 0) {
        return InvalidArgument(
            fmt::format("parts of a linear weight have to be [out, {}]", source.parts[0].cols()));
      }
    }
    if (!source.biases.empty() && source.biases.size() != source.parts.size()) {
      return InvalidArgument(fmt::format("{} biases for {} parts of a linear weight",
                                         source.biases.size(), source.parts.size()));
    }
    return {};
  }

  int64_t SliceWidth(int64_t out) const {
    constexpr int64_t kColumns = 64;  // what a block of packed weights holds
    const int64_t columns = (out + kColumns - 1) / kColumns;
    const int64_t threads = pool_->threads();
    return std::max<int64_t>(1, (columns + threads - 1) / threads) * kColumns;
  }

  static std::vector<float> StackBiases(const LinearSource& source) {
    std::vector<float> out;
    for (size_t i = 0; i < source.biases.size(); ++i) {
      const size_t n = static_cast<size_t>(source.parts[i].rows());
      const size_t begin = out.size();
      out.resize(begin + n, 0.0f);
      if (source.biases[i].data != nullptr)
        ConvertElements(source.biases[i], 0, static_cast<int64_t>(n), DType::kF32, &out[begin]);
    }
    return out;
  }

  // Rows [begin, begin + count) of the stacked parts, in the compute dtype.
  static void StackRows(const LinearSource& source, int64_t begin, int64_t count,
                        std::vector<std::byte>* out) {
    const int64_t in = source.parts[0].cols();
    const size_t row_bytes = static_cast<size_t>(in) * DTypeBytes(source.compute_dtype);
    out->resize(static_cast<size_t>(count) * row_bytes);
    int64_t part_begin = 0;
    for (const TensorView& part : source.parts) {
      const int64_t from = std::max(begin, part_begin);
      const int64_t to = std::min(begin + count, part_begin + part.rows());
      if (from < to) {
        ConvertElements(part, (from - part_begin) * in, (to - from) * in, source.compute_dtype,
                        out->data() + static_cast<size_t>(from - begin) * row_bytes);
      }
      part_begin += part.rows();
    }
  }

  Result<const ProductSet*> SetFor(const ProductKey& key) {
    if (const auto it = sets_.find(key); it != sets_.end()) return it->second.get();
    auto set = std::make_unique<ProductSet>();
    // The weights take the form that suits 16 rows; all heights share it.
    const memory::desc any({key.in, key.out}, DnnlType(key.dtype), memory::format_tag::any);
    set->weights = MakeDesc(key, 16, any, engine_).weights_desc();
    for (size_t i = 0; i < kTileRows.size(); ++i) {
      const auto desc = MakeDesc(key, kTileRows[i], set->weights, engine_);
      Product& product = set->products[i];
      product.primitive = dnnl::matmul(desc);
      for (int worker = 0; worker < pool_->threads(); ++worker) {
        product.operands.push_back({memory(desc.src_desc(), engine_, nullptr),
                                    memory(desc.dst_desc(), engine_, nullptr),
                                    memory(desc.scratchpad_desc(), engine_, nullptr)});
      }
      for (std::vector<std::byte>& pad : scratchpads_)
        pad.resize(std::max(pad.size(), desc.scratchpad_desc().get_size() + 64));
      if (kTileRows[i] == 16) set->implementation = desc.impl_info_str();
    }
    AISP_ASSIGN_OR_RETURN(set->safe_rows, ProbeRows(key, *set));
    if (set->safe_rows > 0)
      safe_rows_ = safe_rows_ > 0 ? std::min(safe_rows_, set->safe_rows) : set->safe_rows;
    if (implementation_.find(set->implementation) == std::string::npos) {
      implementation_ += (implementation_.empty() ? "" : ",") + set->implementation;
    }
    return sets_.emplace(key, std::move(set)).first->second.get();
  }

  // ProductSet::safe_rows of a shape, found out by trying.
  Result<int64_t> ProbeRows(const ProductKey& key, const ProductSet& set);

  void ReserveSliceOutput(int64_t out) {
    const auto floats = static_cast<size_t>(kTileRows.back() * out);
    for (std::vector<float>& memory : slice_output_) memory.resize(std::max(memory.size(), floats));
  }

  // Some columns of y. A product writes rows that lie next to each other (oneDNN has no fast path,
  // and no row invariance, for others), so where threads share a weight each has its own output and
  // copies from it.
  bool MultiplySlice(const DnnlLinear& w, const DnnlLinear::Slice& slice, int64_t rows,
                     const void* x, float* y, int worker) {
    if (w.slices.size() == 1) return Multiply(*slice.set, rows, slice, x, y, worker);
    float* own = slice_output_[static_cast<size_t>(worker)].data();
    if (!Multiply(*slice.set, rows, slice, x, own, worker)) return false;
    const int64_t out = slice.out;
    for (int64_t row = 0; row < rows; ++row) {
      float* to = y + row * w.out + slice.begin;
      const float* from = own + row * out;
      if (w.accumulate) {
        for (int64_t i = 0; i < out; ++i) to[i] += from[i];
      } else {
        std::memcpy(to, from, static_cast<size_t>(out) * sizeof(float));
      }
    }
    return true;
  }

  bool Multiply(const ProductSet& set, int64_t rows, const DnnlLinear::Slice& slice, const void* x,
                float* y, int worker) {
    UseOneOpenMpThread();
    const Product& product = set.For(rows);
    const Product::Operands& operands = product.operands[static_cast<size_t>(worker)];
    std::byte* pad = scratchpads_[static_cast<size_t>(worker)].data();
    pad += (64 - reinterpret_cast<uintptr_t>(pad) % 64) % 64;
    dnnl_memory_set_data_handle(operands.x.get(), const_cast<void*>(x));
    dnnl_memory_set_data_handle(operands.y.get(), y);
    dnnl_memory_set_data_handle(operands.scratchpad.get(), pad);
    std::array<dnnl_exec_arg_t, 5> arguments = {{{DNNL_ARG_SRC, operands.x.get()},
                                                 {DNNL_ARG_WEIGHTS, slice.weights.get()},
                                                 {DNNL_ARG_DST, operands.y.get()},
                                                 {DNNL_ARG_SCRATCHPAD, operands.scratchpad.get()},
                                                 {DNNL_ARG_BIAS, nullptr}}};
    int count = 4;
    if (!slice.bias.empty())
      arguments[static_cast<size_t>(count++)].memory = slice.bias_memory.get();
    if (dnnl_primitive_execute(product.primitive.get(), streams_[static_cast<size_t>(worker)].get(),
                               count, arguments.data()) != dnnl_success) {
      return false;
    }
    return true;
  }

  ThreadPool* const pool_;
  dnnl::engine engine_;
  std::vector<dnnl::stream> streams_;                // one for each worker
  std::vector<std::vector<std::byte>> scratchpads_;  // one for each worker
  std::vector<std::vector<float>> slice_output_;     // one for each worker
  std::map<ProductKey, std::unique_ptr<ProductSet>> sets_;
  std::string implementation_;
  bool supports_bf16_ = false;
  int64_t safe_rows_ =
      0;  // the least of the shapes' that is not 0: then all products run in tiles of this height
};

Result<int64_t> DnnlLinearEngine::ProbeRows(const ProductKey& key, const ProductSet& set) {
  // Large shapes are probed with fewer of the large tiles: a second of load time is what this may
  // cost.
  const int64_t limit = key.in * key.out > (int64_t{1} << 22) ? 32 : kTileRows.back();
  ProbeData data(key, limit);
  DnnlLinear::Slice slice;
  slice.weights = memory(set.weights, engine_);
  memory plain({{key.in, key.out}, DnnlType(key.dtype), memory::dims{1, key.in}}, engine_,
               data.weights.data());
  dnnl::reorder(plain, slice.weights).execute(streams_[0], plain, slice.weights);
  streams_[0].wait();
  if (key.bias) {
    slice.bias = data.bias;
    slice.bias_memory = memory({{1, key.out}, memory::data_type::f32, memory::format_tag::ab},
                               engine_, slice.bias.data());
  }
  const size_t row_bytes = static_cast<size_t>(key.in) * DTypeBytes(key.dtype);
  // `expected` row by row, then the same rows in tiles of each height, and in tiles of the fixed
  // height moved by one.
  std::vector<float> expected, y;
  bool ran = true;
  const auto multiply = [&](int64_t first, int64_t rows, int64_t tile, std::vector<float>* out) {
    out->assign(static_cast<size_t>(limit * key.out), 0.0f);
    for (int64_t row = 0; row + tile <= rows; row += tile) {
      ran &=
          Multiply(set, tile, slice, data.x.data() + static_cast<size_t>(first + row) * row_bytes,
                   out->data() + row * key.out, 0);
    }
  };
  multiply(0, limit, 1, &expected);
  bool independent = true;
  for (int64_t tile : kTileRows) {
    if (tile == 1 || tile > limit || !independent) continue;
    multiply(0, tile, tile, &y);
    independent = std::memcmp(y.data(), expected.data(),
                              static_cast<size_t>(tile * key.out) * sizeof(float)) == 0;
  }
  multiply(0, kFixedTileRows, kFixedTileRows, &expected);
  bool fixed = true;
  for (int64_t shift = 1; shift < kFixedTileRows && !independent; ++shift) {
    multiply(shift, kFixedTileRows, kFixedTileRows, &y);
    const auto same = static_cast<size_t>((kFixedTileRows - shift) * key.out);
    fixed = fixed &&
            std::memcmp(y.data(), expected.data() + shift * key.out, same * sizeof(float)) == 0;
  }
  if (!ran) return Internal("oneDNN failed to run a matrix product while probing it");
  return independent ? 0 : fixed ? kFixedTileRows : 1;
}

}  // namespace

Result<std::unique_ptr<LinearEngine>> LinearEngine::Create(ThreadPool* pool) {
  // AMX is left out: it needs the kernel's permission (a sandbox may announce it and deny it:
  // SIGILL), and its tiles sum in another order than single rows do. The limit is the process's and
  // holds from the first use of the library on.
  static std::once_flag once;
  std::call_once(once, [] { dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16); });
  try {
    return std::make_unique<DnnlLinearEngine>(pool);
  } catch (const dnnl::error& e) {
    return tl::unexpected(FromDnnl(e, "starting"));
  }
}

}  // namespace aisp
