// What a finished step means for its sequences.
#include <fmt/format.h>

#include <algorithm>

#include "common/check.h"
#include "engine/engine_impl.h"

namespace aisp {

CollectOutput Engine::Impl::Collect() {
  CollectOutput out;
  out.tokens.swap(pending_tokens);
  out.prefills_done.swap(pending_prefills_done);
  if (!flight.empty()) {
    StepRecord& step = *flight.front();
    Result<StepResult> result = executor->Collect(step.ticket);
    const Instant now = clock->Now();
    if (!result) {
      FailAll(Error{Code::kUnavailable,
                    fmt::format("the device failed in a step: {}", result.error().message)});
    } else {
      flight.pop_front();
      blocked = false;
      AISP_CHECK(result->tokens.size() == step.samples.size());
      out.tokens.reserve(out.tokens.size() + step.samples.size());
      SampledToken* sampled = result->tokens.data();
      for (const StepRecord::Entry& entry : step.entries)
        Absorb(entry, entry.samples ? sampled++ : nullptr, now, &out);
    }
    out.timing = step.timing;
    out.timing.duration = now - step.launched;
    out.timing.overhead = step.overhead + (clock->Now() - now);
  }
  Expire(clock->Now());
  std::move(pending_tokens.begin(), pending_tokens.end(), std::back_inserter(out.tokens));
  pending_tokens.clear();
  std::erase_if(out.prefills_done, [this](SequenceId id) { return table.Find(id) == nullptr; });
  return out;
}

void Engine::Impl::Absorb(const StepRecord::Entry& entry, SampledToken* sampled, Instant now,
                          CollectOutput* out) {
  Sequence& s = *entry.sequence;
  --s.rows_in_flight;
  if (s.state == SequenceState::kEnded) return ReleaseHusk(s);
  s.computed = entry.end;
  if (sampled != nullptr) return AbsorbToken(s, *sampled, now, out);
  PublishWholeBlocks(s);
  if (s.times.prefill_done == kNever && s.computed >= s.size() - 1) s.times.prefill_done = now;
  if (!s.samples() && s.computed == s.target()) {
    table.SetState(s, SequenceState::kHolding);
    out->prefills_done.push_back(s.id);
  }
}

void Engine::Impl::AbsorbToken(Sequence& s, SampledToken& sampled, Instant now,
                               CollectOutput* out) {
  --s.samples_in_flight;
  TokenOutput output;
  output.sequence = s.id;
  output.position = s.size();
  if (!sampled.status) {
    // What made these logits wrong may lie in the KV, so none of this step's blocks is published.
    output.finish = FinishReason::kError;
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
    } else if (s.generated() >= s.request.max_new_tokens || s.size() >= executor->max_context()) {
      output.finish = FinishReason::kLength;
    }
  }
  const bool ends = output.finish != FinishReason::kNone;
  out->tokens.push_back(std::move(output));
  if (ends) End(s);
}

void Engine::Impl::PublishWholeBlocks(Sequence& s) {
  const int32_t whole = s.computed / BlockTokens();
  if (whole <= s.published_blocks) return;
  const auto count = static_cast<size_t>(whole);
  blocks.Publish(
      s.root,
      std::span<const TokenId>(s.request.tokens).first(count * static_cast<size_t>(BlockTokens())),
      std::span<const BlockId>(s.blocks).first(count), s.published_blocks);
  s.published_blocks = whole;
}

void Engine::Impl::ReleaseHusk(Sequence& s) {
  if (s.rows_in_flight > 0) return;
  blocks.Unpin(s.blocks, PinKind::kStep);
  s.blocks.clear();
  table.Erase(s);
}

}  // namespace aisp
