// How sequences are added, wait, lose their blocks and end.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "engine/draw_checks.h"
#include "engine/engine_impl.h"

namespace aisp {

Status Engine::Impl::Validate(const SequenceRequest& request) const {
  const auto size = static_cast<int64_t>(request.tokens.size());
  if (size == 0) return InvalidArgument("the sequence has no tokens; at least one is needed");
  // Checked once here for every source: clients' ids, templates, peers, tokens drawn elsewhere.
  const auto outside =
      std::find_if(request.tokens.begin(), request.tokens.end(),
                   [this](TokenId t) { return t < 0 || t >= executor->vocabulary(); });
  if (outside != request.tokens.end()) {
    return InvalidArgument(
        fmt::format("token {} at position {} is not in the model's vocabulary of {} ids", *outside,
                    outside - request.tokens.begin(), executor->vocabulary()));
  }
  const bool whole = request.kv_source != KvSource::kPrefillOnly || request.draws_first;
  if (whole && (request.prompt_tokens < 1 || request.prompt_tokens > size)) {
    return InvalidArgument(
        fmt::format("prompt_tokens is {} and must be within [1, {}]", request.prompt_tokens, size));
  }
  AISP_RETURN_IF_ERROR(ValidateOutputs(request));
  AISP_RETURN_IF_ERROR(CheckDraws(request, executor->vocabulary()));
  if (!request.adapter.empty() && !HasAdapter(request.adapter)) {
    // Retryable: another worker may have it.
    return Unavailable(
        fmt::format("this worker has no LoRA adapter with the digest {}; it was unloaded, or the "
                    "worker could not load it",
                    request.adapter));
  }
  // A drawn token needs a position too, though its KV may never be computed.
  const int64_t context = executor->max_context();
  const bool draws = Draws(request);
  if (size + (draws ? 1 : 0) > context) {
    return InvalidArgument(fmt::format(
        "the sequence has {} tokens and the model's context is {}{}; shorten the prompt", size,
        context, draws ? ", one kept for the answer" : ""));
  }
  const int32_t needed = BlocksFor(static_cast<int32_t>(whole ? size : size - 1));
  const int32_t total = blocks.layout().num_blocks;
  if (needed > total) {
    return InvalidArgument(
        fmt::format("the sequence has {} tokens, which need {} KV blocks, and the pool has {} in "
                    "all; shorten the prompt or give the "
                    "worker a larger KV pool",
                    size, needed, total));
  }
  return {};
}

// Checks outputs of prompt rows; a remote prefill delivers KV only.
Status Engine::Impl::ValidateOutputs(const SequenceRequest& request) const {
  const bool pools = request.pooling != Pooling::kNone;
  if (pools && executor->hidden_size() == 0) {
    return Unimplemented(
        "embeddings are not supported by this worker's device; use one on the CPU");
  }
  if (request.prompt_logprobs >= 0 && executor->max_scored_rows() == 0) {
    return Unimplemented(
        "logprobs of the prompt are not supported by this worker's device; use one on the CPU");
  }
  const bool every_row =
      request.prompt_logprobs >= 0 || (pools && request.pooling != Pooling::kLast);
  if (every_row && request.kv_source != KvSource::kLocal) {
    return InvalidArgument(
        "outputs of a prompt's rows are wanted where another worker computes them");
  }
  return {};
}

FinishReason Engine::Impl::FinishedAtStart(const SequenceRequest& request) {
  if (request.kv_source == KvSource::kPrefillOnly || request.pooling != Pooling::kNone)
    return FinishReason::kNone;
  if (request.prompt_logprobs >= 0 && request.prompt_logprobs_from < request.prompt_tokens)
    return FinishReason::kNone;
  const auto size = static_cast<int32_t>(request.tokens.size());
  const int32_t generated = size - request.prompt_tokens;
  const auto& stops = request.stop_token_ids;
  if (generated > 0 &&
      std::find(stops.begin(), stops.end(), request.tokens.back()) != stops.end()) {
    return FinishReason::kStop;
  }
  return generated >= request.max_new_tokens ? FinishReason::kLength : FinishReason::kNone;
}

Result<SequenceId> Engine::Impl::Add(SequenceRequest request) {
  if (!failed) return tl::unexpected(failed.error());
  AISP_RETURN_IF_ERROR(Validate(request));
  if (table.alive() >= options.max_sequences_total) {
    return ResourceExhausted(fmt::format(
        "{} sequences wait or run and the limit is {}; try again later or another worker",
        table.alive(), options.max_sequences_total));
  }
  FitDraws(&request.sampling);
  if (request.pooling != Pooling::kNone) request.max_new_tokens = 0;
  FinishReason finished = FinishedAtStart(request);
  if (request.guide) {
    if (!executor->applies_masks()) {
      return Unimplemented("this worker's device cannot constrain answers yet; use one on the CPU");
    }
    // Replays tokens emitted elsewhere through the guide.
    for (size_t i = static_cast<size_t>(request.prompt_tokens); i < request.tokens.size(); ++i) {
      if (finished != FinishReason::kNone) break;
      if (!request.guide->Take(request.tokens[i])) {
        return InvalidArgument(fmt::format(
            "token {} of the answer so far does not follow its constraint", request.tokens[i]));
      }
    }
    if (finished == FinishReason::kNone && request.guide->AtEnd()) finished = FinishReason::kStop;
  }
  if (request.kv_source != KvSource::kPrefillOnly) {
    // The executor holds views of the tokens during a step, so they must not move as they grow.
    const int64_t longest = std::min<int64_t>(
        executor->max_context(), request.prompt_tokens + int64_t{request.max_new_tokens});
    request.tokens.reserve(static_cast<size_t>(std::max<int64_t>(longest, 0)) + 1);
  }
  if (request.step_cost) step_cost = request.step_cost;
  Sequence& s = table.Add(std::move(request));
  s.root = RootOf(s.request.cache_scope, s.request.adapter);
  if (!s.request.adapter.empty()) s.adapter = executor->FindAdapter(s.request.adapter);
  s.times.added = clock->Now();
  const SamplingParams& sampling = s.request.sampling;
  s.reads_generated = sampling.presence_penalty != 0 || sampling.frequency_penalty != 0 ||
                      (sampling.repetition_penalty != 1.0f && sampling.repetition_penalty != 0);
  if (s.state == SequenceState::kGated) s.match_hint = LocalMatch(s.id);
  next_deadline = std::min(next_deadline, s.request.deadline);
  next_aging = std::min(next_aging, s.ages_at());
  s.window_end = s.size();
  if (GivesFeatures(s))
    s.window_begin = std::max(0, s.size() - options.speculator->feature_window());
  const SequenceId id = s.id;
  if (finished != FinishReason::kNone) {
    EndWith(s, finished);
  } else {
    AskTiers(s);
  }
  return id;
}

void Engine::Impl::Cancel(SequenceId id) {
  std::erase_if(pending_tokens, [id](const TokenOutput& o) { return o.sequence == id; });
  if (Sequence* s = table.Find(id)) End(*s);
}

void Engine::Impl::Age(Instant now) {
  if (now < next_aging) return;
  scratch.clear();
  next_aging = kNever;
  table.ForEachAlive([&](Sequence& s) {
    if (s.ages_at() <= now) {
      scratch.push_back(&s);
    } else {
      next_aging = std::min(next_aging, s.ages_at());
    }
  });
  for (Sequence* s : scratch) table.Promote(*s);
}

void Engine::Impl::Expire(Instant now) {
  Age(now);
  ExpireTierWaits(now);
  if (now < next_deadline) return;
  scratch.clear();
  Instant next = kNever;
  table.ForEachAlive([&](Sequence& s) {
    if (s.request.deadline <= now) {
      scratch.push_back(&s);
    } else {
      next = std::min(next, s.request.deadline);
    }
  });
  next_deadline = next;
  std::sort(scratch.begin(), scratch.end(),
            [](const Sequence* a, const Sequence* b) { return a->id < b->id; });
  for (Sequence* s : scratch) {
    EndWith(*s, FinishReason::kError,
            Error{Code::kDeadlineExceeded,
                  fmt::format("the deadline passed {:.0f} ms after the sequence was added, with {} "
                              "of {} new tokens drawn",
                              ToMs(s->request.deadline - s->times.added),
                              s->has_reader() ? 0 : s->generated(), s->request.max_new_tokens)});
  }
}

void Engine::Impl::DropBlocks(Sequence& s) {
  if (s.rows_in_flight > 0) {
    blocks.Pin(s.blocks, PinKind::kStep);
    blocks.Unpin(s.blocks, PinKind::kSequence);
    return;
  }
  DropCopy(s);
  blocks.Unpin(s.blocks, PinKind::kSequence);
  s.blocks.clear();
}

void Engine::Impl::End(Sequence& s) {
  std::erase(pending_prefills_done, s.id);
  if (std::exchange(s.alone, false)) --suspects;
  NotifyProposersOfEnd(s);
  DropBlocks(s);
  table.SetState(s, SequenceState::kEnded);
  if (s.rows_in_flight == 0) table.Erase(s);
}

void Engine::Impl::EndWith(Sequence& s, FinishReason finish, Error error, Fault fault) {
  TokenOutput output;
  output.sequence = s.id;
  output.position = s.size();
  output.drafts = s.drafts;
  output.finish = finish;
  output.error = std::move(error);
  output.fault = fault;
  pending_tokens.push_back(std::move(output));
  End(s);
}

bool Engine::Impl::EndIfNeverFits(Sequence& s) {
  const int32_t total = blocks.layout().num_blocks;
  const int32_t needed = BlocksFor(s.target());
  if (needed <= total || s.rows_in_flight > 0) return false;
  EndWith(s, FinishReason::kError,
          Error{Code::kResourceExhausted,
                fmt::format("the sequence has grown to {} tokens, which need {} KV blocks, and the "
                            "pool has {} in all; ask "
                            "for fewer tokens or give the worker a larger KV pool",
                            s.target(), needed, total)},
          Fault::kPeer);
  return true;
}

void Engine::Impl::Preempt(Sequence& s) {
  AISP_CHECK(s.rows_in_flight == 0 && !s.has_reader());
  if (std::exchange(s.alone, false)) --suspects;
  DropBlocks(s);
  s.computed = 0;
  s.scheduled = 0;
  s.published_blocks = 0;
  s.pooled.clear();
  s.draft.clear();
  ++s.times.preemptions;
  ++preemptions;
  table.SetState(s, SequenceState::kWaiting);
}

void Engine::Impl::OnStepError(const StepRecord& step, const Error& error, const char* when) {
  // So many in a row are not any request's fault.
  constexpr int kMostStepFailures = 8;
  const bool lives =
      FaultOfStep(error.code) == Fault::kStep && ++step_failures_in_row < kMostStepFailures;
  if (lives) {
    std::erase(flight, &step);
    ++collected;
    return FailStep(step, error);
  }
  FailAll(Error{Code::kUnavailable, fmt::format("the device failed {}: {}", when, error.message)});
}

// Replans the step's work with one sequence per step: one that fails alone is at fault. Sequences
// that cannot be rolled back (rows in another step, slices reported to a reader) end as retryable.
void Engine::Impl::FailStep(const StepRecord& step, const Error& error) {
  const bool alone = step.entries.size() == 1;
  for (size_t i = 0; i < step.entries.size(); ++i) {
    const StepRecord::Entry& entry = step.entries[i];
    Sequence& s = *entry.sequence;
    --s.rows_in_flight;
    s.samples_in_flight -= entry.draws;
    s.drafts_in_flight -= entry.drafts;
    if (entry.drafts > 0) s.draft.clear();
    if (s.state == SequenceState::kEnded) {
      ReleaseHusk(s);
      continue;
    }
    const int32_t rows = step.sequences[i].num_rows;
    const bool last = s.scheduled == entry.end && !s.has_reader();
    const bool culprit = alone && error.code != Code::kResourceExhausted;
    if (alone || !last) {
      const Error failure{
          culprit ? Code::kInternal : Code::kUnavailable,
          fmt::format("the step that computed this request failed: {}", error.message)};
      EndWith(s, FinishReason::kError, failure, culprit ? Fault::kRequest : Fault::kStep);
      continue;
    }
    s.scheduled -= rows;
    if (!std::exchange(s.alone, true)) ++suspects;
  }
}

void Engine::Impl::FailAll(const Error& error) {
  failed = tl::unexpected(error);
  scratch.clear();
  table.ForEachAlive([&](Sequence& s) { scratch.push_back(&s); });
  std::sort(scratch.begin(), scratch.end(),
            [](const Sequence* a, const Sequence* b) { return a->id < b->id; });
  for (Sequence* s : scratch) EndWith(*s, FinishReason::kError, error, Fault::kDevice);
  for (StepRecord* step : flight) {
    for (const StepRecord::Entry& entry : step->entries) {
      --entry.sequence->rows_in_flight;
      ReleaseHusk(*entry.sequence);
    }
  }
  flight.clear();
}

}  // namespace aisp
