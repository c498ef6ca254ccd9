#include <algorithm>
#include <numeric>

#include "engine/step_plan.h"

namespace aisp {
namespace {

int32_t Remaining(const SequenceView& v) { return v.target_tokens - v.computed_tokens; }

bool Runs(const SequenceView& v) { return v.phase == SequencePhase::kRunning; }

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
  scored_ = limits.max_scored_rows;
  blocked_ = false;
  plan_.preempt.clear();
  plan_.sequences.clear();
  plan_.num_tokens = 0;
  order_.clear();
  tenants_.assign(snapshot.tenants.begin(), snapshot.tenants.end());
  if (tenants_.empty()) tenants_.emplace_back();
  RankTenants();
  Sort(snapshot);
  MakeWay();
  for (int32_t index : decodes_) PlanRunning(index, 1);
  prefill_left_ = plan_.sequences.empty() ? budget_ : std::min(budget_, snapshot.prefill_tokens);
  PlanPrefills();
  PlanDrafts();
  return plan_;
}

void StepPlanner::RankTenants() {
  std::vector<int32_t>& order = scratch_;
  order.resize(tenants_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [this](int32_t a, int32_t b) {
    return tenants_[a].service < tenants_[b].service;
  });
  tenant_place_.resize(tenants_.size());
  for (size_t i = 0; i < order.size(); ++i) tenant_place_[order[i]] = static_cast<int32_t>(i);
}

bool StepPlanner::Precedes(int32_t i, int32_t j) const {
  const SequenceView& a = views_[i];
  const SequenceView& b = views_[j];
  if (a.rank != b.rank) return a.rank > b.rank;
  if (a.tenant != b.tenant) return tenant_place_[a.tenant] < tenant_place_[b.tenant];
  if (a.priority != b.priority) return a.priority > b.priority;
  if (a.arrival != b.arrival) return a.arrival < b.arrival;
  return a.id < b.id;
}

void StepPlanner::Sort(const EngineSnapshot& snapshot) {
  decodes_.clear();
  prefills_.clear();
  victims_.clear();
  verifying_.clear();
  fates_.assign(snapshot.sequences.size(), Fate::kOpen);
  places_.Reset(tenants_.size(), limits_.max_sequences);
  for (size_t i = 0; i < views_.size(); ++i) {
    const SequenceView& v = views_[i];
    const auto index = static_cast<int32_t>(i);
    if (v.phase == SequencePhase::kAwaitingKv) continue;
    if (Runs(v)) {
      places_.Take(v.tenant, v.service_class);
      if (Remaining(v) > 0) (Remaining(v) == 1 ? decodes_ : prefills_).push_back(index);
    } else if (!v.gated) {
      prefills_.push_back(index);
    }
    // A sequence with nothing left to compute is about to end: preempting it would waste its work.
    if (!v.has_reader && v.blocks_held > 0 && Remaining(v) > 0) victims_.push_back(index);
  }
  const auto by_precedence = [this](int32_t a, int32_t b) { return Precedes(a, b); };
  std::sort(decodes_.begin(), decodes_.end(), by_precedence);
  std::sort(victims_.begin(), victims_.end(), by_precedence);
  std::sort(prefills_.begin(), prefills_.end(), [this](int32_t a, int32_t b) {
    const SequenceView& u = views_[a];
    const SequenceView& v = views_[b];
    const bool own = u.rank == v.rank && u.tenant == v.tenant;
    return own && Runs(u) != Runs(v) ? Runs(u) : Precedes(a, b);
  });
}

int32_t StepPlanner::BlocksFor(int32_t tokens) const {
  return (tokens + block_tokens_ - 1) / block_tokens_;
}

void StepPlanner::PlanRunning(int32_t index, int32_t most_rows) {
  const SequenceView& v = views_[index];
  if (fates_[index] != Fate::kOpen || Room(v) <= 0) return;
  int32_t rows = std::min({Remaining(v), Room(v), limits_.max_prefill_chunk, most_rows});
  if (rows <= 0) return;
  int32_t new_blocks = std::max(0, BlocksFor(v.computed_tokens + rows) - v.blocks_held);
  if (new_blocks > available_) {
    // A chunk shrinks to the available blocks, down to one row.
    const int32_t reach =
        (v.blocks_held + std::max(0, available_)) * block_tokens_ - v.computed_tokens;
    rows = std::max(1, std::min(rows, reach));
    new_blocks = std::max(0, BlocksFor(v.computed_tokens + rows) - v.blocks_held);
    if (!MakeRoom(index, new_blocks)) return;
  }
  AddRows(index, v.computed_tokens, rows, new_blocks, /*starts=*/false);
  NoteVerifying(index);
}

// Of the sequence planned last.
void StepPlanner::NoteVerifying(int32_t index) {
  const SequenceView& v = views_[index];
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
// preempts nobody if that is impossible.
bool StepPlanner::MakeRoom(int32_t index, int32_t blocks) {
  const auto may_go = [&](int32_t i) {
    return i != index && fates_[i] == Fate::kOpen && Precedes(index, i);
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

int32_t StepPlanner::BlocksWanted(const SequenceView& view) const {
  const int32_t target = BlocksFor(view.target_tokens);
  if (view.blocks_held > 0) return std::max(0, target - view.blocks_held);
  return target - view.cached_tokens / block_tokens_ + view.cached_free_blocks +
         limits_.watermark_blocks;
}

bool StepPlanner::Displace(ServiceClass waiting, int32_t blocks) {
  const auto may_go = [&](int32_t i) {
    return fates_[i] == Fate::kOpen && Runs(views_[i]) && views_[i].service_class > waiting;
  };
  int32_t slots = places_.free_places(), reachable = available_;
  for (int32_t i : victims_) {
    if (!may_go(i)) continue;
    ++slots;
    reachable += views_[i].blocks_held;
  }
  if (slots < 1 || reachable < blocks) return false;
  for (auto it = victims_.rbegin(); it != victims_.rend(); ++it) {
    if (places_.free_places() >= 1 && available_ >= blocks) break;
    if (!may_go(*it)) continue;
    fates_[*it] = Fate::kPreempted;
    places_.GiveBack(views_[*it].tenant, views_[*it].service_class);
    available_ += views_[*it].blocks_held;
    plan_.preempt.push_back(views_[*it].id);
  }
  return true;
}

// Runs before decodes are planned, so that yielding ones are not planned. Later plans use what is
// freed.
void StepPlanner::MakeWay() {
  if (victims_.empty()) return;
  const ServiceClass least = views_[victims_.back()].service_class;
  int32_t blocks = 0;
  scratch_.clear();
  for (int32_t index : prefills_) {
    const SequenceView& v = views_[index];
    if (v.service_class >= least) break;
    if (Runs(v) || !MayStart(v)) continue;
    const int32_t wanted = BlocksWanted(v);
    if (!Displace(v.service_class, wanted)) break;
    places_.Take(v.tenant, v.service_class);
    available_ -= wanted;
    scratch_.push_back(index);
    blocks += wanted;
  }
  for (const int32_t index : scratch_)
    places_.GiveBack(views_[index].tenant, views_[index].service_class);
  available_ += blocks;
}

int32_t StepPlanner::NextPrefill() {
  // Each tenant's next candidate comes before its others; finished ones are marked by -1.
  int32_t best = -1;
  size_t at = 0;
  for (size_t i = 0; i < prefills_.size(); ++i) {
    const int32_t index = prefills_[i];
    if (index < 0) continue;
    if (best >= 0 && views_[index].rank < views_[best].rank) break;
    const double mine = tenants_[views_[index].tenant].service;
    if (best >= 0 && mine >= tenants_[views_[best].tenant].service) continue;
    best = index;
    at = i;
  }
  if (best >= 0) prefills_[at] = -1;
  return best;
}

int32_t StepPlanner::Share(const SequenceView& view, int32_t begin, size_t behind) const {
  const int32_t remaining = view.target_tokens - begin;
  // The first row of a stream whose prompt was computed elsewhere is no prefill.
  const int32_t left = remaining == 1 ? 1 : prefill_left_;
  const int32_t rows = std::min({remaining, Room(view), limits_.max_prefill_chunk, left});
  if (rows == remaining || behind == 0) return rows;
  return std::min(rows, std::max(std::min(budget_, prefill_left_) / 2, block_tokens_));
}

void StepPlanner::PlanPrefills() {
  const size_t first = plan_.sequences.size();
  size_t behind = prefills_.size();
  for (int32_t index = NextPrefill(); index >= 0 && budget_ > 0; index = NextPrefill()) {
    --behind;
    if (fates_[index] != Fate::kOpen) continue;
    const SequenceView& v = views_[index];
    const int32_t before = plan_.num_tokens;
    if (Runs(v)) {
      PlanRunning(index, Share(v, v.computed_tokens, behind));
    } else {
      PlanWaiting(index, behind);
    }
    tenants_[v.tenant].service += (plan_.num_tokens - before) / tenants_[v.tenant].weight;
  }
  ExtendPrefills(first);
}

void StepPlanner::PlanWaiting(int32_t index, size_t behind) {
  const SequenceView& v = views_[index];
  // The least-served of several tenants may need more slots for its share of tokens.
  const bool owed = tenants_.size() > 1 && tenant_place_[v.tenant] == 0;
  if (places_.free_places() <= 0 || (!owed && !MayStart(v))) return;
  blocked_ = blocked_ || !plan_.preempt.empty();
  if (v.blocks_held > 0) {
    const int32_t rows = Share(v, v.computed_tokens, behind);
    const int32_t new_blocks = std::max(0, BlocksFor(v.target_tokens) - v.blocks_held);
    if (rows <= 0 || new_blocks > available_) return;
    places_.Take(v.tenant, v.service_class);
    AddRows(index, v.computed_tokens, rows, new_blocks, /*starts=*/true);
    NoteVerifying(index);
  } else if (!blocked_) {
    blocked_ = !StartWaiting(index, behind);
  }
}

// False: not enough blocks.
bool StepPlanner::StartWaiting(int32_t index, size_t behind) {
  const SequenceView& v = views_[index];
  const int32_t new_blocks = BlocksFor(v.target_tokens) - v.cached_tokens / block_tokens_;
  const bool alone = places_.free_places() == limits_.max_sequences;
  const int32_t spare = available_ - (alone ? 0 : limits_.watermark_blocks);
  if (new_blocks + v.cached_free_blocks > spare) return false;
  const int32_t rows = Share(v, v.cached_tokens, behind);
  if (rows <= 0) return true;
  places_.Take(v.tenant, v.service_class);
  available_ -= v.cached_free_blocks;
  AddRows(index, v.cached_tokens, rows, new_blocks, /*starts=*/true);
  return true;
}

// All have the blocks of their whole prompt, except a running one that was cut to the available
// blocks.
void StepPlanner::ExtendPrefills(size_t first) {
  for (size_t i = first; i < plan_.sequences.size() && budget_ > 0; ++i) {
    PlannedSequence& planned = plan_.sequences[i];
    const SequenceView& v = views_[order_[i]];
    const int32_t end = planned.token_begin + planned.num_tokens;
    const int32_t held = planned.starts ? BlocksFor(v.target_tokens) : v.blocks_held;
    const int32_t reach = std::max(held * block_tokens_, end) - end;
    const int32_t more = std::min({v.target_tokens - end, Room(v), reach,
                                   limits_.max_prefill_chunk - planned.num_tokens, prefill_left_});
    if (more <= 0) continue;
    prefill_left_ -= more;
    if (v.scores) scored_ -= more;
    planned.num_tokens += more;
    planned.samples = v.samples && end + more == v.target_tokens;
    plan_.num_tokens += more;
    budget_ -= more;
  }
}

void StepPlanner::AddRows(int32_t index, int32_t begin, int32_t rows, int32_t new_blocks,
                          bool starts) {
  const SequenceView& v = views_[index];
  fates_[index] = Fate::kPlanned;
  available_ -= new_blocks;
  budget_ -= rows;
  if (rows > 1) prefill_left_ -= rows;
  if (v.scores) scored_ -= rows;
  plan_.num_tokens += rows;
  PlannedSequence planned;
  planned.id = v.id;
  planned.token_begin = begin;
  planned.num_tokens = rows;
  planned.new_blocks = new_blocks;
  planned.starts = starts;
  planned.samples = v.samples && begin + rows == v.target_tokens;
  plan_.sequences.push_back(planned);
  order_.push_back(index);
}

}  // namespace aisp
