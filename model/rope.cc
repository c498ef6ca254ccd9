#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace aisp {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

// Long wavelengths are stretched by `factor`, short ones kept, those in between blended.
double ScaleLlama3(const RopeSpec& rope, double frequency) {
  const double wavelength = kTwoPi / frequency;
  if (wavelength < rope.original_max_position / rope.high_freq_factor) return frequency;
  if (wavelength > rope.original_max_position / rope.low_freq_factor)
    return frequency / rope.factor;
  const double smooth = (rope.original_max_position / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

// Pairs that rotate more than beta_fast times within the original context are kept, those below
// beta_slow are stretched.
double ScaleYarn(const RopeSpec& rope, int32_t dim, int32_t pair, double frequency) {
  const auto pair_of_turns = [&](double turns) {
    return dim * std::log(rope.original_max_position / (turns * kTwoPi)) /
           (2 * std::log(rope.theta));
  };
  const double low = std::max(std::floor(pair_of_turns(rope.beta_fast)), 0.0);
  double high = std::min(std::ceil(pair_of_turns(rope.beta_slow)), dim - 1.0);
  if (low == high) high += 0.001;
  const double ramp = std::clamp((pair - low) / (high - low), 0.0, 1.0);
  return frequency / rope.factor * ramp + frequency * (1 - ramp);
}

}  // namespace

std::vector<float> RopeFrequencies(const RopeSpec& rope, int32_t dim) {
  std::vector<float> out;
  for (int32_t pair = 0; pair < dim / 2; ++pair) {
    double frequency = std::pow(rope.theta, -2.0 * pair / dim);
    switch (rope.scaling) {
      case RopeScaling::kNone:
        break;
      case RopeScaling::kLinear:
        frequency /= rope.factor;
        break;
      case RopeScaling::kLlama3:
        frequency = ScaleLlama3(rope, frequency);
        break;
      case RopeScaling::kYarn:
        frequency = ScaleYarn(rope, dim, pair, frequency);
        break;
    }
    out.push_back(static_cast<float>(frequency));
  }
  return out;
}

std::vector<float> RopeTable(const RopeSpec& rope, int32_t dim, int32_t positions) {
  const std::vector<float> frequencies = RopeFrequencies(rope, dim);
  const size_t half = frequencies.size();
  std::vector<float> table(static_cast<size_t>(positions) * half * 2);
  for (int32_t position = 0; position < positions; ++position) {
    float* row = &table[static_cast<size_t>(position) * half * 2];
    for (size_t i = 0; i < half; ++i) {
      // In f32 on purpose: models are trained with angles rounded this way.
      const float angle = static_cast<float>(position) * frequencies[i];
      row[i] = static_cast<float>(std::cos(static_cast<double>(angle)) * rope.attention_factor);
      row[half + i] =
          static_cast<float>(std::sin(static_cast<double>(angle)) * rope.attention_factor);
    }
  }
  return table;
}

}  // namespace aisp
