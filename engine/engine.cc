#include "engine/engine.h"

#include <algorithm>

#include "common/check.h"
#include "engine/engine_impl.h"

namespace aisp {
namespace {

BlockManager::Options BlockOptions(const EngineOptions& options, const Executor& executor) {
  BlockManager::Options o;
  o.layout = executor.kv_layout();
  o.enable_prefix_cache = options.enable_prefix_cache;
  return o;
}

ScheduleLimits EffectiveLimits(const EngineOptions& options, const Executor& executor) {
  ScheduleLimits limits = options.limits;
  limits.max_batch_tokens = std::min(limits.max_batch_tokens, executor.max_batch_tokens());
  limits.max_sequences =
      std::min({limits.max_sequences, executor.max_slots(), limits.max_batch_tokens});
  limits.max_prefill_chunk = std::min(limits.max_prefill_chunk, limits.max_batch_tokens);
  AISP_CHECK_MSG(
      limits.max_batch_tokens > 0 && limits.max_sequences > 0 && limits.max_prefill_chunk > 0,
      "engine limits must be positive");
  AISP_CHECK(limits.watermark_blocks >= 0 && limits.max_draft_rows >= 0);
  limits.max_scored_rows = executor.max_scored_rows();
  limits.max_draft_rows =
      std::clamp(executor.max_draws() - limits.max_sequences, 0, limits.max_draft_rows);
  return limits;
}

}  // namespace

Engine::Impl::Impl(const EngineOptions& engine_options, Executor* engine_executor,
                   const Clock* engine_clock, LayerSink* layer_sink)
    : options(engine_options),
      executor(engine_executor),
      clock(engine_clock),
      sink(layer_sink),
      limits(EffectiveLimits(engine_options, *engine_executor)),
      blocks(BlockOptions(engine_options, *engine_executor)),
      table(limits.max_sequences),
      ring(static_cast<size_t>(engine_executor->max_depth())) {
  if (options.tiers.io != nullptr && options.enable_prefix_cache)
    tiers.emplace(options.tiers, &blocks, clock);
  if (FeatureSize() > 0 && options.enable_prefix_cache && options.feature_cache_bytes > 0)
    feature_cache.emplace(FeatureSize(), options.feature_cache_bytes);
  AISP_CHECK(executor->max_depth() >= 1);
  const int32_t wanted = options.speculator != nullptr ? options.speculator->feature_size() : 0;
  AISP_CHECK_MSG(wanted == 0 || wanted == executor->feature_size(),
                 "the speculator wants other features than the executor gives");
  if (options.speculator != nullptr)
    options.speculator->RunsOn({executor->step_sizes(), executor->max_depth() > 1});
}

int32_t Engine::Impl::Watermark() const {
  return table.running().empty() && table.awaiting() == 0 ? 0 : limits.watermark_blocks;
}

Hash128 Engine::Impl::RootOf(const std::string& cache_scope, const std::string& adapter) const {
  // The digest covers the KV format.
  return PrefixRoot(options.weights_digest, "", adapter, cache_scope);
}

template <typename Counts>
PromptWork Engine::Impl::QueuedPrefill(const Counts& counts) const {
  PromptWork work;
  const auto add = [&](const Sequence& s) {
    if (counts(s)) work += PromptWork::Of(s.computed, s.target() - s.computed);
  };
  for (const auto* queue : {&table.waiting(), &table.gated()}) {
    for (const Sequence* s : *queue) add(*s);
  }
  for (const Sequence* s : table.running()) {
    const int32_t decoding = 1 + s->samples_in_flight + s->drafts_in_flight;
    if (s->target() - s->computed > decoding || s->generated() == 0) add(*s);
  }
  return work;
}

Engine::Engine(const EngineOptions& options, Executor* executor, const Clock* clock,
               LayerSink* sink)
    : impl_(std::make_unique<Impl>(options, executor, clock, sink)) {}
Engine::~Engine() = default;

Result<SequenceId> Engine::Add(SequenceRequest request) { return impl_->Add(std::move(request)); }
void Engine::Cancel(SequenceId id) { impl_->Cancel(id); }
void Engine::Prolong(SequenceId id, Instant deadline) {
  if (Sequence* s = impl_->table.Find(id))
    s->request.deadline = std::max(s->request.deadline, deadline);
}
std::vector<SequenceId> Engine::UpcomingGated(int32_t horizon_tokens) const {
  return impl_->UpcomingGated(horizon_tokens);
}
void Engine::OpenGate(SequenceId id) { impl_->OpenGate(id); }
void Engine::Release(SequenceId id) { impl_->Release(id); }
int32_t Engine::LocalMatch(SequenceId id) const { return impl_->LocalMatch(id); }
Result<RemoteGrant> Engine::GrantRemote(SequenceId id, bool with_token) {
  return impl_->GrantRemote(id, with_token);
}
std::optional<TokenOutput> Engine::RemoteFilled(SequenceId id, std::optional<SampledToken> drawn,
                                                const PromptFeatures& features) {
  return impl_->RemoteFilled(id, std::move(drawn), features);
}
int32_t Engine::FeatureSize() const { return impl_->FeatureSize(); }
int32_t Engine::FeatureWindow(SequenceId id) const { return impl_->FeatureWindow(id); }
PromptFeatures Engine::FeaturesOf(SequenceId id) const { return impl_->FeaturesOf(id); }
int32_t Engine::vocabulary() const { return impl_->executor->vocabulary(); }
Result<RemoteGrant> Engine::GrantPrefix(const Hash128& root, std::span<const TokenId> tokens,
                                        int32_t end_token) {
  return impl_->GrantPrefix(root, tokens, end_token);
}
std::span<const BlockId> Engine::PrefixBlocks(Epoch epoch) const {
  return impl_->PrefixBlocks(epoch);
}
void Engine::PrefixFilled(Epoch epoch, int32_t end_token) { impl_->PrefixFilled(epoch, end_token); }
void Engine::DropPrefix(Epoch epoch) { impl_->DropPrefix(epoch); }
void Engine::RemoteFailed(SequenceId id, bool run_locally) { impl_->RemoteFailed(id, run_locally); }
void Engine::EndLease(Epoch epoch) { impl_->EndLease(epoch); }
bool Engine::CanLaunch() const { return impl_->CanLaunch(); }
Status Engine::Launch() { return impl_->Launch(); }
CollectOutput Engine::Collect() { return impl_->Collect(); }
void Engine::Propose(SequenceId id, std::span<const TokenId> tokens) { impl_->Propose(id, tokens); }
void Engine::CheckInvariants() const { impl_->CheckInvariants(); }
void Engine::Expire(Instant now) { impl_->Expire(now); }
Instant Engine::NextDeadline() const {
  return std::min(impl_->next_deadline, impl_->tier_deadline);
}
void Engine::PollTiers() { impl_->PollTiers(); }
KvTiers::Waiting Engine::PromotePrefix(const Hash128& root, std::span<const TokenId> tokens) {
  return impl_->PromotePrefix(root, tokens);
}
std::vector<KvCacheEvent> Engine::TakeTierEvents(TierPlace tier, uint64_t* first_sequence) {
  *first_sequence = 0;
  if (!impl_->tiers) return {};
  return impl_->tiers->TakeEvents(tier, first_sequence);
}
const KvTiers* Engine::tiers() const { return impl_->tiers ? &*impl_->tiers : nullptr; }
const Status& Engine::failed() const { return impl_->failed; }
BlockManager& Engine::blocks() { return impl_->blocks; }
const BlockManager& Engine::blocks() const { return impl_->blocks; }
Hash128 Engine::RootOf(const std::string& cache_scope, const std::string& adapter) const {
  return impl_->RootOf(cache_scope, adapter);
}
std::vector<SlowPathCount> Engine::SlowPaths() const { return impl_->executor->slow_paths(); }
const Speculator* Engine::speculator() const { return impl_->options.speculator.get(); }
uint64_t Engine::Preemptions() const { return impl_->preemptions; }
SequenceTimes Engine::Times(SequenceId id) const { return impl_->table.Times(id); }
bool Engine::Alive(SequenceId id) const { return impl_->table.Find(id) != nullptr; }
int32_t Engine::NumRunning() const { return static_cast<int32_t>(impl_->table.running().size()); }
int32_t Engine::NumAwaitingKv() const { return impl_->table.awaiting(); }

std::span<const BlockId> Engine::BlocksOf(SequenceId id) const {
  const Sequence* s = impl_->table.Find(id);
  return s == nullptr ? std::span<const BlockId>() : std::span<const BlockId>(s->blocks);
}

int32_t Engine::ComputedTokens(SequenceId id) const {
  const Sequence* s = impl_->table.Find(id);
  return s == nullptr ? 0 : s->computed;
}

bool Engine::InFlight() const {
  return !impl_->flight.empty() || !impl_->pending_tokens.empty() ||
         !impl_->pending_prefills_done.empty();
}

bool Engine::StepDone() {
  return impl_->flight.empty() || impl_->flight.front()->result ||
         impl_->executor->Done(impl_->flight.front()->ticket);
}

int32_t Engine::NumWaiting() const {
  return static_cast<int32_t>(impl_->table.waiting().size() + impl_->table.gated().size());
}

PromptWork Engine::QueuedPrefill() const {
  return impl_->QueuedPrefill([](const Sequence&) { return true; });
}

YieldingWork Engine::Yielding() const {
  const auto yields = [](const Sequence& s) {
    return Yields(s.request.tenant.service_class) && s.state != SequenceState::kHolding;
  };
  YieldingWork out;
  out.prefill = impl_->QueuedPrefill(yields);
  impl_->table.ForEachAlive([&](const Sequence& s) {
    if (!yields(s)) return;
    ++out.rows;
    if (s.state == SequenceState::kRunning && !s.has_reader())
      out.blocks += static_cast<int32_t>(s.blocks.size());
  });
  return out;
}

Duration Engine::PrefillAge() const {
  if (impl_->flight.empty() || impl_->flight.front()->timing.prefill_tokens == 0) return {};
  return impl_->clock->Now() - std::max(impl_->flight.front()->launched, impl_->last_collected);
}

}  // namespace aisp
