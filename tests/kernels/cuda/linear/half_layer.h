// The linear layers between two attentions with random weights, all their inputs and outputs, and
// the expected results: each layer's double-precision product of the output of the layer before it.
// Test support; needs a GPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/linear/f16_input.h"
#include "kernels/cuda/linear/linear_kernels.h"
#include "tests/kernels/cuda/linear/matrices.h"
#include "tests/kernels/cuda/linear/reference.h"

namespace aisp::cuda::test {

inline constexpr float kEpsilon = 1e-5f;

struct Shape {
  int64_t attention, hidden, intermediate, qkv;  // qkv: outputs of the last step
  bool bias;
};

// The four layers between two attentions and all their buffers.
class Half {
 public:
  Half(LinearKernels& kernels, std::mt19937& random, WeightFormat format, const Shape& shape,
       int32_t rows, float size = 1.0f)
      : shape_(shape),
        rows_(rows),
        f16_(format == WeightFormat::kFp8 || format == WeightFormat::kFp8Block) {
    AddWeight(random, format, {shape.hidden}, shape.attention, false);
    AddWeight(random, format, {shape.intermediate, shape.intermediate}, shape.hidden, true);
    AddWeight(random, format, {shape.hidden}, shape.intermediate, false);
    AddWeight(random, format, {shape.qkv / 16 * 8, shape.qkv - shape.qkv / 16 * 8}, shape.hidden,
              false);
    std::normal_distribution<float> normal;
    for (int i = 0; i < 2; ++i) {
      gains_[i].resize(static_cast<size_t>(shape.hidden));
      for (float& g : gains_[i]) g = 1.0f + 0.3f * normal(random);
      device_gains_[i] = std::make_unique<DeviceVector<float>>(gains_[i]);
    }
    x0_.resize(static_cast<size_t>(rows * shape.attention));
    h0_.resize(static_cast<size_t>(rows * shape.hidden));
    x_ = std::make_unique<DeviceVector<uint16_t>>(x0_);
    h_ = std::make_unique<DeviceVector<float>>(h0_);
    Renew(random, size);
    const auto count = [&](int64_t columns) { return static_cast<size_t>(rows * columns); };
    normed_[0] = std::make_unique<DeviceVector<uint16_t>>(count(shape.hidden));
    normed_[1] = std::make_unique<DeviceVector<uint16_t>>(count(shape.hidden));
    act_ = std::make_unique<DeviceVector<uint16_t>>(count(shape.intermediate));
    y_ = std::make_unique<DeviceVector<uint16_t>>(count(shape.qkv));
    size_t workspace = 0;
    for (const PackedWeight& w : weights_) {
      workspace = std::max(workspace, kernels.WorkspaceBytes(w));
    }
    workspace_ = std::make_unique<DeviceVector<uint8_t>>(workspace);
    EXPECT_TRUE(kernels.SetWorkspace(workspace_->get(), workspace, nullptr));
  }

  // Draws another input and residual stream.
  void Renew(std::mt19937& random, float size = 1.0f) {
    std::normal_distribution<float> normal;
    for (uint16_t& v : x0_) v = ToBf16(size * normal(random));
    for (float& v : h0_) v = 3.0f * size * normal(random);
    RestoreX();
  }

  // Every layer gets `slots` adapters of `columns` ranks; each row has one of them or none.
  void AddAdapters(std::mt19937& random, int32_t slots, int32_t columns) {
    std::normal_distribution<float> normal;
    for (int32_t r = 0; r < rows_; ++r)
      adapter_of_row_.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(slots + 1)) -
                                1);
    device_adapter_of_row_ = std::make_unique<DeviceVector<int32_t>>(adapter_of_row_);
    const int32_t width = slots * columns;
    v_ = std::make_unique<DeviceVector<uint16_t>>(static_cast<size_t>(rows_ * width));
    for (const PackedWeight& w : weights_) {
      Adapters& a = adapters_.emplace_back();
      a.down.resize(static_cast<size_t>(width * w.k));
      a.up.resize(static_cast<size_t>(w.n * width));
      for (uint16_t& d : a.down) d = ToBf16(normal(random) / std::sqrt(static_cast<float>(w.k)));
      for (uint16_t& u : a.up) u = ToBf16(normal(random) / std::sqrt(static_cast<float>(columns)));
      a.device_down = std::make_unique<DeviceVector<uint16_t>>(a.down);
      a.device_up = std::make_unique<DeviceVector<uint16_t>>(a.up);
      a.chain = {a.device_down->get(), a.device_up->get(), v_->get(), width, columns};
    }
  }
  const int32_t* adapter_of_row() const {
    return device_adapter_of_row_ != nullptr ? device_adapter_of_row_->get() : nullptr;
  }

  std::vector<ChainStep> Steps() {
    std::vector<ChainStep> steps(4);
    const void* const inputs[] = {x_->get(), normed_[0]->get(), act_->get(), normed_[1]->get()};
    void* const outputs[] = {h_->get(), act_->get(), h_->get(), y_->get()};
    const Store stores[] = {Store::kAccumulateF32, Store::kSiluMulBf16, Store::kAccumulateF32,
                            Store::kBf16};
    for (size_t i = 0; i < 4; ++i) {
      steps[i].call.weight = &weights_[i];
      steps[i].call.x = inputs[i];
      steps[i].call.y = outputs[i];
      steps[i].call.store = stores[i];
      steps[i].call.rows = rows_;
      if (i % 2 == 1) steps[i].norm_weight = device_gains_[i / 2]->get();
      steps[i].norm_epsilon = kEpsilon;
      if (!adapters_.empty()) steps[i].adapters = &adapters_[i].chain;
    }
    return steps;
  }

  // Poisons the outputs and resets the residual stream.
  void Reset(cudaStream_t stream) {
    EXPECT_EQ(
        cudaMemcpyAsync(h_->get(), h0_.data(), h0_.size() * 4, cudaMemcpyHostToDevice, stream),
        cudaSuccess);
    for (auto* v : {&normed_[0], &normed_[1], &act_, &y_}) {
      EXPECT_EQ(cudaMemsetAsync((*v)->get(), 0xff, (*v)->size() * 2, stream), cudaSuccess);
    }
  }

  // All outputs of a run.
  std::vector<uint16_t> Bits() const {
    std::vector<uint16_t> bits;
    for (const auto* v : {&normed_[0], &normed_[1], &act_, &y_}) {
      const auto part = (*v)->Get();
      bits.insert(bits.end(), part.begin(), part.end());
    }
    for (const float f : h_->Get()) {
      uint32_t word;
      std::memcpy(&word, &f, 4);
      bits.push_back(static_cast<uint16_t>(word));
      bits.push_back(static_cast<uint16_t>(word >> 16));
    }
    return bits;
  }

  // Checks every output of a run, element by element, computed from the input that its step had.
  void Check() {
    Sums h{{h0_.begin(), h0_.end()}, std::vector<double>(h0_.size())};
    Accumulate(h, Product(0, Values(*x_)));
    const Sums gate_up = Normalised(Product(1, Normed(h, 0)), h.value, 1);
    const Sums down = Product(2, Inner(*act_, Activated(gate_up), shape_.intermediate, 5e-3));
    Accumulate(h, down);
    const bool kept = KeepsInner();
    Sums y = Normalised(Product(3, Normed(h, 1)), h.value, 3);
    if (kept) {
      // The adapters' contribution was rounded to bf16.
      ExpectNear(h_->Get(), h, adapters_.empty() ? 2e-5 : 5e-3, "residual stream");
      Round(y, false);
      ExpectNear(Values(*y_), y, 5e-3, "qkv");
    } else {
      ExpectNearAsWhole(h_->Get(), h.value, 3e-3, "residual stream");
      ExpectNearAsWhole(Values(*y_), y.value, 5e-3, "qkv");
    }
  }

  // Whether the run wrote its intermediate results to memory; a run of one token need not.
  bool KeepsInner() const {
    const std::vector<uint16_t> bits = act_->Get();
    return std::any_of(bits.begin(), bits.end(), [](uint16_t b) { return b != 0xffff; });
  }

  uint16_t* x() { return x_->get(); }
  void RestoreX() { x_->Set(x0_); }
  // Sets the rows from `first` on to NaN.
  void PoisonRows(int32_t first) {
    std::vector<uint16_t> x = x0_;
    std::fill(x.begin() + first * shape_.attention, x.end(), uint16_t{0xffff});
    x_->Set(x);
  }
  std::vector<float> y() const { return Values(*y_); }
  std::vector<float> h() const { return h_->Get(); }
  uint16_t* y_data() { return y_->get(); }

 private:
  // An expected value, and how far the rounding on the way may move it.
  struct Sums {
    std::vector<double> value, error;
  };
  static constexpr double kUnitF32 = 0x1p-23;  // of an addition or a product that may truncate
  // The relative error of a norm's factor, and of the device's approximate exponential function.
  static constexpr double kFunction = 0x1p-16;

  // The error of a sum of `k` products in any order is at most the unit, times the additions that a
  // product passes, times the sum of all magnitudes. A tensor core adds sixteen products at a time,
  // to a quarter of the unit each; splits of K and their scaling add at most 64 more.
  static double SumError(int64_t k) {
    return (static_cast<double>((k + 15) / 16) * (1.0 + 16 * 0.25) + 64) * kUnitF32;
  }
  void Accumulate(Sums& h, const Sums& add) const {
    for (size_t i = 0; i < h.value.size(); ++i) {
      h.error[i] += add.error[i] + kUnitF32 * (std::abs(h.value[i]) + std::abs(add.value[i]));
      h.value[i] += add.value[i];
    }
  }
  // Rounded to bf16, or as steps pass it on.
  static void Round(Sums& sums, bool f16) {
    for (size_t i = 0; i < sums.value.size(); ++i) {
      const double size = std::abs(sums.value[i]) + sums.error[i];
      sums.error[i] += f16 ? size * 0x1p-11 + 0x1p-25 * kF16Divisor : size * 0x1p-8;
    }
  }
  // silu(gate) * up; the slope of silu is at most 1.1.
  Sums Activated(const Sums& gate_up) const {
    Sums act;
    const auto half = static_cast<size_t>(shape_.intermediate);
    for (size_t r = 0; r < static_cast<size_t>(rows_); ++r) {
      for (size_t i = 0; i < half; ++i) {
        const size_t at = 2 * r * half + i;
        const double gate = gate_up.value[at], up = gate_up.value[at + half];
        const double silu = gate / (1.0 + std::exp(-gate));
        const double up_error = gate_up.error[at + half];
        act.value.push_back(silu * up);
        act.error.push_back(1.1 * gate_up.error[at] * (std::abs(up) + up_error) +
                            std::abs(silu) * up_error + kFunction * std::abs(silu * up));
      }
    }
    return act;
  }

  void AddWeight(std::mt19937& random, WeightFormat format, const std::vector<int64_t>& heights,
                 int64_t k, bool gated) {
    matrices_.emplace_back();
    std::vector<WeightPart> parts;
    for (const int64_t rows : heights) {
      matrices_.back().push_back(MakeMatrix(random, format, rows, k, shape_.bias));
    }
    for (const Matrix& m : matrices_.back()) parts.push_back(m.Part());
    const WeightSource source{SourceOf(format), parts, k, gated, format};
    const auto bytes = PackedWeightBytes(source);
    ASSERT_TRUE(bytes) << bytes.error().ToString();
    memory_.push_back(std::make_unique<DeviceVector<uint8_t>>(*bytes));
    auto packed = PackWeight(source, memory_.back()->get(), *bytes, nullptr);
    ASSERT_TRUE(packed) << packed.error().ToString();
    weights_.push_back(*packed);
  }

  static std::vector<float> Values(const DeviceVector<uint16_t>& v) {
    std::vector<float> values;
    for (const uint16_t bits : v.Get()) values.push_back(FromBf16(bits));
    return values;
  }

  // The output of one step that the next one reads, rows of `width`.
  std::vector<float> InnerValues(const DeviceVector<uint16_t>& v, int64_t width) const {
    if (!f16_) return Values(v);
    const std::vector<uint16_t> bits = v.Get();
    std::vector<float> values(bits.size());
    for (size_t i = 0; i < bits.size(); ++i) {
      const size_t column = i % static_cast<size_t>(width);
      const auto place = static_cast<size_t>(F16Offset(static_cast<int32_t>(column)));
      values[i] = FromF16(bits[i - column + place]) * kF16Divisor;
    }
    return values;
  }

  // Without bias where a norm is still to be applied.
  Sums Product(size_t weight, const std::vector<float>& x) {
    std::vector<float> w;
    for (const Matrix& m : matrices_[weight]) w.insert(w.end(), m.values.begin(), m.values.end());
    const int64_t k = weights_[weight].k;
    const int64_t n = static_cast<int64_t>(w.size()) / k;
    const auto product = [&](const std::vector<float>& a, const std::vector<float>& b) {
      DeviceVector<float> dw(b);
      DeviceVector<float> dx(a);
      DeviceVector<double> dy(static_cast<size_t>(rows_ * n));
      ReferenceProduct(dx.get(), dw.get(), dy.get(), rows_, n, k, nullptr);
      return dy.Get();
    };
    const auto magnitudes = [](std::vector<float> v) {
      for (float& f : v) f = std::abs(f);
      return v;
    };
    Sums y{product(x, w), product(magnitudes(x), magnitudes(w))};
    for (double& e : y.error) e *= SumError(k);
    if (!adapters_.empty()) AddAdapted(weight, x, y.value);
    if (weight % 2 == 0) AddBias(weight, y);
    return y;
  }
  void AddAdapted(size_t weight, const std::vector<float>& x, std::vector<double>& y) const {
    const Adapters& a = adapters_[weight];
    const auto k = static_cast<size_t>(weights_[weight].k);
    const auto n = static_cast<size_t>(weights_[weight].n);
    const auto columns = static_cast<size_t>(a.chain.columns);
    const auto width = static_cast<size_t>(a.chain.width);
    for (size_t r = 0; r < static_cast<size_t>(rows_); ++r) {
      if (adapter_of_row_[r] < 0) continue;
      const size_t first = static_cast<size_t>(adapter_of_row_[r]) * columns;
      for (size_t j = first; j < first + columns; ++j) {
        double v = 0;
        for (size_t i = 0; i < k; ++i) v += double{x[r * k + i]} * FromBf16(a.down[j * k + i]);
        v = FromBf16(ToBf16(static_cast<float>(v)));
        for (size_t i = 0; i < n; ++i) {
          const size_t half = weights_[weight].gated ? i / (n / 2) : 0, c = i - half * (n / 2);
          const size_t row = weights_[weight].gated ? c / 8 * 16 + half * 8 + c % 8 : i;
          y[r * n + i] += v * FromBf16(a.up[row * width + j]);
        }
      }
    }
  }
  void AddBias(size_t weight, Sums& y) {
    std::vector<float> bias;
    for (const Matrix& m : matrices_[weight]) {
      bias.insert(bias.end(), m.bias.begin(), m.bias.end());
    }
    if (bias.empty()) return;
    for (size_t i = 0; i < y.value.size(); ++i) {
      y.value[i] += bias[i % bias.size()];
      y.error[i] += kUnitF32 * std::abs(y.value[i]);
    }
  }

  Sums Normalised(Sums y, const std::vector<double>& h, size_t weight) {
    const size_t n = y.value.size() / static_cast<size_t>(rows_);
    const auto k = static_cast<size_t>(shape_.hidden);
    for (size_t r = 0; r < static_cast<size_t>(rows_); ++r) {
      double squares = 0.0;
      for (size_t i = 0; i < k; ++i) squares += h[r * k + i] * h[r * k + i];
      const double norm = 1.0 / std::sqrt(squares / static_cast<double>(k) + kEpsilon);
      for (size_t i = r * n; i < (r + 1) * n; ++i) {
        y.value[i] *= norm;
        y.error[i] = norm * y.error[i] + kFunction * std::abs(y.value[i]);
      }
    }
    AddBias(weight, y);
    return y;
  }

  // The input of a layer with a norm in front is multiplied by the gain here; 1 / rms is applied
  // later.
  std::vector<float> Normed(const Sums& h, size_t which) const {
    Sums expected = h;
    for (size_t i = 0; i < h.value.size(); ++i) {
      const double gain = gains_[which][i % gains_[which].size()];
      expected.value[i] *= gain;
      expected.error[i] = std::abs(gain) * h.error[i] + kUnitF32 * std::abs(expected.value[i]);
    }
    return Inner(*normed_[which], std::move(expected), shape_.hidden, 4e-3);
  }

  // The next step's input: the run's own value if it is near the expected one, else the expected
  // one, rounded.
  std::vector<float> Inner(const DeviceVector<uint16_t>& left, Sums expected, int64_t width,
                           double limit) const {
    if (KeepsInner()) {
      Round(expected, f16_);
      std::vector<float> values = InnerValues(left, width);
      ExpectNear(values, expected, limit, "between two steps");
      return values;
    }
    std::vector<float> values;
    for (const double v : expected.value) {
      const auto f = static_cast<float>(v);
      values.push_back(f16_ ? FromF16(ToF16(f / kF16Divisor)) * kF16Divisor : FromBf16(ToBf16(f)));
    }
    return values;
  }

  // No element may be off by more than the rounding on its way allows, and all together by at most
  // `limit` times the root of their sum of squares.
  void ExpectNear(const std::vector<float>& y, const Sums& sums, double limit,
                  const char* what) const {
    const std::vector<double>& expected = sums.value;
    ASSERT_EQ(y.size(), expected.size()) << what;
    // If bf16 rounds an adapter's sum the other way, its contribution moves by 2^-8 of itself,
    // which may be many times a result near zero.
    if (!adapters_.empty()) return ExpectNearAsWhole(y, expected, 5e-3, what);
    double squares = 0.0, errors = 0.0;
    for (size_t i = 0; i < y.size(); ++i) {
      squares += expected[i] * expected[i];
      errors += (y[i] - expected[i]) * (y[i] - expected[i]);
      ASSERT_NEAR(y[i], expected[i], sums.error[i])
          << what << ", element " << i << " of " << y.size();
    }
    ASSERT_LT(std::sqrt(errors / squares), limit) << what;  // false for NaN
  }

  // For references that round the intermediate results themselves: one value that rounds the other
  // way moves all later ones by a fraction of their common size, so an element near zero may be off
  // by much of its own value.
  static void ExpectNearAsWhole(const std::vector<float>& y, const std::vector<double>& expected,
                                double limit, const char* what) {
    ASSERT_EQ(y.size(), expected.size()) << what;
    double squares = 0.0, errors = 0.0;
    for (size_t i = 0; i < y.size(); ++i) {
      squares += expected[i] * expected[i];
      errors += (y[i] - expected[i]) * (y[i] - expected[i]);
    }
    ASSERT_LT(std::sqrt(errors / squares), limit) << what;  // false for NaN
    const double rms = std::sqrt(squares / static_cast<double>(y.size()));
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_NEAR(y[i], expected[i], 2 * limit * (std::abs(expected[i]) + rms))
          << what << ", element " << i << " of " << y.size();
    }
  }

  struct Adapters {
    std::vector<uint16_t> down, up;
    std::unique_ptr<DeviceVector<uint16_t>> device_down, device_up;
    ChainAdapters chain;
  };

  Shape shape_;
  int32_t rows_;
  bool f16_;  // type of the intermediate results
  std::vector<std::vector<Matrix>> matrices_;
  std::vector<std::unique_ptr<DeviceVector<uint8_t>>> memory_;
  std::vector<PackedWeight> weights_;
  std::vector<float> gains_[2];
  std::unique_ptr<DeviceVector<float>> device_gains_[2];
  std::vector<uint16_t> x0_;
  std::vector<float> h0_;
  std::unique_ptr<DeviceVector<uint16_t>> x_, normed_[2], act_, y_;
  std::unique_ptr<DeviceVector<float>> h_;
  std::unique_ptr<DeviceVector<uint8_t>> workspace_;
  std::vector<Adapters> adapters_;  // of each layer
  std::vector<int32_t> adapter_of_row_;
  std::unique_ptr<DeviceVector<int32_t>> device_adapter_of_row_;
  std::unique_ptr<DeviceVector<uint16_t>> v_;
};

}  // namespace aisp::cuda::test
