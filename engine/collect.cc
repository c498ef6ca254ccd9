// Handles the results of a finished step.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "engine/engine_impl.h"

namespace aisp {
namespace {

// The draw's edits (penalties, biases) did not fit beside those of other draws in its step, and no
// later step depends on it.
bool WaitsForRoom(const Sequence& s, const SampledToken& sampled) {
  return !sampled.status && sampled.status.error().code == Code::kResourceExhausted &&
         s.rows_in_flight == 0;
}

// Its row runs again in the next step.
void DrawAgain(Sequence& s) {
  --s.computed;
  s.scheduled = s.computed;
  s.draft.clear();
  s.mask_draws = 0;
}

}  // namespace

CollectOutput Engine::Impl::Collect() {
  CollectOutput out;
  out.tokens.swap(pending_tokens);
  out.prefills_done.swap(pending_prefills_done);
  if (!flight.empty()) {
    StepRecord& step = *flight.front();
    Result<StepResult> result =
        step.result ? *std::exchange(step.result, std::nullopt) : executor->Collect(step.ticket);
    const Instant now = clock->Now();
    // A step launched while another ran began when that one ended.
    step.timing.device = now - std::max(step.launched, last_collected);
    if (!result) {
      OnStepError(step, result.error(), "in a step");
    } else {
      flight.pop_front();
      step_failures_in_row = 0;
      ++collected;
      AbsorbAll(step, *result, now, &out);
      if (!result->captured) ReportCost(step, now);
      if (result->device_time > Duration{}) step.timing.device = result->device_time;
      NotePrefillRate(step.timing);
      last_collected = now;
      runs_on = !table.running().empty();
    }
    out.timing = step.timing;
    out.timing.duration = now - step.launched;
    out.timing.overhead = step.overhead + (clock->Now() - now);
  }
  Expire(clock->Now());
  FreeAdapters();
  std::move(pending_tokens.begin(), pending_tokens.end(), std::back_inserter(out.tokens));
  pending_tokens.clear();
  std::erase_if(out.prefills_done, [this](SequenceId id) { return table.Find(id) == nullptr; });
  return out;
}

// If features are in host memory anyway, the kept ones are among them.
void Engine::Impl::AbsorbAll(const StepRecord& step, StepResult& result, Instant now,
                             CollectOutput* out) {
  AISP_CHECK(result.tokens.size() == step.samples.size() &&
             result.scores.size() == step.scored.size());
  const auto hidden = static_cast<size_t>(executor->hidden_size());
  AISP_CHECK(result.hidden.size() == step.hidden_rows.size() * hidden);
  const std::span<const std::byte> features = result.feature_bytes();
  const size_t feature_bytes = features.size() / std::max<size_t>(1, step.feature_rows.size());
  AISP_CHECK(features.size() == step.feature_rows.size() * feature_bytes &&
             features.empty() == step.feature_rows.empty());
  const auto size = static_cast<size_t>(executor->feature_size());
  const bool apart = !executor->features_on_host();
  AISP_CHECK(!apart || result.kept_features.size() == step.kept_rows.size() * size);
  out->tokens.reserve(out->tokens.size() + step.samples.size());
  Brought brought{result.tokens.data(), result.scores.data(), result.hidden.data(), features.data(),
                  result.kept_features.data()};
  Deliver();
  for (const StepRecord::Entry& entry : step.entries) {
    const SequenceId id = entry.sequence->id;
    const size_t own = static_cast<size_t>(entry.features) * feature_bytes;
    const size_t kept_size = static_cast<size_t>(entry.kept) * size;
    const std::span<const float> kept{
        apart ? brought.kept : reinterpret_cast<const float*>(brought.features), kept_size};
    arriving = {id, entry.kept_end - entry.kept, kept};
    Absorb(step, entry, brought, now, out);
    arriving = {};
    if (own > 0) NoteFeatures(id, entry, {brought.features, own}, kept);
    brought.sampled += entry.draws;
    brought.scores += entry.scored;
    brought.hidden += static_cast<size_t>(entry.hidden) * hidden;
    brought.features += own;
    brought.kept += kept_size;
  }
  if (!computed_rows.empty()) options.speculator->Computed(computed_rows);
  computed_rows.clear();
}

void Engine::Impl::ReportCost(const StepRecord& step, Instant now) const {
  if (options.speculator == nullptr || step.timing.prefill_tokens > 0) return;
  int32_t drafts = 0;
  for (const StepRecord::Entry& entry : step.entries) drafts += entry.drafts;
  options.speculator->StepTook(step.timing.decode_rows, drafts, step.timing.decode_context,
                               CycleOf(step, now));
}

// The time a step costs, proposals excluded. If it waited for the previous step's tokens, this
// includes the host's work in between, which a step launched ahead would hide.
Duration Engine::Impl::CycleOf(const StepRecord& step, Instant now) const {
  const bool waited = step.launched > last_collected;
  if (!waited || !runs_on) return now - std::max(step.launched, last_collected);
  return std::max(now - step.launched, now - last_collected - step.timing.propose);
}

// All rows before the first token are prefill.
void Engine::Impl::NoteChunk(SequenceTimes& times, Instant launched, Instant done, int32_t tokens) {
  if (times.first_token != kNever || tokens <= 0) return;
  if (times.chunks.size() < SequenceTimes::kMaxChunks) {
    times.chunks.push_back({launched, done, tokens});
  } else {
    times.chunks.back().done = done;
    times.chunks.back().tokens += tokens;
  }
}

void Engine::Impl::Absorb(const StepRecord& step, const StepRecord::Entry& entry,
                          const Brought& brought, Instant now, CollectOutput* out) {
  Sequence& s = *entry.sequence;
  --s.rows_in_flight;
  if (s.state == SequenceState::kEnded) return ReleaseHusk(s);
  if (std::exchange(s.alone, false)) --suspects;
  if (s.copied && s.copied->pinned) s.computed = s.copied->end;
  EndCopy(s);
  NoteChunk(s.times, step.launched, now, entry.end - entry.drafts - s.computed);
  s.computed = entry.end - entry.drafts;
  s.samples_in_flight -= entry.draws;
  s.drafts_in_flight -= entry.drafts;
  const auto scored = static_cast<size_t>(entry.scored);
  if (scored > 0 && !AbsorbScores(s, {brought.scores, scored}, out)) return;
  if (entry.hidden > 0) AbsorbHidden(s, brought.hidden, entry.hidden);
  if (entry.draws > 0) {
    if (s.has_reader()) return HandToReader(s, brought.sampled, now, out);
    // A sequence alone in its step has all the room.
    if (step.entries.size() > 1 && WaitsForRoom(s, brought.sampled[0])) return DrawAgain(s);
    return AbsorbDraws(s, entry, brought.sampled, now, out);
  }
  if (s.has_reader() && s.computed == s.target()) return HandToReader(s, nullptr, now, out);
  PublishWholeBlocks(s);
  if (s.has_reader()) return;
  if (s.times.prefill_done == kNever && s.computed >= s.size() - 1) s.times.prefill_done = now;
  if (!s.draws() && s.computed == s.target()) FinishOutputs(s, now, out);
}

// `sampled`: null if nothing is drawn. A draw without room is left to the reader, which already
// copies this KV, so it must not be recomputed.
void Engine::Impl::HandToReader(Sequence& s, SampledToken* sampled, Instant now,
                                CollectOutput* out) {
  if (sampled != nullptr && !sampled->status) {
    Error& error = sampled->status.error();
    const Fault fault = FaultOf(error.code);
    if (error.code != Code::kResourceExhausted) {
      if (error.code == Code::kInternal) ForgetSourceBlocks(s);
      return EndWith(s, FinishReason::kError, std::move(error), fault);
    }
    sampled = nullptr;
  }
  PublishWholeBlocks(s);
  s.times.prefill_done = now;
  if (sampled != nullptr) {
    TokenOutput output;
    output.sequence = s.id;
    output.position = s.size();
    output.token = sampled->token;
    output.logprob = std::move(sampled->logprob);
    s.times.first_token = now;
    out->tokens.push_back(std::move(output));
  }
  table.SetState(s, SequenceState::kHolding);
  out->prefills_done.push_back(s.id);
}

// A draft token is accepted when the token drawn at its position equals it; then the token drawn
// after it counts too. KV of rejected tokens is overwritten by the next steps' rows.
void Engine::Impl::AbsorbDraws(Sequence& s, const StepRecord::Entry& entry, SampledToken* sampled,
                               Instant now, CollectOutput* out) {
  const std::vector<TokenId> draft = std::exchange(s.draft, {});
  s.mask_draws = 0;
  const auto right = [&](int32_t i) {
    const auto at = static_cast<size_t>(i);
    return at < draft.size() && sampled[i].status && sampled[i].token == draft[at];
  };
  int32_t accepted = 0;
  while (accepted < entry.drafts && right(accepted)) ++accepted;
  NoteVerified(s, draft, entry.drafts, accepted, right(accepted), out);
  for (int32_t i = 0; i <= accepted; ++i) {
    if (i > 0 && WaitsForRoom(s, sampled[i])) return DrawAgain(s);
    if (!AbsorbToken(s, sampled[i], now, &out->tokens)) return;
    if (i < accepted) ++s.computed;
  }
  if (entry.drafts > 0) s.scheduled = s.computed;
}

bool Engine::Impl::AbsorbToken(Sequence& s, SampledToken& sampled, Instant now,
                               std::vector<TokenOutput>* out) {
  TokenOutput output;
  output.sequence = s.id;
  output.position = s.size();
  if (sampled.status && (sampled.token < 0 || sampled.token >= executor->vocabulary())) {
    sampled.status = Internal(fmt::format("token {} was drawn from a vocabulary of {}",
                                          sampled.token, executor->vocabulary()));
  }
  output.preemptions = s.times.preemptions;
  output.drafts = s.drafts;
  if (!sampled.status) {
    // Publish none of this step's blocks.
    if (sampled.status.error().code == Code::kInternal) ForgetSourceBlocks(s);
    output.finish = FinishReason::kError;
    output.fault = FaultOf(sampled.status.error().code);
    output.error = std::move(sampled.status).error();
  } else {
    output.token = sampled.token;
    output.logprob = std::move(sampled.logprob);
    s.request.tokens.push_back(sampled.token);
    if (s.times.prefill_done == kNever) s.times.prefill_done = now;
    if (s.times.first_token == kNever) s.times.first_token = now;
    PublishWholeBlocks(s);
    const auto& stops = s.request.stop_token_ids;
    if (std::find(stops.begin(), stops.end(), sampled.token) != stops.end()) {
      output.finish = FinishReason::kStop;
    } else if (s.request.guide && !TakeToken(s, sampled.token)) {
      output.finish = FinishReason::kError;
      output.fault = Fault::kRequest;
      output.error = {Code::kInternal,
                      fmt::format("token {} was drawn against the constraint", sampled.token)};
    } else if (s.request.guide && s.request.guide->AtEnd()) {
      output.finish = FinishReason::kStop;
    } else if (s.generated() >= s.request.max_new_tokens || s.size() >= executor->max_context()) {
      output.finish = FinishReason::kLength;
    }
  }
  const bool ends = output.finish != FinishReason::kNone;
  if (ends && output.finish != FinishReason::kError) KeepArriving(s);
  out->push_back(std::move(output));
  if (ends) End(s);
  return !ends;
}

// NaN outputs may come from cached KV that the sequence started from, its own or another worker's:
// unpublish those blocks, so that later sequences recompute. Sequences already using them no longer
// publish.
void Engine::Impl::ForgetSourceBlocks(const Sequence& s) {
  std::vector<BlockId> from = s.blocks;
  if (s.copied) from.push_back(s.copied->from);
  const std::vector<BlockId> forgotten = blocks.Forget(from);
  if (tiers) {
    std::vector<Hash128> keys;
    tiers->ExtendKeys(s.root, s.request.tokens, &keys);
    tiers->Forget(keys);
  }
  if (forgotten.empty()) return;
  std::vector<bool> wrong(static_cast<size_t>(blocks.layout().num_blocks));
  for (const BlockId block : forgotten) wrong[static_cast<size_t>(block.value)] = true;
  const auto touched = [&](const std::vector<BlockId>& held) {
    return std::ranges::any_of(held,
                               [&](BlockId b) { return wrong[static_cast<size_t>(b.value)]; });
  };
  table.ForEachAlive([&](Sequence& other) {
    const bool copied = other.copied && touched({other.copied->from});
    if (copied || touched(other.blocks)) other.publishes = false;
  });
  for (auto& [epoch, prefix] : pulled) prefix.publishes &= !touched(prefix.blocks);
}

bool Engine::Impl::TakeToken(Sequence& s, TokenId token) {
  const std::optional<bool> taken = std::exchange(s.taken_early, std::nullopt);
  return taken ? *taken : s.request.guide->Take(token);
}

void Engine::Impl::PublishWholeBlocks(Sequence& s) {
  const int32_t whole = s.computed / BlockTokens();
  if (whole <= s.published_blocks || !s.publishes) return;
  const auto count = static_cast<size_t>(whole);
  blocks.Publish(
      s.root,
      std::span<const TokenId>(s.request.tokens).first(count * static_cast<size_t>(BlockTokens())),
      std::span<const BlockId>(s.blocks).first(count), s.published_blocks);
  OfferToTiers(s, s.published_blocks, whole);
  s.published_blocks = whole;
}

void Engine::Impl::ReleaseHusk(Sequence& s) {
  if (s.rows_in_flight > 0) return;
  EndCopy(s);
  blocks.Unpin(s.blocks, PinKind::kStep);
  s.blocks.clear();
  table.Erase(s);
}

}  // namespace aisp
