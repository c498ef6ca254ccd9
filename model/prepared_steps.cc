#include "model/prepared_steps.h"

#include <algorithm>

#include "common/log.h"

namespace aisp {

Bucket BucketOf(const DeviceBatch& batch, StepPart part, const DrawParams& draw) {
  const RaggedBatch& rows = batch.ragged;
  Bucket bucket;
  bucket.sequences = rows.num_sequences;
  bucket.rows_per_sequence = rows.longest_rows;
  bucket.rows = rows.rows;
  const bool decodes = std::any_of(rows.host_sequences.begin(), rows.host_sequences.end(),
                                   [](const RowSpan& s) { return s.num_rows == 1; });
  const bool all = batch.logit_rows == nullptr;
  const bool ends = !decodes && rows.rows <= kMostEndStepRows && rows.longest_rows <= kMostEndRows;
  const bool verifies = all ? rows.longest_rows <= kMostVerifyRows : ends;
  if (rows.longest_rows > 1 && verifies) {
    bucket.mode = StepMode::kVerify;
  } else if (rows.longest_rows > 1) {
    bucket.mode = decodes ? StepMode::kMixed : StepMode::kPrefill;
    for (const RowSpan& s : rows.host_sequences) {
      if (s.num_rows > 1) bucket.prompt_context = std::max(bucket.prompt_context, s.context_len);
    }
  }
  bucket.part = part;
  bucket.adapters = batch.adapter_of_row != nullptr;
  bucket.logit_rows = batch.num_logit_rows;
  bucket.all_logits = batch.logit_rows == nullptr;
  if (part != StepPart::kForward) {
    bucket.draws = draw.num_rows;
    bucket.draw_filters = draw.filters;
    bucket.draw_masks = draw.masks != nullptr;
  }
  return bucket;
}

Result<PreparedStep*> PreparedSteps::For(const Bucket& wanted) {
  const Bucket bucket = ops_.Canonical(wanted);
  ++clock_;
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& e) { return e.bucket == bucket; });
  if (found != entries_.end()) {
    found->used = clock_;
    return found->step.get();
  }
  AISP_ASSIGN_OR_RETURN(auto step, ops_.Prepare(programme_, bucket));
  LogSlowPaths();
  if (entries_.size() < kMost) {
    entries_.push_back({bucket, std::move(step), clock_});
    return entries_.back().step.get();
  }
  const auto oldest =
      std::min_element(entries_.begin(), entries_.end(),
                       [](const Entry& a, const Entry& b) { return a.used < b.used; });
  *oldest = {bucket, std::move(step), clock_};
  return oldest->step.get();
}

void PreparedSteps::LogSlowPaths() {
  const std::vector<SlowPathCount> all = ops_.slow_paths().Snapshot();
  for (; logged_ < all.size(); ++logged_) {
    const SlowPathCount& slow = all[logged_];
    LogWarning("slow path", {{"op", slow.op}, {"reason", slow.reason}, {"node", slow.first_node}});
  }
}

}  // namespace aisp
