// DraftHead: runs a head that reads, beside tokens, what a target knows of the tokens before them
// (StepResult::features), and draws from it. Implementations: ModelDraftHead (an EAGLE-3 head over
// Ops) and, in tests, one whose every token proves where its KV came from. Engine thread only.
#pragma once

#include <span>
#include <vector>

#include "engine/executor.h"

namespace aisp {

struct HeadStep {
  // Row i of a sequence is of the token behind that of position i, and appends KV at position i.
  ForwardBatch batch;
  // f32 [rows, feature_size]: the target's, of each row's position. Empty: the rows go on with what
  // the head itself made of the rows that it drew from in the step before.
  std::span<const float> features;
  std::span<const int32_t> goes_on;    // [rows] without features: which of those rows
  std::span<const SampleRow> samples;  // one for each of batch.logit_rows; `slot` is not read
};

class DraftHead {
 public:
  virtual ~DraftHead() = default;
  virtual const KvLayout& kv_layout() const = 0;  // one layer
  virtual int32_t feature_size() const = 0;
  virtual int32_t max_context() const = 0;
  virtual int32_t max_rows() const = 0;       // of a step
  virtual int32_t max_sequences() const = 0;  // of a step
  // Every token comes with its logprob by the head, whatever its parameters ask for.
  virtual Result<std::vector<SampledToken>> Run(const HeadStep& step) = 0;
};

}  // namespace aisp
