// DraftHead: a draft head that reads, besides tokens, the target's features of the preceding
// positions (StepResult::features), and draws. Steps are launched in order; those that draw are
// collected in the same order, and at most max_depth() of them may be in flight. Implementations:
// ModelDraftHead (an EAGLE-3 head over Ops), AsyncDraftHead (the same on a GPU), and a test head
// whose tokens encode where their KV came from. Engine thread only.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/executor.h"

namespace aisp {

struct HeadStep {
  // Row i of a sequence holds the token after position i and appends KV at position i.
  ForwardBatch batch;
  // [rows]: the target's features of each row's position. Empty: rows use the head's own output for
  // rows that the previous step drew from.
  std::span<const std::byte* const> features;
  // [rows], if `features` is empty: indices of those earlier rows, ascending.
  std::span<const int32_t> goes_on;
  // One per batch.logit_rows. If max_depth() > 1, a token is kept in its slot, where a row of the
  // next step may read it (kTokenOnDevice).
  std::span<const SampleRow> samples;
};

// Copies one row of features within device memory.
struct FeatureCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
};

class DraftHead {
 public:
  virtual ~DraftHead() = default;
  virtual const KvLayout& kv_layout() const = 0;  // one layer
  virtual int32_t feature_size() const = 0;
  // Bytes of one row of features in device memory.
  virtual size_t feature_bytes() const = 0;
  // Device memory for rows of features that wait for a draft; the caller assigns the rows.
  virtual std::byte* feature_places() = 0;
  virtual int32_t num_feature_places() const = 0;
  // Uploads runs of rows (f32, host memory) in the format that steps read. Of each run, as many of
  // the last rows as there is room for; none while the device still reads earlier ones. `placed` is
  // valid until the next call.
  virtual Status PlaceFeatures(std::span<const std::span<const float>> runs,
                               std::vector<std::span<const std::byte>>* placed) {
    placed->clear();
    for (const std::span<const float> run : runs) placed->push_back(std::as_bytes(run));
    return {};
  }
  // Copies rows after all earlier steps and before the next one.
  virtual Status KeepFeatures(std::span<const FeatureCopy> rows) = 0;
  virtual int32_t max_context() const = 0;
  virtual int32_t max_rows() const = 0;       // of a step
  virtual int32_t max_sequences() const = 0;  // of a step
  virtual int max_depth() const = 0;
  // Nothing that `step` refers to is read after this returns.
  virtual Status Launch(const HeadStep& step) = 0;
  // Result of the oldest step that draws. Every token has the head's logprob, whatever its
  // parameters request. After an error of Launch or Collect nothing is in flight.
  virtual Result<std::vector<SampledToken>> Collect() = 0;
};

}  // namespace aisp
