// AnswerLengths: expected answer length, learnt from finished answers and kept per range of the
// allowed maximum (max_new), because a limit of 16 tokens means another kind of task than one of
// 4,000. Plain values. One thread.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace aisp {

class AnswerLengths {
 public:
  // Expected length in tokens, at most `max_new`.
  double Expected(uint32_t max_new) const {
    const Mean& mean = of_[BucketOf(max_new)];
    const double expected = mean.count > 0 ? mean.value : kUnknown;
    return std::min(expected, static_cast<double>(max_new));
  }
  void Add(uint32_t max_new, uint32_t tokens) {
    Mean& mean = of_[BucketOf(max_new)];
    const double weight = std::max(kWeight, 1.0 / static_cast<double>(++mean.count));
    mean.value += weight * (tokens - mean.value);
  }

 private:
  static constexpr double kUnknown = 128;
  static constexpr double kWeight = 0.05;
  struct Mean {
    double value = 0;
    uint64_t count = 0;
  };
  // Buckets are powers of two.
  static size_t BucketOf(uint32_t max_new) { return static_cast<size_t>(std::bit_width(max_new)); }

  std::array<Mean, 33> of_{};
};

// A low quantile of answer lengths: about one answer in twenty has fewer tokens.
class ShortAnswers {
 public:
  double tokens() const { return value_; }
  void Add(uint32_t tokens) {
    if (tokens < 2) return;  // no inter-token gap, so no TPOT
    const auto seen = static_cast<double>(tokens);
    if (++count_ == 1) value_ = seen;
    const double step = std::max(kWeight, 1.0 / static_cast<double>(count_));
    value_ = std::max(2.0, value_ * (seen < value_ ? 1 - step * (1 - kPart) : 1 + step * kPart));
  }

 private:
  static constexpr double kPart = 0.05;
  static constexpr double kWeight = 0.1;
  double value_ = 16;
  uint64_t count_ = 0;
};

}  // namespace aisp
