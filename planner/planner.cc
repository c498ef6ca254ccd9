#include "planner/planner.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "proto/role.h"

namespace aisp::planner {
namespace {

// Reasons mention bursts from here on.
constexpr double kBursts = 2;
// With ample headroom only a far better split is worth a change.
constexpr double kAmple = 2;
constexpr double kFarBetter = 1.25;
// Splits within this factor count as equal.
constexpr double kAsGood = 0.99;
// Without headroom streams miss their TPOT all the time, so a small gain is enough.
constexpr double kBetterAtAll = 1.04;
// At most one in so many workers changes at a time.
constexpr int kChangeOneIn = 4;
constexpr uint64_t kKnownSteps = 32;
constexpr size_t kMaxRefused = 1024;

std::string Text(const Split& split) { return fmt::format("{}P{}D", split.prefill, split.decode); }

Split Direction(const Split& from, const Split& to) {
  const auto sign = [](int difference) { return (difference > 0) - (difference < 0); };
  return {sign(to.prefill - from.prefill), sign(to.decode - from.decode)};
}

// A short excess in bursts is no overload: queues before prefill workers grow and vanish again.
bool InBursts(const Load& load) { return load.dispersion > kBursts; }

bool CanTakeAnyRole(const WorkerStatus& worker) {
  const auto has = [&](v1::Role role) {
    return std::find(worker.roles.begin(), worker.roles.end(), role) != worker.roles.end();
  };
  return has(v1::ROLE_PREFILL) && has(v1::ROLE_DECODE) && has(v1::ROLE_PARKED);
}

}  // namespace

// The workers by current role.
struct Planner::Fleet {
  std::vector<const WorkerStatus*> prefill, decode, parked;
  int changing = 0;
  bool at_work = false;  // anything running or waiting
  // Workers have run steps; otherwise costs are guesses.
  bool known = false;
  Machine machine;
  const StepCost* prompts_alone = nullptr;  // of a prefill-only worker

  explicit Fleet(const std::vector<WorkerStatus>& workers) {
    const WorkerStatus* learnt_decode = nullptr;
    const WorkerStatus* learnt_prefill = nullptr;
    const auto better = [](const WorkerStatus& w, const WorkerStatus*& best) {
      if (best == nullptr || w.fitted_steps > best->fitted_steps) best = &w;
    };
    for (const WorkerStatus& w : workers) {
      using State = WorkerStatus::State;
      at_work = at_work || w.running + w.waiting > 0 || w.queued_prefill_tokens > 0;
      known = known || w.fitted_steps >= kKnownSteps;
      if (w.state == State::kParked) {
        parked.push_back(&w);
      } else if (w.state == State::kDraining) {
        ++changing;
      } else if (w.state != State::kReady && w.state != State::kBusy) {
        continue;  // not counted
      } else if (w.prefill()) {
        prefill.push_back(&w);
        better(w, learnt_prefill);
      } else {
        decode.push_back(&w);
        better(w, learnt_decode);
      }
    }
    const WorkerStatus* any = learnt_decode != nullptr ? learnt_decode : learnt_prefill;
    if (any == nullptr) return;
    machine.cost = any->cost;
    if (learnt_prefill != nullptr && learnt_prefill->fitted_steps > 0)
      prompts_alone = &learnt_prefill->cost;
    if (any->chunk_tokens > 0) machine.chunk_tokens = static_cast<int32_t>(any->chunk_tokens);
    if (any->max_running > 0) machine.max_running = static_cast<int32_t>(any->max_running);
    if (any->total_blocks > 0)
      machine.kv_tokens = static_cast<double>(any->total_blocks) * any->block_tokens;
  }
  // The costs of prefill come from a prefill-only worker, and those of decode rows from decode-only
  // steps: terms of two fits over mixed steps cannot be added.
  void UsePromptsAlone(const StepCost& cost) {
    machine.cost.prefill = cost.prefill;
    machine.cost.prefill.per_row_ms = machine.cost.decode.per_row_ms;
    machine.cost.prefill.per_context_ms = machine.cost.decode.per_context_ms;
  }
  Split split() const {
    return {static_cast<int>(prefill.size()), static_cast<int>(decode.size())};
  }
  int total() const { return split().workers() + static_cast<int>(parked.size()) + changing; }
};

Split Planner::Wanted(const Load& load, const Machine& machine, int most) const {
  const int least = std::clamp(options_.min_workers, 1, std::max(1, most));
  if (load.requests_per_s <= 0) return {0, least};
  Best best;
  for (int workers = least; workers <= std::max(1, most); ++workers) {
    best = BestSplit(load, machine, workers, options_.limits);
    if (best.headroom >= options_.shrink_above) break;
  }
  return best.split;
}

int Planner::Working(Instant now, const Fleet& fleet, const Split& wanted) {
  const int now_working = fleet.split().workers();
  const int budget =
      options_.max_workers > 0 ? std::min(options_.max_workers, fleet.total()) : fleet.total();
  const int most = std::max(1, budget - fleet.changing);
  if (now_working > budget) return most;
  const int asked = options_.park ? std::min(wanted.workers(), most) : most;
  if (asked >= now_working) {
    low_since_ = kNever;
    return asked;
  }
  if (low_since_ == kNever) low_since_ = now;
  return now - low_since_ >= options_.shrink_after ? now_working - 1 : now_working;
}

Duration Planner::Agreed(Instant now, const Split& direction) {
  const bool same = direction == candidate_ && decided_ != kNever;
  agreed_ = same ? agreed_ + (now - decided_) : Duration{};
  candidate_ = direction;
  return agreed_;
}

// One contrary decision does not cancel the time for which the target was clearly better.
void Planner::Disagreed(Instant now) {
  if (decided_ != kNever) agreed_ = std::max(Duration{}, agreed_ - (now - decided_));
}

bool Planner::Idle(Instant now, const Fleet& fleet) {
  if (forecast_.Asked() || fleet.at_work) {
    idle_since_ = kNever;
    return false;
  }
  if (idle_since_ == kNever) idle_since_ = now;
  return now - idle_since_ >= options_.home_after;
}

Plan Planner::Decide(Instant now, const Observation& seen) {
  forecast_.Remember(now, seen.totals);
  Plan plan = Judge(now, seen);
  decided_ = now;
  return plan;
}

// A changing worker serves nothing: a prefill worker for a moment, a decode worker until its
// streams have ended. The requests delayed by that must be won back soon.
bool Planner::Pays(const Fleet& fleet, const Plan& plan, const Best& best) const {
  constexpr double kHorizonS = 20, kPrefillChangeS = 0.3, kSurely = 2;
  Split left = plan.current;
  double change_s = kPrefillChangeS;
  if (best.split.decode < left.decode) {
    --left.decode;
    change_s = ToSeconds(MoveAfter(plan.load));
  } else if (best.split.prefill < left.prefill) {
    --left.prefill;
  }
  // A little spare headroom also counts; more than that does not.
  const auto room = [&](const Split& split) {
    return std::min(1.25, Headroom(plan.load, fleet.machine, split, options_.limits));
  };
  const double won = room(best.split) - room(plan.current);
  const double lost = std::max(0.0, room(plan.current) - room(left)) * change_s;
  return lost <= 0 || won * kHorizonS >= kSurely * lost;
}

// Compared with the current split, for this load.
bool Planner::Better(const Load& load, const Fleet& fleet, const Split& now,
                     const Split& other) const {
  const auto& limits = options_.limits;
  const double headroom = Headroom(load, fleet.machine, now, limits);
  if (options_.enough > 0 && headroom >= options_.enough) return false;
  const double gain = Headroom(load, fleet.machine, other, limits) / std::max(headroom, 1e-9);
  if (headroom >= 1) return gain >= (headroom >= kAmple ? kFarBetter : options_.gain);
  // The first prefill worker costs a decode worker, so it must bring the full gain.
  return gain >= (now.prefill == 0 ? options_.gain : kBetterAtAll);
}

// A prefill worker can decode within a moment, so it changes for the forecast load. A decode worker
// has to finish its streams, so it changes only for the current load.
bool Planner::WorthAChange(const Plan& plan, const Fleet& fleet, const Best& best) const {
  if (!Better(plan.load, fleet, plan.current, best.split)) return false;
  if (best.split.decode < plan.current.decode) {
    Load measured = plan.load;
    measured.requests_per_s = std::min(plan.load.requests_per_s, forecast_.measured_per_s());
    if (!Better(measured, fleet, plan.current, best.split)) return false;
  }
  return Pays(fleet, plan, best);
}

// The load is low or unpredictable, home serves it as well, and no stream has to move.
bool Planner::Homely(const Plan& plan, const Fleet& fleet, const Best& best) const {
  if (!options_.home || !fleet.known) return false;
  const Split& home = *options_.home;
  if (home.workers() != plan.current.workers() || home.decode < plan.current.decode) return false;
  const double there = Headroom(plan.load, fleet.machine, home, options_.limits);
  if (best.headroom >= kFarBetter * there) return false;
  return InBursts(plan.load) ? there >= kAsGood * plan.headroom
                             : std::min(there, plan.headroom) >= kAmple;
}

// A moved stream is prefilled again, so most should end where they are.
Duration Planner::MoveAfter(const Load& load) const {
  constexpr double kMost = 1.5;
  return std::clamp(FromMs(kMost * load.new_tokens * options_.limits.tpot_ms), options_.move_after,
                    std::max(options_.move_after, options_.deadline / 3));
}

// The numbers at the end of a reason.
std::string Planner::Figures(const Plan& plan, const Best& best) {
  const Load& load = plan.load;
  const std::string bursts =
      InBursts(load) ? fmt::format(", in bursts (variance {:.0f} times chance's)", load.dispersion)
                     : "";
  return fmt::format(
      "{:.1f} requests/s of {:.0f} ({:.0f} uncached) / {:.0f} tokens{}; {} has room for {:.2f} of "
      "it, {} for {:.2f}",
      load.requests_per_s, load.prompt_tokens, load.uncached_tokens, load.new_tokens, bursts,
      Text(plan.current), plan.headroom, Text(best.split), best.headroom);
}

Plan Planner::Judge(Instant now, const Observation& seen) {
  Plan plan;
  Fleet fleet(seen.workers);
  // Kept after the last prefill-only worker has changed: with other costs than those of the
  // decision, the new split would be left at once.
  if (fleet.prompts_alone != nullptr) prompts_alone_ = *fleet.prompts_alone;
  if (prompts_alone_) fleet.UsePromptsAlone(*prompts_alone_);
  plan.current = fleet.split();
  plan.load = forecast_.Next();
  plan.headroom = Headroom(plan.load, fleet.machine, plan.current, options_.limits);
  const int budget = options_.max_workers > 0 ? options_.max_workers : fleet.total();
  plan.wanted = Wanted(plan.load, fleet.machine, budget);
  const int working = Working(now, fleet, plan.wanted);
  const bool same_size = working == plan.current.workers();
  Best best = BestSplit(plan.load, fleet.machine, working, options_.limits);
  // Without a load the current split is as good as any.
  if (same_size && plan.load.requests_per_s <= 0) best = {plan.current, kPlenty};
  const bool takes_decode = best.split.decode < plan.current.decode;
  const bool better = fleet.known && WorthAChange(plan, fleet, best);
  const bool idle = Idle(now, fleet);
  const bool homeward = idle && options_.home && options_.home->workers() == plan.current.workers();
  Split target = same_size && !better ? plan.current : best.split;
  if (homeward || (target == plan.current && Homely(plan, fleet, best))) target = *options_.home;
  const std::string at = Figures(plan, best);
  if (target == plan.current) {
    Disagreed(now);
    plan.reason = "stays: " + at;
    return plan;
  }
  const Split direction = Direction(plan.current, target);
  const Duration agreed = Agreed(now, direction);
  // A second worker follows the first as soon as that one is done.
  const bool goes_on = now < rest_until_ && direction == changed_ && !forecast_.Restless();
  if (fleet.changing > 0 || (now < rest_until_ && !goes_on)) {
    plan.reason = "waits for a change that is under way: " + at;
    return plan;
  }
  // An exceeded budget, a missing decode worker and the return home need no waiting time.
  const bool urgent = plan.current.workers() > budget || plan.current.decode == 0 || homeward;
  // If both splits serve about as much, wait longer in case it is chance.
  const bool needs =
      plan.headroom < 1 && !takes_decode && best.headroom >= plan.headroom * options_.gain;
  const Duration wanted = needs || goes_on ? options_.agree_short : options_.agree;
  if (agreed < wanted && !urgent) {
    plan.reason = fmt::format("{:.2f} of {:.2f} s for {}: {}", ToSeconds(agreed), ToSeconds(wanted),
                              Text(target), at);
    return plan;
  }
  plan.reason = fmt::format("goes to {}: {}", Text(target), at);
  // On the return home all may change at once: the load is low.
  const int at_a_time = homeward ? fleet.total() : std::max(1, fleet.total() / kChangeOneIn);
  Changes(now, fleet, target, at_a_time, &plan);
  return plan;
}

void Planner::Changes(Instant now, const Fleet& fleet, const Split& target, int left, Plan* plan) {
  std::erase_if(refused_, [now](const auto& r) { return now >= r.second; });
  int more_prefill = target.prefill - static_cast<int>(fleet.prefill.size());
  int more_decode = target.decode - static_cast<int>(fleet.decode.size());
  const Duration move_after = MoveAfter(plan->load);
  // The last decode worker is not asked: its router would refuse.
  int decode_left = static_cast<int>(fleet.decode.size());
  const auto take = [&](std::vector<const WorkerStatus*> from, v1::Role to, int* missing,
                        int* surplus) {
    std::erase_if(from, [&](const WorkerStatus* w) {
      return !CanTakeAnyRole(*w) || refused_.contains(w->id);
    });
    // Those with the least running work first.
    std::stable_sort(from.begin(), from.end(), [](const WorkerStatus* a, const WorkerStatus* b) {
      return a->running + a->waiting < b->running + b->waiting;
    });
    for (const WorkerStatus* worker : from) {
      if (left == 0 || *missing <= 0 || (surplus != nullptr && *surplus >= 0)) return;
      if (worker->role == v1::ROLE_DECODE && decode_left-- <= 1) return;
      Change change;
      change.worker = worker->id;
      change.wish = {to, worker->role, worker->role_epoch, move_after, options_.deadline};
      change.reason = fmt::format("{} becomes {}", worker->id, RoleName(to));
      plan->changes.push_back(std::move(change));
      --left;
      --*missing;
      if (surplus != nullptr) ++*surplus;
    }
  };
  // Wake no more than should work.
  int to_wake = std::max(0, target.workers() - plan->current.workers());
  int woken = std::min(more_decode, to_wake);
  more_decode -= std::max(0, woken);
  take(fleet.parked, v1::ROLE_DECODE, &woken, nullptr);
  more_decode += std::max(0, woken);
  take(fleet.prefill, v1::ROLE_DECODE, &more_decode, &more_prefill);
  take(fleet.decode, v1::ROLE_PREFILL, &more_prefill, &more_decode);
  // A worker woken above counts twice here only if it is still parked.
  to_wake = std::min(more_prefill, to_wake);
  if (plan->changes.empty()) take(fleet.parked, v1::ROLE_PREFILL, &to_wake, nullptr);
  if (plan->changes.empty()) {
    int to_park = std::max(0, plan->current.workers() - target.workers());
    take(fleet.prefill, v1::ROLE_PARKED, &to_park, &more_prefill);
    take(fleet.decode, v1::ROLE_PARKED, &to_park, &more_decode);
  }
  if (plan->changes.empty()) return;
  agreed_ = {};
  changed_ = Direction(plan->current, target);
  rest_until_ = now + options_.rest;
}

void Planner::Refused(Instant now, const std::string& worker) {
  if (refused_.size() < kMaxRefused) refused_[worker] = now + 2 * options_.rest;
}

}  // namespace aisp::planner
