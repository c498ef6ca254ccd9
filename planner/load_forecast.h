// LoadForecast: rate and mix of the requests, from the routers' counters. Rates are measured over a
// window and their growth is extrapolated. A step of the mix (prompts or answers of another mean
// size) is noticed within one or two seconds; then requests before it count no more, unless the mix
// changes all the time.
//
// One thread. No clock of its own: `now` is given and never goes back.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "common/clock.h"
#include "planner/capacity.h"
#include "router/router.h"

namespace aisp::planner {

class LoadForecast {
 public:
  // Rates are measured over `window`; growth is extrapolated by `lead`.
  LoadForecast(Duration window, Duration lead);

  // `totals`: of all routers. Several times a second.
  void Remember(Instant now, const RouterTotals& totals);
  // The load to expect. No requests before two observations.
  Load Next();
  // The lower of the request rates over the window and its newer half, at the last Next().
  double measured_per_s() const { return measured_per_s_; }
  // Whether there were requests since the observation before the last one.
  bool Asked() const;
  // The mix steps so often that no step lasts: means over the whole window count.
  bool Restless() const;

 private:
  struct Sample {
    Instant at;
    RouterTotals totals;
  };
  // Requests and their tokens, of prompts or of answers, and since when they have had their size.
  struct Sizes {
    uint64_t RouterTotals::*requests;
    uint64_t RouterTotals::*tokens;
    Instant since{};
  };

  // Counts arrivals per second.
  void Count(Instant now, const RouterTotals& totals);
  double Dispersion() const;
  void FindSteps(Instant now);
  // The moment of the last two seconds since which the mean size differs most clearly from that
  // between `sizes.since` and then; Instant{} if it does not.
  Instant StepOf(const Sizes& sizes) const;
  // Request rate and shape between two samples.
  Load Between(const Sample& from, const Sample& to) const;
  Load WithoutBursts();

  const Duration window_, lead_;
  std::deque<Sample> samples_;    // over the window
  std::deque<double> arrivals_;   // in each of the last seconds
  std::optional<Sample> second_;  // start of the current second
  double new_tokens_ = 64;        // per request; the last known value
  Sizes prompts_{&RouterTotals::requests, &RouterTotals::prompt_tokens};
  Sizes answers_{&RouterTotals::finished, &RouterTotals::new_tokens};
  std::deque<Instant> steps_;  // of the mix, the last few
  double measured_per_s_ = 0;
};

}  // namespace aisp::planner
