// Draft tokens of sequences, and what the draws after them need.
#include <algorithm>

#include "common/check.h"
#include "engine/engine_impl.h"
#include "engine/fair_order.h"

namespace aisp {
namespace {

// Forced tokens in one step: with the regular row, the most rows per sequence of a captured graph.
constexpr int32_t kMostForced = 15;

// Assumed probability that a forced token is accepted, before anything is measured.
constexpr float kForcedConfidence = 0.9f;

}  // namespace

DraftContext Engine::Impl::ContextOf(const Sequence& s) {
  DraftContext context;
  context.sequence = s.id;
  context.tokens = s.request.tokens;
  context.prompt_tokens = s.request.prompt_tokens;
  context.scope = s.request.cache_scope;
  context.sampling = &s.request.sampling;
  context.request = &s.request;
  return context;
}

void Engine::Impl::Propose(SequenceId id, std::span<const TokenId> tokens) {
  Sequence* const s = table.Find(id);
  if (s == nullptr || s->state != SequenceState::kRunning || s->samples_in_flight > 0) return;
  SetDraft(*s, tokens);
  s->draft_rows = static_cast<int32_t>(s->draft.size());
  s->draft_forced = 0;
}

// Cuts before a stop token and before the token that completes the constraint, as no draw follows
// them, and before a forbidden token.
void Engine::Impl::SetDraft(Sequence& s, std::span<const TokenId> tokens) const {
  const auto& stops = s.request.stop_token_ids;
  size_t length = 0;
  for (; length < tokens.size(); ++length) {
    const TokenId t = tokens[length];
    if (t < 0 || t >= executor->vocabulary()) break;
    if (std::find(stops.begin(), stops.end(), t) != stops.end()) break;
  }
  if (DrawGuide* const guide = s.request.guide.get()) {
    size_t taken = 0;
    while (taken < length && guide->Take(tokens[taken])) {
      ++taken;
      if (!guide->AtEnd()) continue;
      guide->Rewind(1);
      --taken;
      break;
    }
    length = taken;
    guide->Rewind(taken);
  }
  s.draft.assign(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(length));
}

// Draft tokens that may be verified: no more than the sequence may still draw.
int32_t Engine::Impl::DraftsOf(const Sequence& s) const {
  if (s.draft.empty() || s.samples_in_flight > 0) return 0;
  return std::max(0, std::min({s.draft_rows, static_cast<int32_t>(s.draft.size()),
                               s.request.max_new_tokens - s.generated() - 1,
                               executor->max_context() - s.size() - 1}));
}

bool Engine::Impl::MayDraft(const Sequence& s) const {
  return !s.has_reader() && s.samples_in_flight == 0 && s.target() - s.scheduled == 1 &&
         s.request.max_new_tokens - s.generated() > 1;
}

bool Engine::Impl::AsksProposer(const Sequence& s) const {
  return options.speculator->has_proposer() && s.request.max_draft_tokens != 0;
}

bool Engine::Impl::AwaitsTokens() const {
  if (options.speculator == nullptr || limits.max_draft_rows == 0 || flight.empty()) return false;
  if (plain_steps > 0 || suspects > 0) return false;
  const auto& running = table.running();
  return std::any_of(running.begin(), running.end(), [this](const Sequence* s) {
    const int32_t left = s->request.max_new_tokens - s->generated() - s->samples_in_flight;
    return !s->has_reader() && s->samples_in_flight > 0 && (s->in_run || AsksProposer(*s)) &&
           left > 1;
  });
}

bool Engine::Impl::AsksForRuns(const Sequence& s) const {
  return s.request.guide != nullptr && options.speculator != nullptr &&
         options.speculator->forced_runs() && limits.max_draft_rows > 0;
}

// The next token is in flight already; the step after it waits if more of a forced run follows.
void Engine::Impl::NoteRun(Sequence& s) const {
  s.in_run = AsksForRuns(s) && s.request.guide->Forced(2).size() > 1;
}

void Engine::Impl::ProposeRun(Sequence& s, SpeculativeSequence* out) const {
  s.in_run = false;
  if (!AsksForRuns(s)) return;
  const int32_t limit = std::min(out->context.limit, kMostForced);
  SetDraft(s, s.request.guide->Forced(static_cast<size_t>(std::max(0, limit))));
  for (const TokenId token : s.draft) out->draft.Add(token, kForcedConfidence);
  out->forced = static_cast<int32_t>(s.draft.size());
}

// Sequences that draw in the next step: running ones, and starting ones whose prompt another worker
// computed but for the last row.
void Engine::Impl::ListDecodes() {
  decodes.assign(table.running().begin(), table.running().end());
  const auto& waiting = table.waiting();
  const auto holds = [](const Sequence* s) { return !s->blocks.empty(); };
  if (std::none_of(waiting.begin(), waiting.end(), holds)) return;
  FairOrder order(table.shares(), waiting);
  for (int32_t slots = table.free_slots(); slots > 0; --slots) {
    const Sequence* const s = order.Next();
    if (s == nullptr) return;
    if (holds(s)) decodes.push_back(table.Find(s->id));
  }
}

void Engine::Impl::ListDrafting(VerifyStep* shape) {
  drafting.clear();
  ListDecodes();
  for (Sequence* s : decodes) {
    const int32_t left = s->target() - s->scheduled;
    shape->rows += std::max(0, left);
    if (left == 1) ++shape->sequences, shape->context_tokens += s->size();
    s->draft.clear();
    if (!MayDraft(*s)) continue;
    SpeculativeSequence drafted;
    drafted.context = ContextOf(*s);
    int32_t& limit = drafted.context.limit;
    limit = std::min(s->request.max_new_tokens - s->generated() - 1,
                     executor->max_context() - s->size() - 1);
    ProposeRun(*s, &drafted);
    // The first draw belongs to the prompt, wherever the rest was computed.
    drafted.proposes = AsksProposer(*s) && s->generated() > 0;
    if (!drafted.proposes && drafted.forced == 0) continue;
    if (s->request.max_draft_tokens > 0)
      limit = std::min(limit, drafted.forced + s->request.max_draft_tokens);
    drafting.push_back(std::move(drafted));
  }
  shape->rows = std::min(shape->rows, limits.max_batch_tokens);
  shape->max_drafts = std::min(limits.max_draft_rows, limits.max_batch_tokens - shape->rows);
}

void Engine::Impl::ProposeAll() {
  Speculator* const speculator = options.speculator.get();
  if (speculator == nullptr || limits.max_draft_rows == 0 || !flight.empty() || suspects > 0)
    return;
  plain_steps = 0;
  Deliver();
  const Instant begin = clock->Now();
  VerifyStep shape;
  ListDrafting(&shape);
  if (drafting.empty()) return;
  speculator->Propose(drafting, shape);
  for (SpeculativeSequence& d : drafting) {
    if (d.draft.tokens.empty()) continue;
    Sequence& s = *table.Find(d.context.sequence);
    if (static_cast<int32_t>(d.draft.tokens.size()) > d.forced) SetDraft(s, d.draft.tokens);
    d.draft.tokens.resize(s.draft.size());
  }
  speculator->Choose(drafting, shape);
  for (const SpeculativeSequence& d : drafting) {
    Sequence& s = *table.Find(d.context.sequence);
    s.draft_rows = d.rows;
    s.draft_forced = d.forced;
  }
  plain_steps = speculator->plain_steps();
  propose_time += clock->Now() - begin;
}

void Engine::Impl::PrepareDraws(Sequence& s, int32_t drafts) {
  const std::span<const TokenId> draft =
      std::span<const TokenId>(s.draft).first(static_cast<size_t>(drafts));
  if (s.reads_generated) {
    s.lookahead.assign(s.request.tokens.begin() + s.request.prompt_tokens, s.request.tokens.end());
    s.lookahead.insert(s.lookahead.end(), draft.begin(), draft.end());
  }
  DrawGuide* const guide = s.request.guide.get();
  if (guide == nullptr) return;
  s.draft_masks.clear();
  size_t taken = 0;
  for (int32_t draw = 0; draw <= drafts; ++draw) {
    const std::span<const uint32_t> mask = guide->Allowed();
    s.draft_masks.insert(s.draft_masks.end(), mask.begin(), mask.end());
    if (draw < drafts && guide->Take(draft[static_cast<size_t>(draw)])) ++taken;
  }
  guide->Rewind(taken);
  s.mask_draws = drafts + 1;
}

void Engine::Impl::NoteVerified(Sequence& s, std::span<const TokenId> draft, int32_t drafted,
                                int32_t accepted, bool next, CollectOutput* out) {
  if (drafted > 0) {
    const int32_t forced = std::min(drafted, s.draft_forced);
    VerifiedDraft verified{s.id, drafted - forced, accepted - std::min(accepted, forced), forced,
                           std::min(accepted, forced)};
    s.drafts.steps += verified.drafted > 0 ? 1 : 0;
    s.drafts.drafted += verified.drafted;
    s.drafts.accepted += verified.accepted;
    out->drafts.push_back(verified);
  }
  if (options.speculator != nullptr && !draft.empty())
    options.speculator->Verified(s.id, drafted, accepted, next);
}

void Engine::Impl::NotifyProposersOfEnd(const Sequence& s) {
  if (options.speculator != nullptr && !s.has_reader()) options.speculator->Ended(ContextOf(s));
}

}  // namespace aisp
