// What a step of one worker costs, learnt online from the StepSamples in its telemetry. Steps that
// hold rows of prompts and steps that do not are fitted apart, because on a GPU they are bound by
// different things (arithmetic; reading the weights):
//
//   decode:       base + per row + per position of context that is read
//   with prompts: base + per token + per position that prompts read + the two terms of its decodes
//
// The context terms are attention: of a prompt of n tokens it reads n (n + 1) / 2 positions.
// Plain values, no allocation. One thread.
#pragma once

#include <cstdint>

#include "common/prompt_work.h"
#include "router/linear_fit.h"

namespace aisp {

// What a step holds. Doubles, because predictions are made for averages.
struct StepShape {
  double prefill_tokens = 0;
  double prefill_context = 0;  // positions whose KV the rows of prompts read, in sum
  double decode_rows = 0;
  double decode_context = 0;  // likewise of the rows that decode
};

// The fitted coefficients in ms, never negative.
struct StepCost {
  struct Decode {
    double base_ms = 2.0;
    double per_row_ms = 0.05;
    double per_context_ms = 1e-5;
  } decode;
  struct Prefill {
    double base_ms = 2.0;
    double per_token_ms = 0.05;
    double per_prefill_context_ms = 1e-6;
    double per_row_ms = 0.05;
    double per_context_ms = 1e-5;
  } prefill;

  double StepMs(const StepShape& shape) const {
    if (shape.prefill_tokens <= 0) {
      return decode.base_ms + decode.per_row_ms * shape.decode_rows +
             decode.per_context_ms * shape.decode_context;
    }
    return prefill.base_ms + prefill.per_token_ms * shape.prefill_tokens +
           prefill.per_prefill_context_ms * shape.prefill_context +
           prefill.per_row_ms * shape.decode_rows + prefill.per_context_ms * shape.decode_context;
  }
  // All steps of that work in chunks of at most `chunk` tokens, each beside the decodes of
  // `beside`.
  double PromptMs(const PromptWork& work, int32_t chunk, const StepShape& beside) const;
};

// A prior says how costs compare, not what they are: the first step of a kind scales its prior, and
// what was learnt of one kind that of the other, until it is seen.
class StepTimeModel {
 public:
  StepTimeModel() : StepTimeModel(StepCost{}) {}
  explicit StepTimeModel(const StepCost& prior);

  // A sample without work or with a duration outside (0, 10 minutes) is ignored.
  void Observe(const StepShape& shape, uint64_t duration_ns);
  StepCost Cost() const;
  // Of a kind of steps that it has hardly seen, what `others` knows.
  StepCost CostWith(const StepTimeModel& others) const;
  // CostWith takes nothing from others, or nothing that counts for a worker that only prefills.
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
  double decode_scale_ = 1;  // of steps over what their prior says
  double prefill_scale_ = 1;
};

}  // namespace aisp
