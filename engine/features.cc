// Features of computed positions: those that the proposer reads, that a reader is sent, and that
// are kept for the next prompt that begins alike.
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

// Where they have to be fetched from a device, those of drawn tokens stay there: every step of
// decoding would pay, for the end of a next prompt that seldom reads them.
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

// Rows of a step that failed come again; behind a gap nothing of before is of use.
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

// Where only a prompt's last position is of use, that one is computed anyway.
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
  const int32_t stand = s.size() - 1 - arriving.begin;
  if (stand > 0)
    KeepFeatures(s, arriving.begin,
                 rows.first(std::min(rows.size(), size * static_cast<size_t>(stand))));
}

// Sequences that start together are told of together: a head on a device waits for its step before
// the last, so it has one for all of them.
void Engine::Impl::DeliverFeatures(const Sequence& s, FeatureRun run) {
  constexpr size_t kMostTogether = 16;
  if (run.rows.empty()) return;
  deliveries.push_back({s.id, std::move(run)});
  if (deliveries.size() >= kMostTogether) Deliver();
}

// The head takes up what is known; that is a proposer's time, and none of a step's.
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

// The last token's row runs here where no token came behind it, and brings its own: then one more
// came in front than the proposer would see of a prompt that is computed here.
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
  // Behind the last one a token has to be known: not yet where another step draws it.
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
