// From the state of all sequences to a step on the device: snapshot, plan, reserve, launch.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "engine/engine_impl.h"
#include "engine/fair_order.h"

namespace aisp {
namespace {

// Checking a follower (see AddWaitingViews) costs a prefix match, so only this many are passed over
// per step.
constexpr int32_t kMaxFollowersPassed = 16;

// The least-served of several tenants may need more slots than others for its share of tokens.
bool LeastServed(const TenantView& tenant, const std::vector<TenantView>& all) {
  const auto less = [](const TenantView& a, const TenantView& b) { return a.service < b.service; };
  const auto [least, most] = std::minmax_element(all.begin(), all.end(), less);
  return tenant.service <= least->service && tenant.service < most->service;
}

}  // namespace

void StepRecord::Clear() {
  entries.clear();
  tokens.clear();
  positions.clear();
  slot_of_row.clear();
  adapter_of_row.clear();
  adapts = false;
  sequences.clear();
  block_tables.clear();
  logit_rows.clear();
  samples.clear();
  scored.clear();
  hidden_rows.clear();
  feature_rows.clear();
  kept_rows.clear();
  slices.clear();
  copies.clear();
  late_masks.clear();
  result.reset();
  timing = {};
  overhead = {};
}

// Whether a running sequence has a row to compute that is not certain to be discarded.
bool Engine::Impl::Schedulable(const Sequence& s) const {
  if (s.scheduled >= s.target() || s.drafts_in_flight > 0) return false;
  if (s.samples_in_flight == 0) return true;
  // A mask needs every preceding token except the one that the step in flight draws.
  if (s.request.guide && flight.size() > 1) return false;
  const int32_t drawn = s.generated() + s.samples_in_flight;
  return !s.reads_generated && drawn < s.request.max_new_tokens &&
         s.size() + s.samples_in_flight < executor->max_context();
}

bool Engine::Impl::CanLaunch() const {
  if (!failed || flight.size() >= ring.size()) return false;
  if (blocked && *blocked == Now()) return false;
  if (AwaitsTokens()) return false;
  const auto& running = table.running();
  if (std::any_of(running.begin(), running.end(),
                  [this](const Sequence* s) { return Schedulable(*s); }))
    return true;
  return !table.waiting().empty() && table.free_slots() > 0;
}

int32_t Engine::Impl::TenantOf(FairShare::Account& account) {
  if (account.index < 0) {
    account.index = static_cast<int32_t>(tenants.size());
    tenants.push_back({account.service, account.weight, !account.name.empty()});
    listed.push_back(&account);
  }
  return account.index;
}

SequenceView Engine::Impl::ViewOf(const Sequence& s) {
  SequenceView view;
  view.id = s.id;
  view.phase =
      s.state == SequenceState::kRunning ? SequencePhase::kRunning : SequencePhase::kWaiting;
  view.target_tokens = s.target();
  view.computed_tokens = s.scheduled;
  view.blocks_held = static_cast<int32_t>(s.blocks.size());
  view.samples = s.samples();
  view.has_reader = s.has_reader();
  view.draft_tokens = DraftsOf(s);
  view.scores = s.scores();
  view.tenant = TenantOf(*s.account);
  view.rank = s.standing();
  view.service_class = s.request.tenant.service_class;
  view.priority = s.request.priority;
  view.arrival = s.arrival;
  return view;
}

// At least one token is left to compute: a sequence that samples needs its logits, and a
// prefill-only one needs a step that reports its slices (only OpenGate handles a full match).
void Engine::Impl::ViewMatch(const Sequence& s, SequenceView* view) const {
  const int32_t limit = std::min(s.target() - 1, s.match_limit());
  PartialMatch partial;
  const int32_t matched =
      blocks.MatchLength(s.root, s.request.tokens, limit, &view->cached_free_blocks, &partial);
  view->cached_tokens = matched + CopiedTokens(s, matched, limit, partial);
}

void Engine::Impl::AddRunningViews() {
  for (const Sequence* s : table.running()) {
    SequenceView view = ViewOf(*s);
    if (!Schedulable(*s)) view.target_tokens = view.computed_tokens;
    places.Take(view.tenant, view.service_class);
    views.push_back(view);
  }
}

bool Engine::Impl::ComputesPrefixOf(const Sequence& leader, const Sequence& s,
                                    int32_t cached) const {
  const int32_t unit = BlockTokens();
  const int32_t known = leader.target() - leader.samples_in_flight;
  const int32_t limit = std::min({known, s.target() - 1, s.match_limit()}) / unit * unit;
  if (!leader.publishes) return false;
  if (limit <= leader.published_blocks * unit || leader.root != s.root) return false;
  const int32_t worth = std::max(unit, (s.target() - cached) / 2);
  if (limit - cached < worth) return false;
  const TokenId* mine = s.request.tokens.data();
  const auto differs = std::mismatch(mine, mine + limit, leader.request.tokens.data()).first;
  const auto shared = static_cast<int32_t>(differs - mine) / unit * unit;
  return shared > leader.published_blocks * unit && shared - cached >= worth;
}

bool Engine::Impl::WaitsForPrefix(const Sequence& s, int32_t cached) const {
  if (!options.enable_prefix_cache) return false;
  const auto computes = [&](const Sequence* leader) {
    return ComputesPrefixOf(*leader, s, cached);
  };
  return std::any_of(table.running().begin(), table.running().end(), computes) ||
         std::any_of(starting.begin(), starting.end(), computes);
}

// The head of the waiting queue, as far as this step could start it, and all that hold blocks.
// Matching costs time, so it stops at the first that cannot start. A sequence whose prefix another
// is computing waits until that is published, or the other ends or is preempted.
void Engine::Impl::AddWaitingViews() {
  int32_t slots = table.free_slots();
  int32_t tokens = limits.max_batch_tokens;
  int32_t spare = blocks.Available();
  if (!table.waiting().empty()) {
    // Running sequences that would yield to the first of them.
    const ServiceClass first = table.waiting().front()->request.tenant.service_class;
    for (const Sequence* s : table.running()) {
      if (s->has_reader() || s->request.tenant.service_class <= first) continue;
      ++slots;
      spare += static_cast<int32_t>(s->blocks.size());
    }
  }
  auto holders = std::count_if(table.waiting().begin(), table.waiting().end(),
                               [](const Sequence* s) { return !s->blocks.empty(); });
  int32_t patience = kMaxFollowersPassed;
  starting.clear();
  FairOrder order(table.shares(), table.waiting());
  while (const Sequence* s = order.Next()) {
    const bool may_start = slots > 0 && tokens > 0 && spare >= 0 && patience > 0;
    if (!may_start && holders == 0) break;
    if (s->promotion != 0) continue;
    if (s->blocks.empty() && !may_start) continue;
    SequenceView view = ViewOf(*s);
    const TenantView& tenant = tenants[static_cast<size_t>(view.tenant)];
    const bool bounded = tenant.leaves_places && view.rank <= 0 && !LeastServed(tenant, tenants);
    if (bounded && !places.MayTake(view.tenant, tenant.weight, view.service_class)) {
      holders -= s->blocks.empty() ? 0 : 1;
      continue;
    }
    if (s->blocks.empty()) {
      ViewMatch(*s, &view);
      if (WaitsForPrefix(*s, view.cached_tokens)) {
        --patience;
        continue;
      }
      spare -= BlocksFor(view.target_tokens) - view.cached_tokens / BlockTokens();
      spare -= view.cached_free_blocks;
    } else {
      --holders;
    }
    // As the planner does: a long prompt gets half.
    const int32_t left =
        view.target_tokens - (s->blocks.empty() ? view.cached_tokens : view.computed_tokens);
    tokens -= left > tokens ? std::max(tokens / 2, BlockTokens()) : left;
    --slots;
    places.Take(view.tenant, view.service_class);
    starting.push_back(s);
    views.push_back(view);
  }
  starting.clear();
}

void Engine::Impl::BuildSnapshot() {
  scratch.clear();
  const int32_t total = blocks.layout().num_blocks;
  for (const auto* queue : {&table.running(), &table.waiting()}) {
    for (Sequence* s : *queue) {
      if (BlocksFor(s->target()) > total) scratch.push_back(s);
    }
  }
  for (Sequence* s : scratch) EndIfNeverFits(*s);
  views.clear();
  tenants.clear();
  places.Reset(0, limits.max_sequences);
  AddRunningViews();
  if (suspects > 0) {
    IsolateSuspect();
  } else {
    AddWaitingViews();
  }
  for (FairShare::Account* account : std::exchange(listed, {})) account->index = -1;
}

void Engine::Impl::IsolateSuspect() {
  const auto suspect = std::find_if(views.begin(), views.end(), [this](const SequenceView& view) {
    return table.Find(view.id)->alone && view.target_tokens > view.computed_tokens;
  });
  const bool now = flight.empty() && suspect != views.end();
  for (SequenceView& view : views) {
    if (!now || view.id != suspect->id) view.target_tokens = view.computed_tokens;
  }
}

Status Engine::Impl::Launch() {
  if (!CanLaunch()) return {};
  ProposeAll();
  const Instant begin = clock->Now();
  // Only in the first round, so that prefills run if no decode can.
  int32_t prefill_tokens = PrefillTokens(begin);
  // Each round without rows preempted a sequence, so running sequences bound the rounds.
  for (;;) {
    BuildSnapshot();
    const EngineSnapshot snapshot{views, blocks.Available(), BlockTokens(), tenants,
                                  std::exchange(prefill_tokens, limits.max_batch_tokens)};
    const StepPlan& plan = planner.Plan(snapshot, limits);
    if (!plan.preempt.empty() && !flight.empty()) break;
    for (SequenceId id : plan.preempt) Preempt(*table.Find(id));

    StepRecord& step = ring[launched % ring.size()];
    step.Clear();
    for (const PlannedSequence& planned : plan.sequences) Apply(planned, step);
    if (!step.entries.empty()) {
      const bool started = Execute(step, begin);
      if (started || !failed) return failed;
      continue;  // the failed step's sequences run alone: one round each
    }
    if (plan.preempt.empty() && !StartOverStuck()) break;
  }
  blocked = Now();
  return {};
}

// The planner's order of running sequences.
bool Engine::Impl::GoesBefore(const Sequence& a, const Sequence& b) {
  const bool own = a.account == b.account || a.standing() != b.standing();
  return own ? Precedes(a, b) : Precedes(*a.account, *b.account);
}

// A sequence that copied a prefix published by another (two grants for one prompt) publishes its
// next blocks below the other's, which then cannot be evicted. If that uses the last blocks and
// nothing in flight could free one, it restarts on the published blocks.
bool Engine::Impl::StartOverStuck() {
  if (!flight.empty() || blocks.LeasedBlocks() > 0) return false;
  if (tiers && tiers->Busy()) return false;
  bool held = false;
  table.ForEachAlive([&](const Sequence& s) { held |= s.state == SequenceState::kHolding; });
  if (held) return false;
  Sequence* last = nullptr;
  for (Sequence* s : table.running()) {
    if (!s->has_reader() && (last == nullptr || GoesBefore(*last, *s))) last = s;
  }
  if (last == nullptr) return false;
  Preempt(*last);
  return true;
}

// False when blocks that the plan counted on are gone (a preempted sequence shared its blocks, or a
// start evicted a block of another's match): the sequence skips this step.
bool Engine::Impl::Apply(const PlannedSequence& planned, StepRecord& step) {
  Sequence& s = *table.Find(planned.id);
  if (planned.starts) {
    if (!Start(s, planned)) return false;
  } else if (!Grow(s, planned.new_blocks)) {
    return false;
  }
  AppendRows(s, planned, step);
  return true;
}

bool Engine::Impl::Start(Sequence& s, const PlannedSequence& planned) {
  if (!s.blocks.empty()) {
    if (!Grow(s, planned.new_blocks)) return false;
  } else {
    const int32_t limit = std::min(s.target() - 1, s.match_limit());
    if (!TakeBlocks(s, s.target(), limit, /*keep_free=*/0)) return false;
    if (s.times.first_scheduled == kNever) s.times.cached_tokens = s.scheduled;
    TakeKeptFeatures(s);
  }
  if (s.times.first_scheduled == kNever) s.times.first_scheduled = clock->Now();
  table.SetState(s, SequenceState::kRunning);
  return true;
}

bool Engine::Impl::Grow(Sequence& s, int32_t new_blocks) {
  if (new_blocks == 0) return true;
  auto reservation = blocks.Reserve(new_blocks);
  if (!reservation) return false;
  const std::vector<BlockId> taken = reservation->Take(PinKind::kSequence);
  s.blocks.insert(s.blocks.end(), taken.begin(), taken.end());
  return true;
}

// The rows of positions [begin, end): known tokens, then the draft or what the step in flight
// draws.
SequenceRows Engine::Impl::AppendTokens(const Sequence& s, int32_t begin, int32_t end,
                                        int32_t drafts, StepRecord& step) const {
  const int32_t table_blocks = BlocksFor(end);
  AISP_CHECK(table_blocks <= static_cast<int32_t>(s.blocks.size()));
  SequenceRows rows;
  rows.row_begin = static_cast<int32_t>(step.tokens.size());
  rows.num_rows = end - begin;
  rows.context_len = end;
  rows.table_begin = static_cast<int32_t>(step.block_tables.size());
  step.sequences.push_back(rows);
  for (int32_t i = begin; i < end; ++i) {
    const auto at = static_cast<size_t>(i);
    const auto size = static_cast<size_t>(s.size());
    step.tokens.push_back(at < size    ? s.request.tokens[at]
                          : drafts > 0 ? s.draft[at - size]
                                       : kTokenOnDevice);
    step.positions.push_back(i);
    step.slot_of_row.push_back(s.slot);
    step.adapter_of_row.push_back(s.adapter);
  }
  step.adapts |= s.adapter >= 0;
  // The largest copy of a step: a whole table per sequence.
  step.block_tables.resize(step.block_tables.size() + static_cast<size_t>(table_blocks));
  std::transform(s.blocks.begin(), s.blocks.begin() + table_blocks,
                 step.block_tables.end() - table_blocks, [](BlockId block) { return block.value; });
  return rows;
}

void Engine::Impl::AppendRows(Sequence& s, const PlannedSequence& planned, StepRecord& step) {
  // A start may find another match than the snapshot saw: this step evicted blocks, or new ones
  // were published. All else is as planned.
  AISP_CHECK(planned.starts || planned.token_begin == s.scheduled);
  const int32_t begin = s.scheduled;
  const int32_t drafts = planned.draft_tokens;
  const int32_t rows = std::min(planned.num_tokens, s.target() - begin + drafts);
  const int32_t end = begin + rows;
  AISP_CHECK(rows > drafts);
  const bool samples = s.samples() && end - drafts == s.target();
  AISP_CHECK(planned.starts || samples == planned.samples);

  const SequenceRows sequence = AppendTokens(s, begin, end, drafts, step);
  StepRecord::Entry entry{.sequence = &s, .end = end};
  AppendOutputs(s, sequence, step, &entry);
  AppendFeatures(s, begin, sequence.row_begin + rows, step, &entry);
  const int32_t draws = samples && s.draws() ? 1 + drafts : 0;
  if (drafts > 0) PrepareDraws(s, drafts);
  for (int32_t i = 0; i < draws; ++i)
    AppendSample(s, s.target() + i, sequence.row_begin + rows - draws + i, i, step);
  if (draws > 0) s.last_sample = step.samples.size() - 1;
  if (s.has_reader() && sink != nullptr) {
    step.slices.push_back(LayerSlice{s.id, s.reported, end, s.blocks});
    s.reported = end;
  }
  if (s.copied && s.copied->pinned && s.rows_in_flight == 0)
    step.copies.push_back({s.copied->from, s.blocks[static_cast<size_t>(begin / BlockTokens())]});
  FairShare::Charge(s.account, rows - drafts);
  entry.draws = draws;
  entry.drafts = drafts;
  step.entries.push_back(entry);
  const int64_t context = PromptWork::Of(begin, rows).context;
  if (samples && !s.has_reader() && rows == 1 + drafts && s.generated() + s.samples_in_flight > 0) {
    step.timing.decode_rows += rows;
    step.timing.decode_context += context;
  } else {
    step.timing.prefill_tokens += rows;
    step.timing.prefill_context += context;
  }
  s.scheduled = end;
  ++s.rows_in_flight;
  s.samples_in_flight += draws;
  s.drafts_in_flight += drafts;
}

void Engine::Impl::AppendSample(Sequence& s, int32_t position, int32_t row, int32_t draw,
                                StepRecord& step) {
  const std::span<const TokenId> tokens = s.request.tokens;
  const auto prompt = static_cast<size_t>(s.request.prompt_tokens);
  SampleRow sample;
  sample.logit_index = static_cast<int32_t>(step.logit_rows.size());
  sample.slot = s.slot;
  sample.position = static_cast<uint32_t>(position);
  sample.params = &s.request.sampling;
  sample.prompt = tokens.subspan(0, prompt);
  sample.generated = tokens.subspan(prompt);
  if (position - s.request.prompt_tokens < s.request.min_new_tokens)
    sample.banned = s.request.stop_token_ids;
  if (draw > 0 && s.reads_generated)
    sample.generated = std::span<const TokenId>(s.lookahead)
                           .first(static_cast<size_t>(s.generated()) + static_cast<size_t>(draw));
  if (s.request.guide && s.samples_in_flight > 0) {
    step.late_masks.push_back({&s, step.samples.size(), s.last_sample});
  } else if (s.request.guide) {
    const size_t words = s.draft_masks.size() / static_cast<size_t>(std::max(1, s.mask_draws));
    sample.mask = s.mask_draws > 0 ? std::span<const uint32_t>(s.draft_masks)
                                         .subspan(static_cast<size_t>(draw) * words, words)
                                   : s.request.guide->Allowed();
  }
  step.samples.push_back(sample);
  step.logit_rows.push_back(row);
}

bool Engine::Impl::Execute(StepRecord& step, Instant begin) {
  step.step = next_step++;
  step.timing.step = step.step;
  step.timing.propose = std::exchange(propose_time, Duration{});
  plain_steps = std::max(0, plain_steps - 1);
  flight.push_back(&step);
  StepInput input;
  input.step = step.step;
  input.batch = ForwardBatch{step.tokens,    step.positions,    step.slot_of_row,
                             step.sequences, step.block_tables, step.logit_rows};
  if (step.adapts) input.batch.adapter_of_row = step.adapter_of_row;
  input.samples = step.samples;
  input.scored = step.scored;
  input.hidden_rows = step.hidden_rows;
  input.feature_rows = step.feature_rows;
  input.kept_rows = step.kept_rows;
  input.slices = step.slices;
  input.copies = step.copies;
  input.sink = step.slices.empty() ? nullptr : sink;
  input.between_layers = options.between_layers;
  if (!step.late_masks.empty()) input.before_draw = [this, &step] { MakeLateMasks(step); };
  step.added_ms = AddedMs(step.timing);
  step.launched = clock->Now();
  step.overhead = step.launched - begin;
  const Result<Ticket> ticket = executor->Launch(input);
  if (!ticket) {
    OnStepError(step, ticket.error(), "to start a step");
    return false;
  }
  step.ticket = *ticket;
  ++launched;
  return true;
}

// A sequence that ends or fails at the preceding token draws in vain and needs no mask.
void Engine::Impl::MakeLateMasks(StepRecord& step) {
  AISP_CHECK(flight.size() >= 2);
  StepRecord& before = *flight[flight.size() - 2];
  if (!before.result) before.result = executor->Collect(before.ticket);
  if (!*before.result) return;  // reported when that step is collected
  for (const StepRecord::LateMask& late : step.late_masks) {
    Sequence& s = *late.sequence;
    const SampledToken& sampled = (*before.result)->tokens[late.before];
    const auto& stops = s.request.stop_token_ids;
    const bool stopped = std::find(stops.begin(), stops.end(), sampled.token) != stops.end();
    const bool known = sampled.token >= 0 && sampled.token < executor->vocabulary();
    if (!sampled.status || !known || stopped) continue;
    s.taken_early = s.request.guide->Take(sampled.token);
    if (!*s.taken_early || s.request.guide->AtEnd()) continue;
    NoteRun(s);
    step.samples[late.sample].mask = s.request.guide->Allowed();
  }
}

}  // namespace aisp
