// DraftHead: runs a head that reads, beside tokens, what a target knows of the tokens before them
// (StepResult::features), and draws from it. A step is launched, and one that draws is collected,
// in order; at most max_depth() of those may be launched and not collected. Implementations:
// ModelDraftHead (an EAGLE-3 head over Ops), AsyncDraftHead (the same on a GPU) and, in tests, one
// whose every token proves where its KV came from. Engine thread only.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/executor.h"

namespace aisp {

struct HeadStep {
  // Row i of a sequence is of the token behind that of position i, and appends KV at position i.
  ForwardBatch batch;
  // [rows]: where the target's features of each row's position lie. Empty: the rows go on with what
  // the head itself made of the rows that it drew from in the step before.
  std::span<const std::byte* const> features;
  // [rows] without features: which of those rows, ascending.
  std::span<const int32_t> goes_on;
  // One for each of batch.logit_rows. A token is kept for its slot, where a row of the next step
  // may read it (kTokenOnDevice) if max_depth() is more than one.
  std::span<const SampleRow> samples;
};

// A row of features from one place in the device's memory to another.
struct FeatureCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
};

class DraftHead {
 public:
  virtual ~DraftHead() = default;
  virtual const KvLayout& kv_layout() const = 0;  // one layer
  virtual int32_t feature_size() const = 0;
  // Of a row of features in the device's memory.
  virtual size_t feature_bytes() const = 0;
  // Memory for so many rows of features that wait; the head's user says what lies where.
  virtual std::byte* feature_places() = 0;
  virtual int32_t num_feature_places() const = 0;
  // Of each run of rows, f32 in the host's memory, as many of the last ones as there is room for,
  // where steps read them and in their format; `placed` is valid until the next call. Where the
  // device still reads what was placed before, there may be room for none.
  virtual Status PlaceFeatures(std::span<const std::span<const float>> runs,
                               std::vector<std::span<const std::byte>>* placed) {
    placed->clear();
    for (const std::span<const float> run : runs) placed->push_back(std::as_bytes(run));
    return {};
  }
  // Behind every step before, and in front of the next one.
  virtual Status KeepFeatures(std::span<const FeatureCopy> rows) = 0;
  virtual int32_t max_context() const = 0;
  virtual int32_t max_rows() const = 0;       // of a step
  virtual int32_t max_sequences() const = 0;  // of a step
  virtual int max_depth() const = 0;
  // Nothing of the step is read once this returns.
  virtual Status Launch(const HeadStep& step) = 0;
  // Of the oldest step that draws. Every token comes with its logprob by the head, whatever its
  // parameters ask for. After an error of either call nothing is in flight.
  virtual Result<std::vector<SampledToken>> Collect() = 0;
};

}  // namespace aisp
