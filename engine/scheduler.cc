#include <algorithm>

#include "engine/step_plan.h"

namespace aisp {
namespace {

bool Precedes(const SequenceView& a, const SequenceView& b) {
  if (a.priority != b.priority) return a.priority > b.priority;
  if (a.arrival != b.arrival) return a.arrival < b.arrival;
  return a.id < b.id;
}

int32_t Remaining(const SequenceView& v) { return v.target_tokens - v.computed_tokens; }

}  // namespace

StepPlan PlanStep(const EngineSnapshot& snapshot, const ScheduleLimits& limits) {
  StepPlanner planner;
  return planner.Plan(snapshot, limits);
}

const StepPlan& StepPlanner::Plan(const EngineSnapshot& snapshot, const ScheduleLimits& limits) {
  views_ = snapshot.sequences;
  limits_ = limits;
  block_tokens_ = snapshot.block_tokens;
  available_ = snapshot.available_blocks;
  budget_ = limits.max_batch_tokens;
  plan_.preempt.clear();
  plan_.sequences.clear();
  plan_.num_tokens = 0;
  Sort(snapshot);
  for (int32_t index : running_) PlanRunning(index);
  PlanWaiting();
  PlanDrafts();
  return plan_;
}

void StepPlanner::Sort(const EngineSnapshot& snapshot) {
  running_.clear();
  waiting_.clear();
  victims_.clear();
  verifying_.clear();
  fates_.assign(snapshot.sequences.size(), Fate::kOpen);
  int32_t holding_slots = 0;
  for (size_t i = 0; i < views_.size(); ++i) {
    const SequenceView& v = views_[i];
    const auto index = static_cast<int32_t>(i);
    if (v.phase == SequencePhase::kAwaitingKv) continue;
    if (v.phase == SequencePhase::kRunning) {
      ++holding_slots;
      if (Remaining(v) > 0) running_.push_back(index);
    } else if (!v.gated) {
      waiting_.push_back(index);
    }
    // A sequence without anything left to compute is about to end: preempting it would waste all of
    // its work.
    if (v.samples && v.blocks_held > 0 && Remaining(v) > 0) victims_.push_back(index);
  }
  free_slots_ = limits_.max_sequences - holding_slots;
  const auto by_precedence = [this](int32_t a, int32_t b) {
    return Precedes(views_[a], views_[b]);
  };
  std::sort(running_.begin(), running_.end(), [this](int32_t a, int32_t b) {
    const bool decode_a = Remaining(views_[a]) == 1;
    const bool decode_b = Remaining(views_[b]) == 1;
    if (decode_a != decode_b) return decode_a;
    return Precedes(views_[a], views_[b]);
  });
  std::sort(waiting_.begin(), waiting_.end(), by_precedence);
  std::sort(victims_.begin(), victims_.end(), by_precedence);
}

int32_t StepPlanner::BlocksFor(int32_t tokens) const {
  return (tokens + block_tokens_ - 1) / block_tokens_;
}

void StepPlanner::PlanRunning(int32_t index) {
  const SequenceView& v = views_[index];
  if (fates_[index] != Fate::kOpen || budget_ <= 0) return;
  int32_t rows = std::min({Remaining(v), budget_, limits_.max_prefill_chunk});
  int32_t new_blocks = std::max(0, BlocksFor(v.computed_tokens + rows) - v.blocks_held);
  if (new_blocks > available_) {
    // A chunk shrinks to the blocks that there are, down to one row.
    const int32_t reach =
        (v.blocks_held + std::max(0, available_)) * block_tokens_ - v.computed_tokens;
    rows = std::max(1, std::min(rows, reach));
    new_blocks = std::max(0, BlocksFor(v.computed_tokens + rows) - v.blocks_held);
    if (!MakeRoom(index, new_blocks)) return;
  }
  AddRows(index, v.computed_tokens, rows, new_blocks, /*starts=*/false);
  if (v.draft_tokens > 0 && Remaining(v) == 1)
    verifying_.emplace_back(index, plan_.sequences.size() - 1);
}

void StepPlanner::PlanDrafts() {
  int32_t drafts = limits_.max_draft_rows;
  for (const auto& [index, at] : verifying_) {
    const SequenceView& v = views_[static_cast<size_t>(index)];
    PlannedSequence& planned = plan_.sequences[at];
    const int32_t held = v.blocks_held + planned.new_blocks;
    const int32_t end = v.computed_tokens + planned.num_tokens;
    const int32_t reach = (held + std::max(0, available_)) * block_tokens_ - end;
    const int32_t rows = std::min({v.draft_tokens, budget_, drafts, reach});
    if (rows <= 0) continue;
    const int32_t new_blocks = std::max(0, BlocksFor(end + rows) - held);
    planned.num_tokens += rows;
    planned.draft_tokens = rows;
    planned.new_blocks += new_blocks;
    plan_.num_tokens += rows;
    available_ -= new_blocks;
    budget_ -= rows;
    drafts -= rows;
  }
}

// Preempts from the end of the precedence order until `blocks` are available for views_[index];
// preempts nobody when that cannot be reached.
bool StepPlanner::MakeRoom(int32_t index, int32_t blocks) {
  const SequenceView& needy = views_[index];
  const auto may_go = [&](int32_t i) {
    return i != index && fates_[i] == Fate::kOpen && Precedes(needy, views_[i]);
  };
  int32_t reachable = available_;
  for (int32_t i : victims_) {
    if (may_go(i)) reachable += views_[i].blocks_held;
  }
  if (reachable < blocks) return false;
  for (auto it = victims_.rbegin(); available_ < blocks && it != victims_.rend(); ++it) {
    if (!may_go(*it)) continue;
    fates_[*it] = Fate::kPreempted;
    available_ += views_[*it].blocks_held;
    plan_.preempt.push_back(views_[*it].id);
  }
  return true;
}

void StepPlanner::PlanWaiting() {
  bool blocked = !plan_.preempt.empty();
  for (int32_t index : waiting_) {
    if (budget_ <= 0 || free_slots_ <= 0) return;
    if (fates_[index] != Fate::kOpen) continue;
    const SequenceView& v = views_[index];
    if (v.blocks_held > 0) {
      const int32_t rows = std::min({Remaining(v), budget_, limits_.max_prefill_chunk});
      const int32_t new_blocks = std::max(0, BlocksFor(v.target_tokens) - v.blocks_held);
      if (rows <= 0 || new_blocks > available_) continue;
      --free_slots_;
      AddRows(index, v.computed_tokens, rows, new_blocks, /*starts=*/true);
    } else if (!blocked) {
      blocked = !StartWaiting(index);
    }
  }
}

// False when the blocks do not suffice.
bool StepPlanner::StartWaiting(int32_t index) {
  const SequenceView& v = views_[index];
  const int32_t new_blocks = BlocksFor(v.target_tokens) - BlocksFor(v.cached_tokens);
  const bool alone = free_slots_ == limits_.max_sequences;
  const int32_t spare = available_ - (alone ? 0 : limits_.watermark_blocks);
  if (new_blocks + v.cached_free_blocks > spare) return false;
  const int32_t rows =
      std::min({v.target_tokens - v.cached_tokens, budget_, limits_.max_prefill_chunk});
  if (rows <= 0) return true;
  --free_slots_;
  available_ -= v.cached_free_blocks;
  AddRows(index, v.cached_tokens, rows, new_blocks, /*starts=*/true);
  return true;
}

void StepPlanner::AddRows(int32_t index, int32_t begin, int32_t rows, int32_t new_blocks,
                          bool starts) {
  const SequenceView& v = views_[index];
  fates_[index] = Fate::kPlanned;
  available_ -= new_blocks;
  budget_ -= rows;
  plan_.num_tokens += rows;
  PlannedSequence planned;
  planned.id = v.id;
  planned.token_begin = begin;
  planned.num_tokens = rows;
  planned.new_blocks = new_blocks;
  planned.starts = starts;
  planned.samples = v.samples && begin + rows == v.target_tokens;
  plan_.sequences.push_back(planned);
}

}  // namespace aisp
