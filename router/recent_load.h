// RecentLoad: what arrives at present: requests per second, and the mean request. Kept for several
// spans of time. The longest one that agrees with all shorter ones counts (Lepski's method): so
// chance is averaged out as far as the load is steady, and a change shows within a few requests.
//
// Plain values, no allocation. The router's thread.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "common/clock.h"

namespace aisp {

// The mean request.
struct MeanRequest {
  double delay_ms = 0;       // by which its prompt delays each of the streams beside it
  double beside = 0;         // streams beside it: on its decode worker
  double running = 0;        // and on all decode workers
  double answer_tokens = 0;  // expected
  double prompt_tokens = 0;
};

class RecentLoad {
 public:
  struct Load {
    double per_s = 0;
    MeanRequest mean;
  };

  void Add(Instant now, const MeanRequest& request) {
    for (size_t i = 0; i < kSpansS.size(); ++i) {
      Sums& s = sums_[i];
      if (s.count == 0) s.begin = now;
      const double kept = s.Kept(now, kSpansS[i]);
      s.last = now;
      s.count = s.count * kept + 1;
      s.delay_ms = s.delay_ms * kept + request.delay_ms;
      s.squares = s.squares * kept + request.delay_ms * request.delay_ms;
      s.delays_ms = s.delays_ms * kept + request.delay_ms * request.beside;
      s.running = s.running * kept + request.running;
      s.answer_tokens = s.answer_tokens * kept + request.answer_tokens;
      s.prompt_tokens = s.prompt_tokens * kept + request.prompt_tokens;
    }
  }

  Load At(Instant now) const {
    size_t chosen = 0;
    for (size_t i = 1; i < kSpansS.size(); ++i) {
      bool alike = true;
      for (size_t j = 0; j < i && alike; ++j) alike = Alike(i, j, now);
      if (!alike) break;
      chosen = i;
    }
    const Sums& s = sums_[chosen];
    if (s.count <= 0) return {};
    return {Rate(s.count, chosen, now),
            {std::min(s.delay_ms / s.count, s.delays_ms / std::max(1e-9, s.running)), 0, s.running / s.count, s.answer_tokens / s.count, s.prompt_tokens / s.count}};
  }

 private:
  static constexpr std::array<double, 6> kSpansS = {0.25, 0.5, 1, 2, 4, 8};
  static constexpr double kLeastS = 0.1;
  static constexpr double kChance = 2.5;  // standard deviations

  struct Sums {
    double Kept(Instant now, double span_s) const {
      return std::exp(-std::max(0.0, ToSeconds(now - last)) / span_s);
    }
    Instant begin, last;
    double count = 0, delay_ms = 0, squares = 0, delays_ms = 0, running = 0, answer_tokens = 0, prompt_tokens = 0;
  };

  // Per second, of a sum as it was at the last request.
  double Rate(double sum, size_t i, Instant now) const {
    const Sums& s = sums_[i];
    const double age_s = std::max(kLeastS, ToSeconds(now - s.begin));
    return sum * s.Kept(now, kSpansS[i]) / (kSpansS[i] * (1 - std::exp(-age_s / kSpansS[i])));
  }
  // Whether chance explains by how much the rates of a short span j differ from those of span i.
  bool Alike(size_t i, size_t j, Instant now) const {
    const double per_s = Rate(sums_[i].count, i, now);
    const double off = std::abs(Rate(sums_[j].count, j, now) - per_s);
    if (off > kChance * std::sqrt(per_s / (2 * kSpansS[j]))) return false;
    const double ms = Rate(sums_[i].delay_ms, i, now);
    const double off_ms = std::abs(Rate(sums_[j].delay_ms, j, now) - ms);
    const double squares = Rate(sums_[i].squares, i, now);
    return off_ms <= kChance * std::sqrt(squares / (2 * kSpansS[j]));
  }

  std::array<Sums, kSpansS.size()> sums_;
};

}  // namespace aisp
