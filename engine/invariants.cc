// What must hold between any two calls of an engine.
#include <map>

#include "common/check.h"
#include "engine/engine_impl.h"

namespace aisp {

void Engine::Impl::CheckSequence(const Sequence& s) const {
  const bool ended = s.state == SequenceState::kEnded;
  const auto held = static_cast<int32_t>(s.blocks.size());
  AISP_CHECK_MSG(s.computed <= s.scheduled, "KV is done before it was scheduled");
  AISP_CHECK_MSG(ended || s.scheduled <= s.target() + s.drafts_in_flight,
                 "more is scheduled than there are tokens");
  AISP_CHECK_MSG(ended || s.computed <= s.size(), "KV of tokens that are not known");
  AISP_CHECK_MSG(held == 0 || BlocksFor(s.scheduled) <= held, "KV is scheduled without blocks");
  AISP_CHECK_MSG(s.published_blocks * BlockTokens() <= s.computed || s.computed == 0,
                 "blocks are published before they are computed");
  AISP_CHECK_MSG(s.rows_in_flight >= 0 && s.samples_in_flight >= 0 && s.drafts_in_flight >= 0,
                 "fewer rows are in flight than none");
  AISP_CHECK_MSG(s.drafts_in_flight <= static_cast<int32_t>(s.draft.size()) || ended,
                 "more proposed tokens are in flight than there are");
  switch (s.state) {
    case SequenceState::kRunning:
      AISP_CHECK_MSG(held > 0, "a sequence runs without blocks");
      return;
    case SequenceState::kGated:
      AISP_CHECK_MSG(held == 0, "a gated sequence holds blocks");
      return;
    case SequenceState::kHolding:
      AISP_CHECK_MSG(s.computed == s.target(), "a prefill is done before all of its KV");
      return;
    case SequenceState::kEnded:
      AISP_CHECK_MSG(s.rows_in_flight > 0, "a husk without rows in flight");
      return;
    case SequenceState::kWaiting:
    case SequenceState::kAwaitingKv:
      return;
  }
}

void Engine::Impl::CheckInvariants() const {
  blocks.CheckInvariants();
  table.CheckInvariants();
  if (tiers) tiers->CheckInvariants();
  struct InFlight {
    int32_t rows = 0, draws = 0, drafts = 0;
  };
  std::map<const Sequence*, InFlight> in_flight;
  for (const StepRecord* step : flight) {
    size_t draws = 0;
    for (const StepRecord::Entry& entry : step->entries) {
      InFlight& f = in_flight[entry.sequence];
      ++f.rows;
      f.draws += entry.draws;
      f.drafts += entry.drafts;
      draws += static_cast<size_t>(entry.draws);
    }
    AISP_CHECK_MSG(draws == step->samples.size(), "a step draws for nobody");
  }
  for (const auto& [epoch, prefix] : pulled) {
    AISP_CHECK_MSG(
        prefix.matched * BlockTokens() < static_cast<int32_t>(prefix.tokens.size()) &&
            prefix.blocks.size() * static_cast<size_t>(BlockTokens()) == prefix.tokens.size(),
        "a prefix is granted other blocks than it needs");
  }
  int alone = 0;
  table.ForEach([&](const Sequence& s) {
    CheckSequence(s);
    const InFlight f = in_flight[&s];
    AISP_CHECK_MSG(f.rows == s.rows_in_flight, "rows in flight are miscounted");
    if (s.state == SequenceState::kEnded) return;
    alone += s.alone ? 1 : 0;
    AISP_CHECK_MSG(f.draws == s.samples_in_flight && f.drafts == s.drafts_in_flight,
                   "draws in flight are miscounted");
  });
  AISP_CHECK_MSG(alone == suspects, "suspects are miscounted");
  AISP_CHECK_MSG(flight.size() <= ring.size(), "more steps are in flight than there are records");
  AISP_CHECK_MSG(failed || (flight.empty() && table.alive() == 0),
                 "a failed engine still has sequences");
}

}  // namespace aisp
