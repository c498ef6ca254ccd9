// What the router knows of one registered worker: its registration, its last telemetry, the fitted
// cost of its steps, what its prefix cache holds, and which requests of this router run on it.
// Plain state of the router; its thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>

#include "common/clock.h"
#include "common/hash.h"
#include "proto/link.h"
#include "proto/shared_prompts.h"
#include "router/answer_lengths.h"
#include "router/correction.h"
#include "router/policy.h"
#include "router/prefix_promises.h"
#include "router/prefix_view.h"
#include "router/router.h"
#include "router/step_time_model.h"
#include "router/tpot_forecast.h"

namespace aisp {

// Of one token in all layers, keys and values.
double KvBytesPerToken(const v1::KvLayoutDesc& layout);

// What is learnt from all workers together.
struct PoolModel {
  StepTimeModel steps;  // for workers that have hardly run such a step
  // By how much TPOT is above a step of nothing but decodes: what prompts that are computed beside
  // them add. One for all workers, since the next prompts go where the router sends them: a worker
  // that has just had many need not have as many again.
  RunningMean tpot_extra_ms{0};
  TpotForecast tpot;  // of the same steps
  AdmissionMargin margin;
  double tpot_limit_ms = 0;  // that streams are to keep beside prompts; 0: none
  ShortAnswers short_answers;
  double beside =
      0;  // the part of each second by which prompts make a decode worker's steps longer
  // Requests that other routers placed, as workers count them.
  EventRate others;
  // What views were made of, numbered: see WorkerView::made_of.
  mutable uint64_t bases = 0;
};

class WorkerState {
 public:
  WorkerState(LinkId on_link, v1::Register registration, size_t max_prefix_units,
              PrefixDirectory* directory, PrefixDirectory* promised, Instant now,
              PrefixDirectory* host = nullptr, PrefixDirectory* disk = nullptr)
      : link(on_link),
        info(std::move(registration)),
        prefix(info.incarnation(), max_prefix_units, directory),
        host_prefix(info.incarnation(), max_prefix_units, host),
        disk_prefix(info.incarnation(), max_prefix_units, disk),
        promises(promised),
        last_heard(now) {}

  bool prefill() const { return info.role() == v1::ROLE_PREFILL; }
  bool decode() const { return info.role() == v1::ROLE_DECODE; }
  bool parked() const { return info.role() == v1::ROLE_PARKED; }
  bool Ready() const { return telemetry.ready() && !draining && !parked(); }

  // Ignores another incarnation's report and one that is older than the last. Returns whether it
  // was taken; then `pool` has its steps too.
  bool Report(const v1::Telemetry& report, Instant now, PoolModel* pool);
  // It is inside a step too long to report anything else.
  void Beat(const v1::Heartbeat& heartbeat, Instant now);
  // Work sent to this worker that its telemetry cannot show yet; `yields`: to interactive requests.
  void Charge(Instant now, const PromptWork& prefill, int64_t context_tokens, int32_t rows,
              bool yields = false);
  size_t unreported() const { return unreported_.size(); }
  // Without `cached_tokens` and `available`, which depend on the request; a view that was made of
  // the same worker before, by the same pool, is brought up to date. `pool` is learnt from all
  // workers' steps. For a request that `yields` itself, or one to which others do.
  WorkerView View(Instant now, const PoolModel& pool, bool yields = false) const {
    WorkerView view;
    SetView(now, pool, yields, &view);
    return view;
  }
  void SetView(Instant now, const PoolModel& pool, bool yields, WorkerView* view) const;
  WorkerStatus Describe(const PoolModel& pool) const;

  const LinkId link;
  const v1::Register info;
  v1::Telemetry telemetry;
  StepTimeModel model;
  Correction correction;   // decode workers
  PrefixView prefix;       // in its pool
  PrefixView host_prefix;  // in its tiers
  PrefixView disk_prefix;
  PrefixPromises promises;
  int32_t queued_prompts = 0;  // of this router, that it computes
  int32_t others_prompts = 0;  // of other routers, at its last report
  uint64_t requests_sent = 0;  // by this router
  bool draining = false;
  v1::Role becoming = v1::ROLE_UNSPECIFIED;  // it drains for that, by this router's word
  bool move_all = false;                     // it wants its streams placed elsewhere
  std::set<uint64_t> not_started;            // or at least these, by wire id
  std::set<std::string> adapters;            // digests of LoRA adapters that it has
  std::set<std::string> adapters_lacked;     // that it could not load, as the log has it
  Instant last_heard;
  bool quiet = false;  // it has said nothing for a while: see RouterOptions::quiet_limit
  Instant snapshot_asked = Instant{INT64_MIN};
  uint64_t prefix_gaps_counted = 0;
  uint64_t prefix_dropped_counted = 0;
  std::unordered_set<Hash128> kept;  // answers, by name
  std::set<uint64_t> attempts;       // wire ids of this router's requests, oldest first
  // Requests that were taken from it before it had brought a token of them, and when: it may have
  // computed them still. The last ones.
  std::deque<std::pair<RequestId, Instant>> left;
  void TakenAway(RequestId request, Instant now);
  SharedPromptsOut prompts;  // that its link has in common

  Instant reported = kNever;  // its last telemetry came
  // The long step that it is in, by its last heartbeat; kNever: none.
  Instant step_begin = kNever;
  Duration step_expected{};

 private:
  // What a report says of other routers.
  void CountOthers(const v1::Telemetry& report, Instant now, PoolModel* pool);
  double BusyMs(Instant now, const WorkerView& view) const;
  // What of its view changes with a report or with what is sent to it alone, and the backlog at a
  // moment, from which it shrinks.
  struct Basis {
    WorkerView view;
    double backlog_ms = 0;
    Instant at;
    bool settled = false;       // it takes nothing from all workers' steps
    uint64_t pool_samples = 0;  // of these, when it was made

    double BacklogAt(Instant now) const {
      return now > at ? std::max(0.0, backlog_ms - ToMs(now - at)) : backlog_ms;
    }
  };
  Basis MakeBasis(Instant now, const PoolModel& pool, bool yields) const;
  // How long the prompts that it has take: those of its last report, less what it has computed
  // since, and those that were sent to it later.
  void SetBacklog(Instant now, bool all, Basis* basis) const;
  // Leaves out of `view` what gives way.
  void SetYielding(WorkerView* view) const;

  struct Unreported {
    Instant sent;
    PromptWork prefill;
    int64_t context_tokens;
    int32_t rows;
    bool yields;
  };
  // KV tokens that a row of its last decodes read; 0: it has reported none. Blocks that are in use
  // do not say it: of a prefix that many rows share there is one copy, which each of them reads.
  double context_of_row_ = 0;
  // Requests of other routers before the last report; nothing before the first.
  std::optional<int64_t> others_seen_;
  bool Stale(const Basis& basis, const PoolModel& pool) const;
  // By whether the request yields; made anew when something came, and as long as its own steps say
  // too little, once all workers' say more.
  mutable std::array<std::optional<Basis>, 2> bases_;
  // The oldest are counted as one where a worker that is alive reports nothing.
  std::deque<Unreported> unreported_;
  PromptWork unreported_prefill_;
  int64_t unreported_context_ = 0;
  int32_t unreported_rows_ = 0;
};

}  // namespace aisp
