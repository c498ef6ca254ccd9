#include "router/worker_state.h"

#include <algorithm>
#include <cmath>

#include "router/prediction.h"

namespace aisp {
namespace {

// Cap on a reported value; no worker launches more steps ahead.
constexpr uint32_t kMostLaunchedAhead = 4;

uint32_t LaunchedAhead(const v1::Register& info) {
  return std::min(info.launched_ahead(), kMostLaunchedAhead);
}

// A report that arrives this soon after a request was sent may have been written before the request
// arrived.
constexpr Duration kReportLag = std::chrono::milliseconds(5);

// Below this rate other routers count as absent.
constexpr double kAlonePerS = 0.01;

// Steps after which a worker's costs count as known.
constexpr uint64_t kKnown = 32;
constexpr uint64_t kKnownAtWork = 4;

constexpr size_t kMostTakenAway = 64;
constexpr size_t kMostUnreported = 1024;

double DtypeBytes(const std::string& dtype) {
  if (dtype == "f32") return 4;
  if (dtype == "bf16" || dtype == "f16") return 2;
  return 1;
}

// Caps on reported numbers, so that sums of a few of them cannot overflow.
constexpr uint32_t kMostSequences = 1u << 20;
constexpr uint32_t kMostTokensOfAStep = 1u << 24;
constexpr uint64_t kMostTokens = uint64_t{1} << 40;
constexpr uint64_t kMostPositions = uint64_t{1} << 50;
constexpr uint64_t kMostRequests = uint64_t{1} << 60;
constexpr uint64_t kLongestNs = uint64_t{3600} * 1'000'000'000;

v1::Telemetry Bounded(v1::Telemetry t) {
  t.set_running(std::min(t.running(), kMostSequences));
  t.set_waiting(std::min(t.waiting(), kMostSequences));
  t.set_awaiting_kv(std::min(t.awaiting_kv(), kMostSequences));
  t.set_queued_prefill_tokens(std::min(t.queued_prefill_tokens(), kMostTokens));
  t.set_queued_prefill_context(std::min(t.queued_prefill_context(), kMostPositions));
  t.set_yielding_rows(std::min(t.yielding_rows(), kMostSequences));
  t.set_yielding_blocks(std::min<uint32_t>(t.yielding_blocks(), INT32_MAX));
  t.set_yielding_prefill_tokens(std::min(t.yielding_prefill_tokens(), t.queued_prefill_tokens()));
  t.set_yielding_prefill_context(
      std::min(t.yielding_prefill_context(), t.queued_prefill_context()));
  t.set_prefill_age_ns(std::min(t.prefill_age_ns(), kLongestNs));
  t.set_total_blocks(std::min<uint32_t>(t.total_blocks(), INT32_MAX));
  t.set_free_blocks(std::min(t.free_blocks(), t.total_blocks()));
  t.set_host_block_ns(std::min(t.host_block_ns(), kLongestNs));
  t.set_disk_block_ns(std::min(t.disk_block_ns(), kLongestNs));
  const double speed = t.transfer_bytes_per_s();
  t.set_transfer_bytes_per_s(std::isfinite(speed) && speed > 0 ? speed : 0);
  return t;
}

bool Plausible(const v1::StepSample& s) {
  return s.prefill_tokens() <= kMostTokensOfAStep && s.decode_rows() <= kMostSequences &&
         s.prefill_context() <= kMostPositions && s.decode_context() <= kMostPositions &&
         s.duration_ns() <= kLongestNs;
}

}  // namespace

double KvBytesPerToken(const v1::KvLayoutDesc& layout) {
  return 2.0 * layout.num_layers() * layout.num_kv_heads() * layout.head_dim() *
         DtypeBytes(layout.dtype());
}

void WorkerState::CountOthers(const v1::Telemetry& report, Instant now, PoolModel* pool) {
  // The worker does not count this router's requests in transit yet: the count of the others then
  // seems to fall, and recovers with the next report.
  const auto others = static_cast<int64_t>(std::min(report.requests_total(), kMostRequests)) -
                      static_cast<int64_t>(requests_sent);
  if (others_seen_ && others > *others_seen_) {
    const auto came =
        static_cast<double>(std::min<int64_t>(others - *others_seen_, kMostSequences));
    pool->others.Add(now, came);
  }
  others_seen_ = std::max(others, others_seen_.value_or(others));
  // As the only router, its own count is better than a report in transit.
  const bool alone = pool->others.PerSecond(now) < kAlonePerS;
  const auto queued = static_cast<int32_t>(std::min(report.queued_prompts(), kMostSequences));
  others_prompts = alone ? 0 : std::max(0, queued - queued_prompts);
}

bool WorkerState::Report(const v1::Telemetry& report, Instant now, PoolModel* pool) {
  if (report.incarnation() != info.incarnation()) return false;
  if (report.sequence() < telemetry.sequence()) return false;
  for (const v1::StepSample& s : report.steps()) {
    if (!Plausible(s)) continue;
    const StepShape shape = {
        static_cast<double>(s.prefill_tokens()), static_cast<double>(s.prefill_context()),
        static_cast<double>(s.decode_rows()), static_cast<double>(s.decode_context())};
    if (shape.decode_rows > 0) {
      context_of_row_ = std::min(shape.decode_context / shape.decode_rows,
                                 static_cast<double>(kMostTokensOfAStep));
    }
    model.Observe(shape, s.duration_ns());
    pool->steps.Observe(shape, s.duration_ns());
  }
  bases_ = {};
  CountOthers(report, now, pool);
  step_begin = kNever;
  reported = now;
  telemetry = Bounded(report);
  telemetry.clear_steps();
  draining = draining || report.draining();
  while (!unreported_.empty() && unreported_.front().sent + kReportLag <= now) {
    const Unreported& seen = unreported_.front();
    unreported_prefill_ -= seen.prefill;
    unreported_context_ -= seen.context_tokens;
    unreported_rows_ -= seen.rows;
    unreported_.pop_front();
  }
  return true;
}

void WorkerState::Beat(const v1::Heartbeat& heartbeat, Instant now) {
  if (heartbeat.incarnation() != info.incarnation()) return;
  const auto bounded = [](uint64_t ns) {
    return Duration(static_cast<int64_t>(std::min(ns, kLongestNs)));
  };
  step_begin = now - bounded(heartbeat.step_age_ns());
  step_expected = bounded(heartbeat.step_expected_ns());
}

void WorkerState::TakenAway(RequestId request, Instant now) {
  if (left.size() >= kMostTakenAway) left.pop_front();
  left.emplace_back(request, now);
}

// The reported duration assumes the slowest row for all rows: an upper bound, often far too high.
// Once a step exceeds its expected time, it is assumed to take as long again.
double WorkerState::BusyMs(Instant now, const WorkerView& view) const {
  if (step_begin == kNever) return 0;
  StepShape step = view.RunningBeside();
  const PromptWork& queued = view.queued_prefill;
  if (queued.tokens > 0) {
    step.prefill_tokens = static_cast<double>(std::min<int64_t>(
        queued.tokens,
        std::max(info.max_batch_tokens(), static_cast<uint32_t>(view.chunk_tokens))));
    step.prefill_context = step.prefill_tokens / static_cast<double>(queued.tokens) *
                           static_cast<double>(queued.context);
  }
  const double age_ms = ToMs(now - step_begin);
  const double expected_ms = std::min(ToMs(step_expected), view.cost.StepMs(step));
  return expected_ms > age_ms ? expected_ms - age_ms : age_ms;
}

void WorkerState::Charge(Instant now, const PromptWork& prefill, int64_t context_tokens,
                         int32_t rows, bool yields) {
  bases_ = {};
  if (unreported_.size() >= kMostUnreported) {
    const Unreported oldest = unreported_.front();
    unreported_.pop_front();
    Unreported& next = unreported_.front();
    next.prefill += oldest.prefill;
    next.context_tokens += oldest.context_tokens;
    next.rows += oldest.rows;
    next.yields = next.yields && oldest.yields;
  }
  unreported_.push_back({now, prefill, context_tokens, rows, yields});
  unreported_prefill_ += prefill;
  unreported_context_ += context_tokens;
  unreported_rows_ += rows;
}

void WorkerState::SetBacklog(Instant now, bool all, Basis* basis) const {
  const WorkerView& view = basis->view;
  const auto ms = [&](const PromptWork& work) { return PromptMs(view, work); };
  PromptWork reported_work{static_cast<int64_t>(telemetry.queued_prefill_tokens()),
                           static_cast<int64_t>(telemetry.queued_prefill_context())};
  if (!all) {
    reported_work -= PromptWork{static_cast<int64_t>(telemetry.yielding_prefill_tokens()),
                                static_cast<int64_t>(telemetry.yielding_prefill_context())};
  }
  basis->backlog_ms =
      std::max(0.0, ms(reported_work) - static_cast<double>(telemetry.prefill_age_ns()) * 1e-6);
  basis->at = reported == kNever ? now : reported;
  for (const Unreported& sent : unreported_) {
    basis->backlog_ms = basis->BacklogAt(sent.sent);
    basis->at = std::max(basis->at, sent.sent);
    if (all || !sent.yields) basis->backlog_ms += ms(sent.prefill);
  }
}

void WorkerState::SetYielding(WorkerView* view) const {
  PromptWork prefill{static_cast<int64_t>(telemetry.yielding_prefill_tokens()),
                     static_cast<int64_t>(telemetry.yielding_prefill_context())};
  const auto block_tokens =
      static_cast<int64_t>(std::max(1u, info.fingerprint().kv_layout().block_tokens()));
  view->yielding_rows = static_cast<int32_t>(telemetry.yielding_rows());
  view->yielding_context = int64_t{telemetry.yielding_blocks()} * block_tokens;
  for (const Unreported& sent : unreported_) {
    if (!sent.yields) continue;
    prefill += sent.prefill;
    view->yielding_rows += sent.rows;
    view->yielding_context += sent.context_tokens;
  }
  view->yielding_rows = std::min(view->yielding_rows, view->rows);
  view->yielding_context = std::min(view->yielding_context, view->context_tokens);
  view->queued_prefill -= prefill;
  view->free_blocks = static_cast<int32_t>(std::min<int64_t>(
      view->total_blocks, view->free_blocks + view->yielding_context / block_tokens));
}

WorkerState::Basis WorkerState::MakeBasis(Instant now, const PoolModel& pool, bool yields) const {
  Basis basis;
  WorkerView& view = basis.view;
  view.worker_id = info.worker_id();
  view.host_id = info.host_id();
  view.prefill = prefill();
  view.first_tokens = info.first_tokens();
  view.gives = !info.kv_address().empty();
  view.cost = model.CostWith(pool.steps);
  basis.settled = model.Settled(prefill());
  basis.pool_samples = pool.steps.samples();
  // Older workers do not report it; the view's default remains.
  if (const uint32_t chunk =
          std::min({info.max_prefill_chunk(), info.max_batch_tokens(), kMostTokensOfAStep});
      chunk > 0)
    view.chunk_tokens = static_cast<int32_t>(chunk);
  view.launched_ahead = static_cast<int32_t>(LaunchedAhead(info));
  view.queued_prefill = {static_cast<int64_t>(telemetry.queued_prefill_tokens()),
                         static_cast<int64_t>(telemetry.queued_prefill_context())};
  view.queued_prefill += unreported_prefill_;
  view.rows =
      static_cast<int32_t>(telemetry.running() + telemetry.waiting() + telemetry.awaiting_kv()) +
      unreported_rows_;
  view.max_rows = std::max(1, static_cast<int32_t>(info.max_running()));
  const auto block_tokens =
      static_cast<int64_t>(std::max(1u, info.fingerprint().kv_layout().block_tokens()));
  const int64_t used_blocks = static_cast<int64_t>(telemetry.total_blocks()) -
                              static_cast<int64_t>(telemetry.free_blocks());
  const double reported_rows = view.rows - unreported_rows_;
  view.context_tokens = unreported_context_ +
                        (context_of_row_ > 0 ? static_cast<int64_t>(context_of_row_ * reported_rows)
                                             : std::max(int64_t{0}, used_blocks) * block_tokens);
  view.block_tokens = static_cast<int32_t>(block_tokens);
  view.kv_bytes_per_token = KvBytesPerToken(info.fingerprint().kv_layout());
  view.total_blocks = static_cast<int32_t>(telemetry.total_blocks());
  view.free_blocks = std::max(0, static_cast<int32_t>(telemetry.free_blocks()) -
                                     static_cast<int32_t>(unreported_context_ / block_tokens));
  view.transfer_bytes_per_s = telemetry.transfer_bytes_per_s();
  view.host_block_ms = static_cast<double>(telemetry.host_block_ns()) * 1e-6;
  view.disk_block_ms = static_cast<double>(telemetry.disk_block_ns()) * 1e-6;
  SetBacklog(now, /*all=*/yields, &basis);
  if (!yields) SetYielding(&view);
  view.made_of = ++pool.bases;
  return basis;
}

bool WorkerState::Stale(const Basis& basis, const PoolModel& pool) const {
  if (reported == kNever) return true;
  // Fewer than an eighth more steps hardly change the fit of all workers.
  const uint64_t more = pool.steps.samples() - basis.pool_samples;
  return !basis.settled && more > basis.pool_samples / 8;
}

void WorkerState::SetView(Instant now, const PoolModel& pool, bool yields, WorkerView* view) const {
  std::optional<Basis>& basis = bases_[yields ? 1 : 0];
  if (!basis || Stale(*basis, pool)) basis = MakeBasis(now, pool, yields);
  if (view->made_of != basis->view.made_of) *view = basis->view;
  view->available = Ready();
  view->busy_ms = BusyMs(now, basis->view);
  view->backlog_ms = basis->BacklogAt(now);
  view->local_ttft = {correction.local.offset_ms.At(now), correction.local.wait_factor.At(now)};
  view->remote_ttft = {correction.remote.offset_ms.At(now), correction.remote.wait_factor.At(now)};
  view->fetch_extra = correction.fetch_ms.At(now);
  view->tpot_extra = pool.tpot_extra_ms.At(now);
  view->tpot_margin = pool.margin.value();
  view->queued_prompts = queued_prompts + others_prompts;
  // A busy worker counts as known after a few steps, or a burst would go to it before it reports
  // many. An idle worker is tried.
  view->known = pool.steps.samples() >= (view->rows > 0 ? kKnownAtWork : kKnown);
}

WorkerStatus WorkerState::Describe(const PoolModel& pool) const {
  WorkerStatus status;
  status.id = info.worker_id();
  status.incarnation = info.incarnation();
  status.role = info.role();
  status.role_epoch = info.role_epoch();
  for (const int role : info.roles()) status.roles.push_back(static_cast<v1::Role>(role));
  status.becoming = becoming;
  status.host_id = info.host_id();
  status.pid = info.pid();
  status.admin_url = info.admin_url();
  status.version = info.version();
  status.running = telemetry.running();
  status.waiting = telemetry.waiting() + telemetry.awaiting_kv();
  status.free_blocks = telemetry.free_blocks();
  status.total_blocks = telemetry.total_blocks();
  status.streams = static_cast<uint32_t>(attempts.size());
  status.awaiting_kv = telemetry.awaiting_kv();
  status.quarantined_blocks = telemetry.quarantined_blocks();
  status.queued_prefill_tokens = telemetry.queued_prefill_tokens();
  status.steps = telemetry.steps_total();
  status.preemptions = telemetry.preemptions_total();
  status.transfer_bytes_per_s = telemetry.transfer_bytes_per_s();
  status.cost = model.CostWith(pool.steps);
  status.fitted_steps = model.samples();
  status.chunk_tokens = info.max_prefill_chunk();
  status.launched_ahead = LaunchedAhead(info);
  status.max_batch_tokens = info.max_batch_tokens();
  status.max_running = info.max_running();
  status.block_tokens = info.fingerprint().kv_layout().block_tokens();
  status.num_layers = info.fingerprint().kv_layout().num_layers();
  status.kv_bytes_per_token = KvBytesPerToken(info.fingerprint().kv_layout());
  using State = WorkerStatus::State;
  if (draining) {
    status.state = telemetry.drained() && attempts.empty() ? State::kDrained : State::kDraining;
  } else if (telemetry.ready() && parked()) {
    status.state = State::kParked;
  } else if (telemetry.ready()) {
    status.state = step_begin == kNever ? State::kReady : State::kBusy;
  } else {
    status.unready_reason = telemetry.unready_reason();
  }
  return status;
}

}  // namespace aisp
