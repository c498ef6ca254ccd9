// Features of computed positions: for the proposer, for a remote reader, and for the feature cache.
#include <algorithm>
#include <utility>

#include "common/check.h"
#include "engine/engine_impl.h"

namespace aisp {

bool Engine::Impl::GivesFeatures(const Sequence& s) const {
  return options.speculator != nullptr && limits.max_draft_rows > 0 && !s.has_reader() &&
         s.draws() && s.request.max_draft_tokens != 0 && options.speculator->feature_size() > 0;
}

int32_t Engine::Impl::FeatureSize() const {
  return executor->max_kept_features() > 0 ? executor->feature_size() : 0;
}

int32_t Engine::Impl::FeatureRows(const Sequence& s, int32_t begin, int32_t end) const {
  if (GivesFeatures(s)) return std::clamp(end - s.window_begin, 0, end - begin);
  if (!s.has_reader() || s.request.feature_window == 0 || FeatureSize() == 0) return 0;
  return std::clamp(end - (s.target() - s.request.feature_window), 0, end - begin);
}

// If they must be copied from a device, features of drawn tokens are not kept: every decode step
// would pay, and later prompts seldom reach that far.
void Engine::Impl::AppendFeatures(const Sequence& s, int32_t begin, int32_t row_end,
                                  StepRecord& step, StepRecord::Entry* entry) const {
  entry->features = FeatureRows(s, begin, entry->end);
  for (int32_t i = entry->features; i > 0; --i) step.feature_rows.push_back(row_end - i);
  if (entry->features == 0 || !(s.has_reader() || KeepsFeatures(s))) return;
  const bool all = s.has_reader() || executor->features_on_host();
  entry->kept_end = all ? entry->end : std::min(entry->end, s.window_end);
  const int32_t drawn = entry->end - entry->kept_end;
  const int32_t room = executor->max_kept_features() - static_cast<int32_t>(step.kept_rows.size());
  entry->kept = std::clamp(entry->features - drawn, 0, room);
  for (int32_t i = entry->kept; i > 0; --i) step.kept_rows.push_back(row_end - drawn - i);
}

int32_t Engine::Impl::FeatureWindow(SequenceId id) const {
  const Sequence* const s = table.Find(id);
  if (s == nullptr || !GivesFeatures(*s) || FeatureSize() == 0) return 0;
  return std::max(0, s->size() - s->window_begin);
}

// Rows of a failed step are computed again; after a gap earlier rows are useless.
void Engine::Impl::KeepForReader(Sequence& s, int32_t begin, std::span<const float> rows) const {
  const auto size = static_cast<size_t>(FeatureSize());
  const auto end = s.features_from + static_cast<int32_t>(s.features.size() / size);
  if (begin < s.features_from || begin > end) {
    s.features.clear();
    s.features_from = begin;
  }
  s.features.resize(static_cast<size_t>(begin - s.features_from) * size);
  s.features.insert(s.features.end(), rows.begin(), rows.end());
}

PromptFeatures Engine::Impl::FeaturesOf(SequenceId id) const {
  const Sequence* const s = table.Find(id);
  if (s == nullptr || s->features.empty() || s->state != SequenceState::kHolding) return {};
  const auto size = static_cast<size_t>(FeatureSize());
  const auto rows = static_cast<int32_t>(s->features.size() / size);
  if (s->features_from + rows != s->target()) return {};
  return {s->features_from, s->features};
}

int32_t Engine::Impl::FirstWanted(const Sequence& s) const {
  if (!s.has_reader()) return s.window_begin;
  return std::max(0, s.target() - s.request.feature_window);
}

// If only the last position is of use: that one is computed anyway.
bool Engine::Impl::KeepsFeatures(const Sequence& s) const {
  if (!feature_cache) return false;
  if (s.has_reader()) return s.request.feature_window > 1;
  return GivesFeatures(s) && options.speculator->feature_window() > 1;
}

FeatureRun Engine::Impl::KeptFeatures(const Sequence& s, int32_t end) {
  if (!KeepsFeatures(s)) return {end, {}};
  const int32_t window =
      s.has_reader() ? s.request.feature_window : options.speculator->feature_window();
  const int32_t begin = std::max(FirstWanted(s), end - window);
  return feature_cache->Before(s.root, s.request.tokens, begin, end);
}

void Engine::Impl::KeepFeatures(Sequence& s, int32_t begin, std::span<const float> rows) {
  if (!KeepsFeatures(s)) return;
  feature_cache->Append(s.root, s.request.tokens, begin, rows, &s.feature_tail);
}

void Engine::Impl::KeepArriving(Sequence& s) {
  if (!feature_cache || arriving.features.empty() || arriving.sequence != s.id) return;
  const std::span<const float> rows = arriving.features;
  const auto size = static_cast<size_t>(FeatureSize());
  const int32_t rows_kept = s.size() - 1 - arriving.begin;
  if (rows_kept > 0)
    KeepFeatures(s, arriving.begin,
                 rows.first(std::min(rows.size(), size * static_cast<size_t>(rows_kept))));
}

// Sequences that start together are delivered together: an asynchronous head waits for its step
// before the last, so one step serves them all.
void Engine::Impl::DeliverFeatures(const Sequence& s, FeatureRun run) {
  constexpr size_t kMostTogether = 16;
  if (run.rows.empty()) return;
  deliveries.push_back({s.id, std::move(run)});
  if (deliveries.size() >= kMostTogether) Deliver();
}

// The head's catch-up counts as proposer time, not as step time.
void Engine::Impl::Deliver() {
  if (deliveries.empty()) return;
  const Instant since = clock->Now();
  computed_rows.clear();
  for (const Delivery& d : deliveries) {
    const Sequence* const s = table.Find(d.sequence);
    if (s == nullptr) continue;
    computed_rows.push_back(
        {ContextOf(*s), d.run.begin, std::as_bytes(std::span(d.run.rows)), /*on_host=*/true});
  }
  if (!computed_rows.empty()) options.speculator->Computed(computed_rows);
  deliveries.clear();
  computed_rows.clear();
  propose_time += clock->Now() - since;
}

void Engine::Impl::TakeKeptFeatures(Sequence& s) {
  FeatureRun kept = KeptFeatures(s, s.scheduled);
  if (!s.has_reader()) return DeliverFeatures(s, std::move(kept));
  s.features_from = kept.begin;
  s.features = std::move(kept.rows);
}

// If no first token arrived, the last token's row runs here and adds its own features; the first
// delivered row may then lie before the proposer's window and is skipped.
void Engine::Impl::TakeFeatures(Sequence& s, const PromptFeatures& features) {
  if (!GivesFeatures(s) || FeatureSize() == 0) return;
  const auto size = static_cast<size_t>(FeatureSize());
  AISP_CHECK(features.rows.empty() || (features.begin >= 0 && features.rows.size() % size == 0));
  const auto came = static_cast<int32_t>(features.rows.size() / size);
  const int32_t end = std::min(s.computed, s.size() - 1);
  const bool some = came > 0 && std::min(features.begin + came, s.computed) >
                                    std::max(features.begin, FirstWanted(s));
  const int32_t first = some ? std::max(features.begin, FirstWanted(s)) : end;
  FeatureRun run = KeptFeatures(s, first);
  if (some) {
    const auto rows = static_cast<size_t>(std::min(features.begin + came, s.computed) - first);
    const std::span<const float> own =
        features.rows.subspan(static_cast<size_t>(first - features.begin) * size, rows * size);
    KeepFeatures(s, first, own);
    run.rows.insert(run.rows.end(), own.begin(), own.end());
  }
  DeliverFeatures(s, std::move(run));
}

void Engine::Impl::NoteFeatures(SequenceId id, const StepRecord::Entry& entry,
                                std::span<const std::byte> features, std::span<const float> kept) {
  Sequence* const s = table.Find(id);
  if (s == nullptr) return;
  const int32_t begin = entry.end - entry.features, kept_begin = entry.kept_end - entry.kept;
  if (s->has_reader()) {
    if (kept.empty()) return;
    KeepFeatures(*s, kept_begin, kept);
    return KeepForReader(*s, kept_begin, kept);
  }
  // The token after the last row must be known; it is not while another step draws it.
  const int32_t stand_end = std::min(s->computed, s->size() - 1);
  if (stand_end <= begin) return;
  const int32_t kept_stand = std::min(entry.kept, stand_end - kept_begin);
  if (kept_stand > 0) {
    const size_t size = kept.size() / static_cast<size_t>(entry.kept);
    KeepFeatures(*s, kept_begin, kept.first(static_cast<size_t>(kept_stand) * size));
  }
  const size_t size = features.size() / static_cast<size_t>(entry.features);
  computed_rows.push_back(
      {ContextOf(*s), begin, features.first(static_cast<size_t>(stand_end - begin) * size)});
}

}  // namespace aisp
