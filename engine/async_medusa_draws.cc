#include "engine/async_medusa_draws.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/log.h"
#include "engine/graph_sizes.h"

namespace aisp {

Result<std::unique_ptr<AsyncMedusaDraws>> AsyncMedusaDraws::Create(
    const std::string& directory, const MedusaSpec& spec, const Model& target,
    const AsyncMedusaOptions& options, Stream& stream, Device& device, Ops& ops) {
  AISP_CHECK(ops.DrawsTokens());
  AISP_ASSIGN_OR_RETURN(auto heads,
                        MedusaHeads::Load(directory, spec, target, options.heads, device, ops));
  std::unique_ptr<AsyncMedusaDraws> made(
      new AsyncMedusaDraws(std::move(heads), options, stream, device));
  AISP_RETURN_IF_ERROR(made->Start());
  return made;
}

AsyncMedusaDraws::~AsyncMedusaDraws() { static_cast<void>(device_.Synchronize(stream_)); }

Status AsyncMedusaDraws::Start() {
  AISP_ASSIGN_OR_RETURN(
      draws_, DraftDraws::Create({.rows = max_rows() * heads(), .vocabulary = heads_->vocabulary()},
                                 device_));
  AISP_ASSIGN_OR_RETURN(landings_, FeatureLandings::Create(1, static_cast<size_t>(feature_size()),
                                                           feature_bytes(), device_));
  AISP_ASSIGN_OR_RETURN(places_, device_.Allocate(static_cast<size_t>(places()) * feature_bytes(),
                                                  MemoryKind::kDevice));
  sizes_ = GraphSizes(max_rows());
  if (sizes_.back() < max_rows()) sizes_.push_back(max_rows());
  AISP_RETURN_IF_ERROR(WarmUp());
  return options_.use_graphs && device_.info().supports_graphs ? CaptureGraphs() : Status{};
}

// Runs every operation once, so that first-call setup is done.
Status AsyncMedusaDraws::WarmUp() {
  for (const int32_t rows : sizes_) {
    AISP_RETURN_IF_ERROR(draws_->Upload({}, rows, 0, stream_, stream_));
    AISP_RETURN_IF_ERROR(heads_->Enqueue(rows, heads(), draws_->Of(rows, true, 0), stream_));
    AISP_RETURN_IF_ERROR(device_.Synchronize(stream_));
  }
  return {};
}

// Captures all heads and the usual shorter drafts; others are captured on first use.
Status AsyncMedusaDraws::CaptureGraphs() {
  constexpr int32_t kShort = 4;
  const SteadyClock clock;
  const Instant start = clock.Now();
  for (const int32_t rows : sizes_) {
    for (int32_t count = 1; count <= heads(); ++count) {
      if (count <= kShort || count == heads())
        AISP_RETURN_IF_ERROR(GraphFor({rows, count, rows * count, false}));
    }
  }
  AISP_RETURN_IF_ERROR(device_.Synchronize(stream_));
  LogInfo("draft graphs captured", {{"graphs", graphs_.size()}, {"ms", ToMs(clock.Now() - start)}});
  return {};
}

Result<Graph*> AsyncMedusaDraws::GraphFor(const GraphKey& key) {
  std::unique_ptr<Graph>& graph = graphs_[key];
  if (graph != nullptr) return graph.get();
  const StepDraws draws = draws_->Of(key.draws, key.filters, 0);
  AISP_RETURN_IF_ERROR(heads_->Prepare(key.rows, key.heads, draws));
  AISP_RETURN_IF_ERROR(device_.BeginCapture(stream_));
  const Status computed = heads_->Enqueue(key.rows, key.heads, draws, stream_);
  auto captured = device_.EndCapture(stream_);
  AISP_RETURN_IF_ERROR(computed);
  AISP_ASSIGN_OR_RETURN(graph, std::move(captured));
  return graph.get();
}

// All rows come from one buffer; the lowest address is its base.
Status AsyncMedusaDraws::KeepFrom(std::span<const FeatureRow*> rows) {
  if (rows.empty()) return {};
  const std::byte* from = rows.front()->from;
  for (const FeatureRow* row : rows) from = std::min(from, row->from);
  ranges_.clear();
  for (const FeatureRow* row : rows) {
    ranges_.push_back({static_cast<size_t>(row->from - from),
                       static_cast<size_t>(row->place) * feature_bytes(), feature_bytes()});
  }
  return device_.CopyRanges(places_.data(), from, ranges_, stream_);
}

// Uploads through page-locked memory.
Status AsyncMedusaDraws::LandRows(std::span<FeatureRow> rows) {
  std::vector<std::span<const float>> runs;
  for (const FeatureRow& row : rows) {
    if (row.on_host)
      runs.emplace_back(reinterpret_cast<const float*>(row.from),
                        static_cast<size_t>(feature_size()));
  }
  if (runs.empty()) return {};
  std::vector<std::span<const std::byte>> placed;
  AISP_RETURN_IF_ERROR(landings_->Place(
      runs, [&](std::span<const float> from, std::byte* to) { heads_->FormatFeatures(from, to); },
      stream_, &placed));
  size_t at = 0;
  std::vector<FeatureRow> landed;
  std::vector<const FeatureRow*> landed_rows;
  for (FeatureRow& row : rows) {
    if (!row.on_host) continue;
    const std::span<const std::byte> there = placed[at++];
    row.kept = !there.empty();
    if (row.kept) landed.push_back({there.data(), false, row.place});
  }
  landed_rows.reserve(landed.size());
  for (const FeatureRow& row : landed) landed_rows.push_back(&row);
  return KeepFrom(landed_rows);
}

Status AsyncMedusaDraws::Keep(std::span<FeatureRow> rows) {
  std::vector<const FeatureRow*> there;
  there.reserve(rows.size());
  for (const FeatureRow& row : rows) {
    AISP_CHECK(row.place >= 0 && row.place < places());
    if (!row.on_host) there.push_back(&row);
  }
  AISP_RETURN_IF_ERROR(KeepFrom(there));
  return LandRows(rows);
}

// Runs one graph where graphs are captured.
Status AsyncMedusaDraws::Launch(const GraphKey& key, std::span<const SampleRow> samples) {
  if (key.draws > 0) AISP_RETURN_IF_ERROR(draws_->Upload(samples, key.draws, 0, stream_, stream_));
  if (options_.use_graphs && device_.info().supports_graphs) {
    AISP_ASSIGN_OR_RETURN(Graph* const graph, GraphFor(key));
    AISP_RETURN_IF_ERROR(device_.LaunchGraph(*graph, stream_));
  } else {
    AISP_RETURN_IF_ERROR(
        heads_->Enqueue(key.rows, key.heads, draws_->Of(key.draws, key.filters, 0), stream_));
  }
  return draws_->Record(0, stream_);
}

Status AsyncMedusaDraws::Run(std::span<const int32_t> places, int32_t heads,
                             std::span<const SampleRow> samples) {
  AISP_CHECK(!places.empty() && static_cast<int32_t>(places.size()) <= max_rows());
  AISP_RETURN_IF_ERROR(draws_->Wait(0));
  rows_.clear();
  for (const int32_t place : places) rows_.push_back(PlaceOf(place));
  AISP_RETURN_IF_ERROR(heads_->TakeFeatures(rows_, stream_));
  GraphKey key;
  key.rows = *std::lower_bound(sizes_.begin(), sizes_.end(), static_cast<int32_t>(places.size()));
  key.heads = heads;
  key.filters = std::any_of(samples.begin(), samples.end(), FiltersTokens);
  // Draws from the first head only, or from all of them.
  const bool first = samples.size() <= static_cast<size_t>(key.rows);
  key.draws = samples.empty() ? 0 : first ? key.rows : key.rows * heads;
  return Launch(key, samples);
}

Status AsyncMedusaDraws::Draw(std::span<const SampleRow> samples) {
  AISP_RETURN_IF_ERROR(draws_->Wait(0));
  const auto count = static_cast<int32_t>(samples.size());
  const bool filters = std::any_of(samples.begin(), samples.end(), FiltersTokens);
  AISP_RETURN_IF_ERROR(draws_->Upload(samples, count, 0, stream_, stream_));
  AISP_RETURN_IF_ERROR(heads_->EnqueueDraws(draws_->Of(count, filters, 0), stream_));
  return draws_->Record(0, stream_);
}

Result<std::vector<SampledToken>> AsyncMedusaDraws::Collect() {
  AISP_RETURN_IF_ERROR(draws_->Wait(0));
  return draws_->Drawn(0);
}

}  // namespace aisp
