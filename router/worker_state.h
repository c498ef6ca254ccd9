// What the router knows of one registered worker: registration, last telemetry, fitted step costs,
// prefix cache contents, and this router's requests on it. Plain state; the router's thread.
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
#include "router/placed_ages.h"
#include "router/policy.h"
#include "router/prefix_promises.h"
#include "router/prefix_view.h"
#include "router/recent_load.h"
#include "router/router.h"
#include "router/step_time_model.h"
#include "router/tpot_forecast.h"

namespace aisp {

// Bytes of keys and values of one token in all layers.
double KvBytesPerToken(const v1::KvLayoutDesc& layout);

// Learnt from all workers together.
struct PoolModel {
  StepTimeModel steps;  // for workers with few such steps
  // TPOT minus the time of a decode-only step: what prefill rows in the same steps add. Common to
  // all workers, because the router decides where the next prompts go.
  RunningMean tpot_extra_ms{0};
  TpotForecast tpot;
  RecentLoad load;
  AdmissionMargin margin;
  ShortAnswers short_answers;
  // Requests placed by other routers, as the workers report.
  EventRate others;
  // Counts the views' sources: see WorkerView::made_of.
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

  // Ignores reports of another incarnation and reports older than the last. Returns whether it was
  // used; `pool` then has its steps too.
  bool Report(const v1::Telemetry& report, Instant now, PoolModel* pool);
  // The worker is inside a step too long to send telemetry.
  void Beat(const v1::Heartbeat& heartbeat, Instant now);
  // Adds work sent to this worker that its telemetry cannot show yet. `yields`: to interactive
  // requests.
  void Charge(Instant now, const PromptWork& prefill, int64_t context_tokens, int32_t rows,
              bool yields = false);
  size_t unreported() const { return unreported_.size(); }
  // The view without `cached_tokens` and `available`, which depend on the request. An existing view
  // of the same worker and pool is updated. `pool`: learnt from all workers' steps. `yields`:
  // whether the request yields to others; if not, others may yield to it.
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
  PrefixView prefix;       // of its pool
  PrefixView host_prefix;  // of its tiers
  PrefixView disk_prefix;
  PrefixPromises promises;
  int32_t queued_prompts = 0;  // of this router, prefilled here
  int32_t others_prompts = 0;  // of other routers, at its last report
  uint64_t requests_sent = 0;  // by this router; total
  bool draining = false;
  v1::Role becoming = v1::ROLE_UNSPECIFIED;  // the role it drains for, by this router's order
  bool move_all = false;                     // its streams must move to other workers
  std::set<uint64_t> not_started;            // these must move, by wire id
  std::set<std::string> adapters;            // digests of its LoRA adapters
  std::set<std::string> adapters_lacked;     // adapters that it failed to load, as logged
  Instant last_heard;
  bool quiet = false;  // sent nothing for a while: see RouterOptions::quiet_limit
  Instant snapshot_asked = Instant{INT64_MIN};
  uint64_t prefix_gaps_counted = 0;
  uint64_t prefix_dropped_counted = 0;
  std::unordered_set<Hash128> kept;  // names of answers that it keeps
  std::set<uint64_t> attempts;       // wire ids of this router's requests, oldest first
  PlacedAges ages;                   // of them
  // The last requests taken from it before their first token, with the time; it may still have
  // computed them.
  std::deque<std::pair<RequestId, Instant>> left;
  void TakenAway(RequestId request, Instant now);
  SharedPromptsOut prompts;  // shared prompts known on its link

  Instant reported = kNever;  // time of its last telemetry
  // The long step that it runs, by its last heartbeat; kNever: none.
  Instant step_begin = kNever;
  Duration step_expected{};

 private:
  // Updates the counts of other routers' requests from a report.
  void CountOthers(const v1::Telemetry& report, Instant now, PoolModel* pool);
  double BusyMs(Instant now, const WorkerView& view) const;
  // What changes in its view only with a report or with work sent to it, and the backlog at one
  // moment, from which it shrinks.
  struct Basis {
    WorkerView view;
    double backlog_ms = 0;
    Instant at;
    bool settled = false;       // uses nothing from all workers' steps
    uint64_t pool_samples = 0;  // samples of the pool when it was made

    double BacklogAt(Instant now) const {
      return now > at ? std::max(0.0, backlog_ms - ToMs(now - at)) : backlog_ms;
    }
  };
  Basis MakeBasis(Instant now, const PoolModel& pool, bool yields) const;
  // Time to compute its queued prompts: those of its last report minus what it has computed since,
  // plus those sent later.
  void SetBacklog(Instant now, bool all, Basis* basis) const;
  // Removes the yielding requests from `view`.
  void SetYielding(WorkerView* view) const;

  struct Unreported {
    Instant sent;
    PromptWork prefill;
    int64_t context_tokens;
    int32_t rows;
    bool yields;
  };
  // Mean KV tokens that a row of its last decodes read; 0: none reported. Blocks in use do not give
  // it: rows that share a prefix share its blocks, but each row reads them.
  double context_of_row_ = 0;
  // Requests of other routers before the last report; empty before the first.
  std::optional<int64_t> others_seen_;
  bool Stale(const Basis& basis, const PoolModel& pool) const;
  // Index: whether the request yields. Made anew when new data arrives, and while its own steps are
  // too few, when the pool has more.
  mutable std::array<std::optional<Basis>, 2> bases_;
  // The oldest entries are merged if a live worker reports nothing.
  std::deque<Unreported> unreported_;
  PromptWork unreported_prefill_;
  int64_t unreported_context_ = 0;
  int32_t unreported_rows_ = 0;
};

}  // namespace aisp
