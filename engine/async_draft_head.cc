#include "engine/async_draft_head.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/log.h"
#include "engine/graph_sizes.h"
#include "engine/model_executor.h"
#include "engine/warm_up.h"

namespace aisp {

Result<std::unique_ptr<AsyncDraftHead>> AsyncDraftHead::Create(
    const std::string& directory, const EagleSpec& spec, const TensorView& embedding,
    const DraftHeadOptions& options, Stream& stream, Device& device, Ops& ops) {
  AISP_CHECK(ops.DrawsTokens());
  AISP_ASSIGN_OR_RETURN(auto head,
                        EagleHead::Load(directory, spec, embedding, options.head, device, ops));
  return Over(std::move(head), options, stream, device);
}

Result<std::unique_ptr<AsyncDraftHead>> AsyncDraftHead::Create(
    const std::string& directory, const MtpSpec& spec, const Model& target,
    const DraftHeadOptions& options, Stream& stream, Device& device, Ops& ops) {
  AISP_CHECK(ops.DrawsTokens());
  AISP_ASSIGN_OR_RETURN(auto head,
                        MtpHead::Load(directory, spec, target, options.head, device, ops));
  return Over(std::move(head), options, stream, device);
}

Result<std::unique_ptr<AsyncDraftHead>> AsyncDraftHead::Over(std::unique_ptr<FeatureHead> head,
                                                             const DraftHeadOptions& options,
                                                             Stream& stream, Device& device) {
  std::unique_ptr<AsyncDraftHead> made(
      new AsyncDraftHead(std::move(head), options, stream, device));
  AISP_RETURN_IF_ERROR(made->Start());
  return made;
}

AsyncDraftHead::~AsyncDraftHead() {
  if (upload_stream_ != nullptr) static_cast<void>(device_.Synchronize(*upload_stream_));
  static_cast<void>(device_.Synchronize(stream_));
}

Status AsyncDraftHead::Start() {
  AISP_ASSIGN_OR_RETURN(layout_, MakeKvLayout(head_->shape().kv, options_.block_tokens,
                                              options_.kv_dtype, options_.num_blocks, 0));
  AISP_ASSIGN_OR_RETURN(pool_, device_.Allocate(layout_.PoolBytes(), MemoryKind::kDevice));
  AISP_RETURN_IF_ERROR(Allocate());
  AISP_RETURN_IF_ERROR(head_->Bind(KvViews(layout_, pool_.data()).front(),
                                   static_cast<int32_t*>(slot_tokens_.data())));
  AISP_RETURN_IF_ERROR(WarmUp());
  return options_.use_graphs && device_.info().supports_graphs ? CaptureGraphs() : Status{};
}

Status AsyncDraftHead::Allocate() {
  const auto sequences = static_cast<size_t>(max_sequences());
  const auto on_device = [&](size_t bytes) { return device_.Allocate(bytes, MemoryKind::kDevice); };
  AISP_ASSIGN_OR_RETURN(places_,
                        on_device(static_cast<size_t>(num_feature_places()) * feature_bytes()));
  AISP_ASSIGN_OR_RETURN(slot_tokens_, on_device(sequences * sizeof(int32_t)));
  AISP_ASSIGN_OR_RETURN(upload_stream_, device_.CreateStream());
  AISP_ASSIGN_OR_RETURN(uploaded_, device_.CreateEvent());
  AISP_ASSIGN_OR_RETURN(draws_, DraftDraws::Create({.rows = max_sequences(),
                                                    .slots = max_sequences(),
                                                    .vocabulary = head_->shape().vocabulary,
                                                    .places = kDepth},
                                                   device_));
  AISP_ASSIGN_OR_RETURN(landings_,
                        FeatureLandings::Create(kLandingRows, static_cast<size_t>(feature_size()),
                                                feature_bytes(), device_));
  return {};
}

// Runs every operation once, so that first-call setup is done: catch-up steps, and steps that draw,
// which are captured then.
Status AsyncDraftHead::WarmUp() {
  const int32_t most =
      std::min({max_rows(), max_context(), (layout_.num_blocks - 1) * layout_.block_tokens});
  for (const int32_t rows : WarmUpSizes(most)) {
    const WarmUpStep step(rows, false, layout_.block_tokens);
    using enum FeatureHead::Part;
    for (const FeatureHead::Part part : {kBegin, kGoOn, kCatchUp}) {
      if (part == kGoOn && rows > max_sequences()) continue;
      AISP_ASSIGN_OR_RETURN(const DeviceBatch batch, head_->Upload(step.batch(), 0, 0, stream_));
      AISP_RETURN_IF_ERROR(head_->Enqueue(part, batch, draws_->Of(1, false, 0), stream_));
      // The next step reuses the same arrays.
      AISP_RETURN_IF_ERROR(device_.Synchronize(stream_));
    }
  }
  const int32_t drawn = max_sequences();
  AISP_RETURN_IF_ERROR(head_->Enqueue(FeatureHead::Part::kGoOn, head_->Padded(drawn, 1, 0, true),
                                      draws_->Of(drawn, true, 0), stream_));
  return device_.Synchronize(stream_);
}

// Only without filters; graphs with filters are captured on first use.
Status AsyncDraftHead::CaptureGraphs() {
  const SteadyClock clock;
  const Instant start = clock.Now();
  sizes_ = GraphSizes(max_rows());
  for (size_t place = 0; place < kDepth; ++place) {
    for (const int32_t rows : sizes_) {
      if (rows <= max_sequences()) {
        AISP_RETURN_IF_ERROR(GraphFor({FeatureHead::Part::kGoOn, false, 1, rows, place}));
        AISP_RETURN_IF_ERROR(GraphFor({FeatureHead::Part::kBegin, false, 1, rows, place}));
      }
      for (const int32_t longest : {4, 8}) {
        if (rows > 1 && rows <= longest * max_sequences())
          AISP_RETURN_IF_ERROR(GraphFor({FeatureHead::Part::kBegin, false, longest, rows, place}));
      }
    }
  }
  AISP_RETURN_IF_ERROR(device_.Synchronize(stream_));
  LogInfo("draft graphs captured", {{"graphs", graphs_.size()}, {"ms", ToMs(clock.Now() - start)}});
  return {};
}

Result<Graph*> AsyncDraftHead::GraphFor(const GraphKey& key) {
  std::unique_ptr<Graph>& graph = graphs_[key];
  if (graph != nullptr) return graph.get();
  const DeviceBatch batch =
      head_->Padded(key.rows, key.longest, static_cast<int32_t>(key.place), key.longest == 1);
  const StepDraws draws = draws_->Of(batch.num_logit_rows, key.filters, key.place);
  AISP_RETURN_IF_ERROR(head_->Prepare(key.part, batch, draws));
  AISP_RETURN_IF_ERROR(device_.BeginCapture(stream_));
  const Status computed = head_->Enqueue(key.part, batch, draws, stream_);
  auto captured = device_.EndCapture(stream_);
  AISP_RETURN_IF_ERROR(computed);
  AISP_ASSIGN_OR_RETURN(graph, std::move(captured));
  return graph.get();
}

// The graph that runs this step; 0 rows: none.
AsyncDraftHead::GraphKey AsyncDraftHead::KeyFor(const HeadStep& step) const {
  GraphKey key;
  key.part = PartOf(step);
  key.filters = std::any_of(step.samples.begin(), step.samples.end(), FiltersTokens);
  const size_t sequences = step.batch.sequences.size();
  if (sizes_.empty() || step.samples.size() != sequences) return key;
  for (const SequenceRows& s : step.batch.sequences)
    key.longest = std::max(key.longest, s.num_rows);
  if (key.longest > kMostVerifyRows) return key;
  if (key.longest > 1) key.longest = VerifyRows(key.longest);
  const auto rows = static_cast<int32_t>(step.batch.tokens.size());
  const auto size = std::lower_bound(sizes_.begin(), sizes_.end(), rows);
  if (size != sizes_.end() && (key.longest > 1 || *size <= max_sequences())) key.rows = *size;
  return key;
}

// Never waits: rows without room are dropped.
Status AsyncDraftHead::PlaceFeatures(std::span<const std::span<const float>> runs,
                                     std::vector<std::span<const std::byte>>* placed) {
  return landings_->Place(
      runs, [&](std::span<const float> rows, std::byte* to) { head_->FormatFeatures(rows, to); },
      stream_, placed);
}

Status AsyncDraftHead::KeepFeatures(std::span<const FeatureCopy> rows) {
  ranges_.clear();
  // All rows come from one buffer and go to another; the lowest address is its base.
  const std::byte* from = rows.front().from;
  for (const FeatureCopy& row : rows) from = std::min(from, row.from);
  for (const FeatureCopy& row : rows) {
    ranges_.push_back({static_cast<size_t>(row.from - from),
                       static_cast<size_t>(row.to - feature_places()), feature_bytes()});
  }
  return device_.CopyRanges(places_.data(), from, ranges_, stream_);
}

Status AsyncDraftHead::Launch(const HeadStep& step) {
  AISP_CHECK(step.samples.size() == step.batch.logit_rows.size() && drawing_.size() < kDepth);
  const size_t place = launched_++ % kDepth;
  // Frees the buffer set of the step before the last one.
  Status enqueued = draws_->Wait(place);
  if (enqueued) enqueued = Enqueue(step, place);
  if (!enqueued) {
    drawing_.clear();
  } else if (!step.samples.empty()) {
    drawing_.push_back(place);
  }
  return enqueued;
}

Status AsyncDraftHead::Enqueue(const HeadStep& step, size_t place) {
  GraphKey key = KeyFor(step);
  key.place = place;
  AISP_RETURN_IF_ERROR(step.features.empty() ? head_->GoOnFrom(step.goes_on, stream_)
                                             : head_->TakeFeatures(step.features, stream_));
  const bool beside = !drawing_.empty();
  Stream& upload = beside ? *upload_stream_ : stream_;
  AISP_ASSIGN_OR_RETURN(const DeviceBatch batch,
                        head_->Upload(step.batch, key.rows, static_cast<int32_t>(place), upload));
  const int32_t draws = step.samples.empty() ? 0 : batch.num_logit_rows;
  if (draws > 0) AISP_RETURN_IF_ERROR(draws_->Upload(step.samples, draws, place, upload, stream_));
  if (beside) {
    AISP_RETURN_IF_ERROR(device_.Record(*uploaded_, upload));
    AISP_RETURN_IF_ERROR(device_.Wait(stream_, *uploaded_));
  }
  if (key.rows > 0) {
    AISP_ASSIGN_OR_RETURN(Graph* const graph, GraphFor(key));
    AISP_RETURN_IF_ERROR(device_.LaunchGraph(*graph, stream_));
  } else {
    AISP_RETURN_IF_ERROR(
        head_->Enqueue(key.part, batch, draws_->Of(draws, key.filters, place), stream_));
  }
  return draws_->Record(place, stream_);
}

Result<std::vector<SampledToken>> AsyncDraftHead::Collect() {
  AISP_CHECK(!drawing_.empty());
  const size_t place = drawing_.front();
  drawing_.pop_front();
  if (const Status done = draws_->Wait(place); !done) {
    drawing_.clear();
    return tl::unexpected(done.error());
  }
  return draws_->Drawn(place);
}

}  // namespace aisp
