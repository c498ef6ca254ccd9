// PreparedSteps: a programme's prepared launches, cached by bucket.
//
// Bounded: the least recently used bucket is evicted. One thread, that of the Ops.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/ops.h"
#include "model/batch_upload.h"

namespace aisp {

// The bucket of a step; `draws` rows are drawn.
Bucket BucketOf(const DeviceBatch& batch, StepPart part, const DrawParams& draw);

class PreparedSteps {
 public:
  // Both arguments outlive this object.
  PreparedSteps(Ops& ops, const Programme& programme) : ops_(ops), programme_(programme) {}

  // Valid until the next call. Logs any slow path that a new bucket uses.
  Result<PreparedStep*> For(const Bucket& bucket);
  size_t size() const { return entries_.size(); }

  static constexpr size_t kMost = 256;

 private:
  struct Entry {
    Bucket bucket;
    std::unique_ptr<PreparedStep> step;
    uint64_t used = 0;
  };
  void LogSlowPaths();

  Ops& ops_;
  const Programme& programme_;
  std::vector<Entry> entries_;
  uint64_t clock_ = 0;
  size_t logged_ = 0;
};

}  // namespace aisp
