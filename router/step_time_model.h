// The cost of a worker's step, learnt online from the StepSamples in its telemetry. Steps with and
// without prefill rows are fitted apart, because on a GPU they are bound by different things
// (arithmetic; reading the weights):
//
//   decode:       base + per row + per position of context read
//   with prefill: base + per token + per position that prefill reads + the two decode terms
//
// The context terms are attention: a prompt of n tokens reads n (n + 1) / 2 positions. Plain
// values, no allocation. One thread.
#pragma once

#include <cstdint>

#include "common/step_cost.h"
#include "router/linear_fit.h"

namespace aisp {

// The prior gives ratios of costs, not their scale. The first step of a kind scales its prior;
// until then the scale of the other kind is used.
class StepTimeModel {
 public:
  StepTimeModel() : StepTimeModel(StepCost{}) {}
  explicit StepTimeModel(const StepCost& prior);

  // Ignores samples without work or with a duration outside (0, 10 minutes].
  void Observe(const StepShape& shape, uint64_t duration_ns);
  StepCost Cost() const;
  // For kinds of steps with few samples, uses the cost in `others`.
  StepCost CostWith(const StepTimeModel& others) const;
  // Whether CostWith takes nothing from `others` that matters for this worker.
  bool Settled(bool only_prefills) const;
  uint64_t samples() const { return decode_.samples() + prefill_.samples(); }

 private:
  using DecodeFit = LinearFit<3>;
  using PrefillFit = LinearFit<5>;
  void HintRows(const StepShape& shape);
  static DecodeFit::Vector DecodePrior(const StepCost& prior, double scale);
  static PrefillFit::Vector PrefillPrior(const StepCost& prior, double scale);
  DecodeFit::Vector DecodeTerms() const;
  PrefillFit::Vector PrefillTerms() const;

  StepCost prior_;
  DecodeFit decode_;
  PrefillFit prefill_;
  double decode_scale_ = 1;  // measured time over the prior's
  double prefill_scale_ = 1;
};

}  // namespace aisp
