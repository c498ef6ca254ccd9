// The part common to all workers: messages, jobs, reports. worker_steps.cc plans and ends steps,
// worker_roles.cc changes roles, worker_pulls.cc pulls prefixes.
#include "simulate/worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "common/check.h"
#include "common/prefix_hash.h"
#include "proto/fingerprint.h"
#include "proto/limits.h"
#include "proto/tenant.h"

namespace aisp::simulate {
namespace {

constexpr uint64_t kIncarnation = 1;
// As many steps as a real worker's telemetry holds.
constexpr size_t kMaxSamples = 64;
constexpr Duration kLoadInterval = std::chrono::milliseconds(10);

void AddUnits(const std::vector<Hash128>& units, v1::KvEvent::Kind kind, v1::KvEventBatch* batch) {
  if (units.empty()) return;
  v1::KvEvent& event = *batch->add_events();
  event.set_kind(kind);
  for (const Hash128& unit : units) {
    std::string bytes(16, '\0');
    std::memcpy(bytes.data(), &unit.lo, 8);
    std::memcpy(bytes.data() + 8, &unit.hi, 8);
    event.add_unit_hashes(std::move(bytes));
  }
}

}  // namespace

Worker::Worker(std::string id, bool prefill, const WorkerProfile& profile,
               const v1::Fingerprint& fingerprint, LinkId link, uint64_t seed, World* world)
    : id_(std::move(id)),
      role_(prefill ? v1::ROLE_PREFILL : v1::ROLE_DECODE),
      profile_(profile),
      fingerprint_(fingerprint),
      link_(link),
      world_(world),
      block_(profile.block_tokens),
      random_(seed),
      cache_(profile.blocks) {}

v1::Register Worker::Registration() const {
  v1::Register r;
  r.set_worker_id(id_);
  r.set_incarnation(kIncarnation);
  r.set_role(role_);
  r.set_role_epoch(role_epoch_);
  for (const v1::Role role : {v1::ROLE_PREFILL, v1::ROLE_DECODE, v1::ROLE_PARKED})
    r.add_roles(role);
  *r.mutable_fingerprint() = fingerprint_;
  r.set_kv_address(id_);
  r.set_host_id("simulated");
  r.set_max_sequence_tokens(static_cast<uint32_t>(std::min<int64_t>(
      profile_.blocks * profile_.block_tokens, std::numeric_limits<int32_t>::max())));
  r.set_max_running(static_cast<uint32_t>(profile_.max_running));
  r.set_max_batch_tokens(static_cast<uint32_t>(profile_.max_batch_tokens));
  r.set_max_prefill_chunk(static_cast<uint32_t>(profile_.chunk_tokens));
  r.set_launched_ahead(static_cast<uint32_t>(profile_.launched_ahead));
  r.set_first_tokens(true);
  return r;
}

void Worker::OnRouterMessage(const v1::RouterMessage& message) {
  if (message.has_generate()) return OnGenerate(message.generate());
  if (message.has_cancel()) return OnCancel(message.cancel().request_id());
  if (message.has_set_role()) return OnSetRole(message.set_role());
  v1::WorkerMessage answer;
  if (message.has_probe()) {
    answer.mutable_probe_answer()->set_nonce(message.probe().nonce());
    world_->SendToRouter(*this, std::move(answer));
  } else if (message.has_kv_snapshot()) {
    v1::KvEventBatch& batch = *answer.mutable_kv_events();
    batch.set_incarnation(kIncarnation);
    batch.set_first_sequence(kv_sequence_);
    batch.set_snapshot(true);
    AddUnits(cache_.Units(), v1::KvEvent::STORED, &batch);
    world_->SendToRouter(*this, std::move(answer));
  }
}

void Worker::OnGenerate(const v1::GenerateRequest& generate) {
  // Sent before the router knew of the drain.
  if (role_ != v1::ROLE_DECODE || becoming_ != v1::ROLE_UNSPECIFIED)
    return HandBack(generate.request_id());
  ++requests_;
  auto owned = std::make_unique<Sequence>();
  Sequence& sequence = *owned;
  sequence.wire_id = generate.request_id();
  sequence.decode = this;
  sequence.came = world_->Now();
  sequence.prompt = generate.tokens_size();
  sequence.max_new = static_cast<int32_t>(generate.max_new_tokens()) -
                     (generate.tokens_size() - static_cast<int32_t>(generate.prompt_tokens()));
  const Hash128 root =
      PrefixRoot(PrefixDigest(fingerprint_), "", generate.adapter(), generate.cache_salt());
  sequence.units =
      UnitHashes(root, {generate.tokens().data(), static_cast<size_t>(sequence.prompt)});
  const TenantShare tenant = TenantFromWire(generate.tenant());
  if (aisp::Yields(tenant.service_class)) {
    sequence.yields_until = tenant.patience > Duration{} ? world_->Now() + tenant.patience : kNever;
    any_yields_ = true;
  }
  sequence.limits = LimitsFromWire(generate.limits());
  if (generate.limits().has_cost()) cost_told_ = CostFromWire(generate.limits().cost());
  if (generate.has_pull()) {
    sequence.pull_from = world_->Named(generate.pull().holder().worker_id());
    sequence.pull_tokens = static_cast<int32_t>(generate.pull().tokens());
  }
  sequences_[sequence.wire_id] = std::move(owned);
  if (generate.has_prefill()) {
    sequence.prefill = world_->Named(generate.prefill().worker_id());
    awaiting_.insert(sequence.wire_id);
    world_->JobArrivesAt(*sequence.prefill, *this, sequence.wire_id,
                         world_->Now() + FromMs(profile_.message_ms));
    return NoteLoad();
  }
  if (StartPull(sequence)) return NoteLoad();
  Enqueue(sequence);
  Plan();
  NoteLoad();
}

void Worker::OnCancel(uint64_t wire_id) {
  if (Find(wire_id) == nullptr) return;
  Forget(wire_id);
  WakePrefills();
  Plan();
  MaybeRejoin();
}

// Also from the running step: EndRows and EndChunks look the id up again.
void Worker::Forget(uint64_t wire_id) {
  GiveBack(*Find(wire_id));
  std::erase(waiting_, wire_id);
  std::erase(kv_ready_, wire_id);
  std::erase(running_, wire_id);
  awaiting_.erase(wire_id);
  sequences_.erase(wire_id);
}

Sequence* Worker::Find(uint64_t wire_id) {
  const auto it = sequences_.find(wire_id);
  return it == sequences_.end() ? nullptr : it->second.get();
}

std::span<const Hash128> Worker::UnitsOfBlock(const std::vector<Hash128>& units,
                                              size_t block) const {
  const auto each = static_cast<size_t>(block_ / kHashUnitTokens);
  return {units.data() + block * each, each};
}

std::vector<Hash128> Worker::BlockNames(const std::vector<Hash128>& units, size_t count) const {
  std::vector<Hash128> names(count);
  for (size_t i = 0; i < count; ++i) names[i] = UnitsOfBlock(units, i).back();
  return names;
}

void Worker::GiveBack(Sequence& sequence) {
  cache_.Release(BlockNames(sequence.units, sequence.shared));
  cache_.Return(sequence.private_blocks);
  sequence.shared = 0;
  sequence.private_blocks = 0;
  sequence.computed = 0;
}

// The prompt's whole blocks, once their KV is here.
void Worker::PublishPrompt(Sequence& sequence) {
  const size_t whole = PromptBlocks(std::min(sequence.prompt, sequence.computed));
  for (; sequence.shared < whole; ++sequence.shared) {
    const auto units = UnitsOfBlock(sequence.units, sequence.shared);
    if (cache_.Publish(units)) stored_.insert(stored_.end(), units.begin(), units.end());
    --sequence.private_blocks;
  }
}

bool Worker::Grant(uint64_t wire_id) {
  Sequence& sequence = *Find(wire_id);
  if (!sequence.granted) sequence.granted = Admit(sequence);
  return sequence.granted;
}

void Worker::OnJob(Worker& decode, uint64_t wire_id) {
  Sequence* asked = decode.Find(wire_id);
  if (asked == nullptr) return;
  if (!prefill() || becoming_ != v1::ROLE_UNSPECIFIED) return RefuseJob(decode, wire_id);
  if (!StartPull(*asked)) AddJob(decode, *asked);
}

void Worker::AddJob(Worker& decode, const Sequence& asked) {
  Job job;
  job.decode = &decode;
  job.wire_id = asked.wire_id;
  job.units = asked.units;
  job.tokens = asked.length();
  job.came = world_->Now();
  jobs_.push_back(std::move(job));
  Plan();
  NoteLoad();
}

bool Worker::StartJob(Job& job) {
  if (job.decode->Find(job.wire_id) == nullptr) return false;
  const size_t whole = PromptBlocks(job.tokens);
  const std::vector<Hash128> names = BlockNames(job.units, whole);
  // The last token is always computed, because the next one is drawn from it.
  const size_t held = cache_.Match({names.data(), PromptBlocks(job.tokens - 1)});
  const int64_t needed = job.tokens / block_ + 1 - static_cast<int64_t>(held);
  if (needed > cache_.available() || !job.decode->Grant(job.wire_id)) return false;
  cache_.Use({names.data(), held});
  if (!cache_.Take(needed)) {
    // The blocks just taken into use were among those that could be evicted.
    cache_.Release({names.data(), held});
    return false;
  }
  job.shared = held;
  job.private_blocks = needed;
  job.computed = static_cast<int32_t>(held) * block_;
  job.started = true;
  return true;
}

void Worker::FinishJob(Job& job) {
  const size_t whole = PromptBlocks(job.tokens);
  for (; job.shared < whole; ++job.shared) {
    const auto units = UnitsOfBlock(job.units, job.shared);
    if (cache_.Publish(units)) stored_.insert(stored_.end(), units.begin(), units.end());
    --job.private_blocks;
  }
  cache_.Release(BlockNames(job.units, whole));
  cache_.Return(job.private_blocks);
  const Sequence* waits = job.decode->Find(job.wire_id);
  if (waits == nullptr) return;
  // Uncached KV is transferred while later layers are computed, after this worker's earlier
  // transfers.
  const double bytes = (job.tokens - waits->computed) * profile_.kv_bytes_per_token;
  const Duration whole_transfer = FromMs(bytes / profile_.transfer_bytes_per_s * 1e3);
  const Instant now = world_->Now();
  const Instant begin = std::max(now - FromMs(job.compute_ms), link_free_);
  link_free_ = std::max(begin + whole_transfer, now + whole_transfer / profile_.num_layers);
  world_->KvArrivesAt(*job.decode, job.wire_id, link_free_ + FromMs(profile_.handoff_ms));
}

void Worker::OnKv(uint64_t wire_id) {
  Sequence* sequence = Find(wire_id);
  if (sequence == nullptr) return;
  AISP_CHECK(sequence->granted);
  sequence->computed = sequence->length();
  sequence->came = world_->Now();
  PublishPrompt(*sequence);
  awaiting_.erase(wire_id);
  Emit(*sequence);
  SendKvEvents();
  SendTokens();
  if (Find(wire_id) == nullptr) {
    WakePrefills();  // that token was its last
    MaybeRejoin();
  } else {
    kv_ready_.push_back(wire_id);
  }
  Plan();
}

void Worker::WakePrefills() {
  std::set<Worker*> woken;
  for (uint64_t wire_id : awaiting_) {
    const Sequence& sequence = *Find(wire_id);
    if (!sequence.granted) woken.insert(sequence.prefill);
  }
  for (Worker* worker : woken) worker->Plan();
}

void Worker::Emit(Sequence& sequence) {
  if (++sequence.emitted == 1) sequence.first = world_->Now();
  // Tokens between the first and the last are sent with the last one, or at a drain.
  if (sequence.told == 0 || sequence.emitted == sequence.max_new) QueueTokens(sequence);
}

void Worker::QueueTokens(Sequence& sequence) {
  const int32_t fresh = sequence.emitted - sequence.told;
  if (fresh == 0) return;
  const bool last = sequence.emitted == sequence.max_new;
  v1::TokenEvent& event = *tokens_.add_events();
  event.set_request_id(sequence.wire_id);
  event.set_first_position(static_cast<uint32_t>(sequence.length() - fresh));
  for (int32_t i = 0; i < fresh; ++i) event.add_tokens(0);
  if (last) event.set_finish(v1::FINISH_LENGTH);
  if (sequence.told == 0 && sequence.prefill != nullptr)
    event.mutable_timing()->set_prefill_worker(sequence.prefill->id());
  if (sequence.told == 0 && sequence.pull.result() != v1::PrefixPull::NONE)
    *event.mutable_timing()->mutable_pull() = sequence.pull;
  sequence.told = sequence.emitted;
  if (last) Forget(sequence.wire_id);
}

void Worker::SendTokens() {
  if (tokens_.events_size() == 0) return;
  v1::WorkerMessage message;
  message.mutable_tokens()->Swap(&tokens_);
  world_->SendToRouter(*this, std::move(message));
}

void Worker::SendKvEvents() {
  const std::vector<Hash128> evicted = cache_.TakeEvicted();
  if (stored_.empty() && evicted.empty()) return;
  v1::WorkerMessage message;
  v1::KvEventBatch& batch = *message.mutable_kv_events();
  batch.set_incarnation(kIncarnation);
  batch.set_first_sequence(kv_sequence_);
  AddUnits(evicted, v1::KvEvent::REMOVED, &batch);
  AddUnits(stored_, v1::KvEvent::STORED, &batch);
  kv_sequence_ += static_cast<uint64_t>(batch.events_size());
  stored_.clear();
  world_->SendToRouter(*this, std::move(message));
}

void Worker::OnTelemetryTimer() {
  if (step_.running) {
    telemetry_due_ = true;
  } else {
    SendTelemetry();
  }
}

void Worker::NoteLoad() {
  if (!world_->SeveralRouters() || world_->Now() - telemetry_sent_ < kLoadInterval) return;
  OnTelemetryTimer();
}

size_t Worker::QueuedPrompts() {
  const auto begun = std::count_if(running_.begin(), running_.end(), [this](uint64_t wire_id) {
    return Find(wire_id)->emitted == 0;
  });
  return waiting_.size() + static_cast<size_t>(begun);
}

void Worker::SendTelemetry() {
  telemetry_due_ = false;
  telemetry_sent_ = world_->Now();
  v1::WorkerMessage message;
  v1::Telemetry& t = *message.mutable_telemetry();
  t.set_incarnation(kIncarnation);
  t.set_sequence(++telemetry_sequence_);
  t.set_ready(true);
  t.set_running(static_cast<uint32_t>(prefill() ? jobs_.size() : running_.size()));
  t.set_draining(becoming_ != v1::ROLE_UNSPECIFIED);
  t.set_waiting(static_cast<uint32_t>(waiting_.size() + kv_ready_.size()));
  t.set_awaiting_kv(static_cast<uint32_t>(awaiting_.size()));
  PromptWork queued;
  const auto add = [&](int32_t begin, int32_t end) {
    queued += PromptWork::Of(begin, end - begin);
  };
  for (uint64_t wire_id : waiting_) add(0, Find(wire_id)->length());
  for (uint64_t wire_id : running_) {
    const Sequence& s = *Find(wire_id);
    if (s.length() - s.computed > 1) add(s.computed, s.length());
  }
  for (const Job& job : jobs_) add(job.computed, job.tokens);
  t.set_queued_prefill_tokens(static_cast<uint64_t>(queued.tokens));
  t.set_queued_prefill_context(static_cast<uint64_t>(queued.context));
  if (step_.running && step_.shape.prefill_tokens > 0)
    t.set_prefill_age_ns(static_cast<uint64_t>((world_->Now() - step_.begin).count()));
  t.set_free_blocks(static_cast<uint32_t>(cache_.available()));
  t.set_total_blocks(static_cast<uint32_t>(cache_.total()));
  if (prefill()) t.set_transfer_bytes_per_s(profile_.transfer_bytes_per_s);
  t.set_queued_prompts(static_cast<uint32_t>(prefill() ? jobs_.size() : QueuedPrompts()));
  if (any_yields_) SetYielding(&t);
  t.set_requests_total(requests_);
  t.set_steps_total(steps_);
  t.set_preemptions_total(preemptions_);
  for (v1::StepSample& sample : samples_) *t.add_steps() = std::move(sample);
  samples_.clear();
  world_->SendToRouter(*this, std::move(message));
}

void Worker::SetYielding(v1::Telemetry* telemetry) const {
  uint32_t rows = 0;
  int64_t blocks = 0;
  PromptWork prefill;
  for (const auto& [wire_id, s] : sequences_) {
    if (!Yields(*s)) continue;
    ++rows;
    blocks += static_cast<int64_t>(s->shared) + s->private_blocks;
    const int32_t left = s->length() - s->computed;
    if (s->prefill == nullptr && left > 1) prefill += PromptWork::Of(s->computed, left);
  }
  telemetry->set_yielding_rows(rows);
  telemetry->set_yielding_blocks(static_cast<uint32_t>(blocks));
  telemetry->set_yielding_prefill_tokens(static_cast<uint64_t>(prefill.tokens));
  telemetry->set_yielding_prefill_context(static_cast<uint64_t>(prefill.context));
}

// Approximately normal (Irwin-Hall: the sum of twelve uniform draws), with bounded tails.
double Worker::Jitter() {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += random_.Uniform();
  return std::clamp(1 + profile_.step_jitter * sum, 0.2, 5.0);
}

void Worker::OnStepEnd() {
  step_.running = false;
  busy_ += step_.duration;
  ++steps_;
  if (samples_.size() < kMaxSamples) {
    v1::StepSample& sample = samples_.emplace_back();
    sample.set_prefill_tokens(static_cast<uint32_t>(step_.shape.prefill_tokens));
    sample.set_prefill_context(static_cast<uint64_t>(step_.shape.prefill_context));
    sample.set_decode_rows(static_cast<uint32_t>(step_.shape.decode_rows));
    sample.set_decode_context(static_cast<uint64_t>(step_.shape.decode_context));
    sample.set_duration_ns(static_cast<uint64_t>(step_.duration.count()));
  }
  if (prefill()) {
    EndJobs();
  } else {
    EndRows();
    EndChunks();
    WakePrefills();
  }
  SendKvEvents();
  SendTokens();
  PlanLaunched();
  if (telemetry_due_) SendTelemetry();
  MaybeRejoin();
}

}  // namespace aisp::simulate
