#include "engine/async_draft_head.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/log.h"
#include "engine/graph_sizes.h"
#include "engine/model_executor.h"
#include "engine/sampler.h"
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

size_t AsyncDraftHead::MaskWords() const {
  return (static_cast<size_t>(head_->shape().vocabulary) + 31) / 32;
}

size_t AsyncDraftHead::MaxEdits() const {
  constexpr size_t kMostEdits = size_t{1} << 20;
  return std::min(kMostEdits, static_cast<size_t>(max_sequences()) *
                                  static_cast<size_t>(head_->shape().vocabulary));
}

Status AsyncDraftHead::Allocate() {
  const auto draws = static_cast<size_t>(max_sequences());
  const size_t rows = DeviceArena::Padded(draws * sizeof(DrawRow));
  const size_t edits = MaxEdits() * sizeof(TokenEdit);
  const size_t masks = draws * MaskWords() * sizeof(uint32_t);
  const size_t places = static_cast<size_t>(num_feature_places()) * feature_bytes();
  const auto on_device = [&](size_t bytes) { return device_.Allocate(bytes, MemoryKind::kDevice); };
  const auto on_host = [&](size_t bytes) { return device_.Allocate(bytes, MemoryKind::kHost); };
  AISP_ASSIGN_OR_RETURN(places_, on_device(places));
  AISP_ASSIGN_OR_RETURN(slot_tokens_, on_device(draws * sizeof(int32_t)));
  for (Buffer& place : draw_rows_) {
    AISP_ASSIGN_OR_RETURN(place, on_device(rows));
  }
  AISP_ASSIGN_OR_RETURN(upload_stream_, device_.CreateStream());
  AISP_ASSIGN_OR_RETURN(uploaded_, device_.CreateEvent());
  AISP_ASSIGN_OR_RETURN(draw_edits_, on_device(edits));
  AISP_ASSIGN_OR_RETURN(draw_masks_, on_device(masks));
  AISP_ASSIGN_OR_RETURN(drawn_, on_host(kDepth * draws * sizeof(DrawnToken)));
  for (Flight& flight : flights_) {
    AISP_ASSIGN_OR_RETURN(flight.staging, on_host(rows + edits));
    AISP_ASSIGN_OR_RETURN(flight.mask_staging, on_host(masks));
    AISP_ASSIGN_OR_RETURN(flight.done, device_.CreateEvent());
  }
  AISP_ASSIGN_OR_RETURN(landing_rows_, on_host(kLandings * kLandingRows * feature_bytes()));
  auto* landing_rows = static_cast<std::byte*>(landing_rows_.data());
  for (Landing& landing : landings_) {
    landing.rows = std::exchange(landing_rows, landing_rows + kLandingRows * feature_bytes());
    AISP_ASSIGN_OR_RETURN(landing.read, device_.CreateEvent());
  }
  edits_.emplace(head_->shape().vocabulary);
  return {};
}

// Makes everything that operations make at their first call: steps that take up prompts, and those
// that draw, which are captured then.
Status AsyncDraftHead::WarmUp() {
  const int32_t most =
      std::min({max_rows(), max_context(), (layout_.num_blocks - 1) * layout_.block_tokens});
  for (const int32_t rows : WarmUpSizes(most)) {
    const WarmUpStep step(rows, false, layout_.block_tokens);
    using enum FeatureHead::Part;
    for (const FeatureHead::Part part : {kBegin, kGoOn, kCatchUp}) {
      if (part == kGoOn && rows > max_sequences()) continue;
      AISP_ASSIGN_OR_RETURN(const DeviceBatch batch, head_->Upload(step.batch(), 0, 0, stream_));
      AISP_RETURN_IF_ERROR(head_->Enqueue(part, batch, DrawsOf(1, false, 0), stream_));
      // The next step's arrays take the place of this one's.
      AISP_RETURN_IF_ERROR(device_.Synchronize(stream_));
    }
  }
  const int32_t drawn = max_sequences();
  AISP_RETURN_IF_ERROR(head_->Enqueue(FeatureHead::Part::kGoOn, head_->Padded(drawn, 1, 0, true),
                                      DrawsOf(drawn, true, 0), stream_));
  return device_.Synchronize(stream_);
}

// Of rows that do not filter; for others when they are first wanted.
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
  const StepDraws draws = DrawsOf(batch.num_logit_rows, key.filters, key.place);
  AISP_RETURN_IF_ERROR(head_->Prepare(key.part, batch, draws));
  AISP_RETURN_IF_ERROR(device_.BeginCapture(stream_));
  const Status computed = head_->Enqueue(key.part, batch, draws, stream_);
  auto captured = device_.EndCapture(stream_);
  AISP_RETURN_IF_ERROR(computed);
  AISP_ASSIGN_OR_RETURN(graph, std::move(captured));
  return graph.get();
}

// The graph that runs this step; of no rows: none does.
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

StepDraws AsyncDraftHead::DrawsOf(int32_t rows, bool filters, size_t place) const {
  StepDraws draws;
  if (rows == 0) return draws;
  draws.part = StepPart::kWhole;
  draws.params.rows = static_cast<const DrawRow*>(draw_rows_[place].data());
  draws.params.edits = static_cast<const TokenEdit*>(draw_edits_.data());
  draws.params.masks = static_cast<const uint32_t*>(draw_masks_.data());
  draws.params.mask_words = static_cast<int32_t>(MaskWords());
  draws.params.num_rows = rows;
  draws.params.filters = filters;
  draws.params.drawn = static_cast<DrawnToken*>(drawn_.data());
  return draws;
}

// With padding up to `rows`.
Status AsyncDraftHead::UploadDraws(std::span<const SampleRow> samples, int32_t rows, Flight& flight,
                                   Stream& stream) {
  const Buffer& target = draw_rows_[static_cast<size_t>(&flight - flights_.data())];
  auto* const draws = static_cast<DrawRow*>(flight.staging.data());
  auto* const edits =
      reinterpret_cast<TokenEdit*>(static_cast<std::byte*>(flight.staging.data()) + target.bytes());
  auto* const masks = static_cast<uint32_t*>(flight.mask_staging.data());
  size_t used = 0, masked = 0;
  flight.refused.assign(samples.size(), Status{});
  flight.positions.clear();
  for (size_t i = 0; i < samples.size(); ++i) {
    DrawRow& draw = draws[i] = DrawRowOf(samples[i]);
    AISP_CHECK(draw.slot >= 0 && draw.slot < max_sequences());
    flight.positions.push_back(samples[i].position);
    draw.logit_index = samples[i].logit_index;
    draw.num_logprobs = 0;
    draw.drawn_at = static_cast<int32_t>(DrawnAt(flight, i));
    if (!samples[i].mask.empty()) {
      AISP_CHECK(samples[i].mask.size() == MaskWords());
      draw.mask = static_cast<int32_t>(masked);
      std::copy(samples[i].mask.begin(), samples[i].mask.end(), masks + masked++ * MaskWords());
    }
    draw.edit_begin = static_cast<int32_t>(used);
    if (!edits_->Append(samples[i], {edits, MaxEdits()}, &used)) {
      used = static_cast<size_t>(draw.edit_begin);
      draw.logit_index = -1;
      flight.refused[i] = ResourceExhausted("the edits of a draft's logits have no room");
    }
    draw.edit_count = static_cast<int32_t>(used) - draw.edit_begin;
  }
  for (size_t i = samples.size(); i < static_cast<size_t>(rows); ++i) {
    draws[i] = DrawRow{};
    draws[i].logit_index = -1;
  }
  AISP_RETURN_IF_ERROR(
      device_.Upload(target.data(), draws, static_cast<size_t>(rows) * sizeof(DrawRow), stream));
  // There is one place for edits and masks, and few steps have any.
  if (masked > 0) {
    AISP_RETURN_IF_ERROR(
        device_.Copy(draw_masks_.data(), masks, masked * MaskWords() * sizeof(uint32_t), stream_));
  }
  if (used == 0) return {};
  return device_.Copy(draw_edits_.data(), edits, used * sizeof(TokenEdit), stream_);
}

// Null: the device still reads all of them, or has not come to it.
Result<AsyncDraftHead::Landing*> AsyncDraftHead::FreeLanding() {
  for (Landing& landing : landings_) {
    if (landing.given) continue;
    if (landing.waiting) {
      AISP_ASSIGN_OR_RETURN(const bool read, device_.Query(*landing.read));
      if (!read) continue;
      landing.waiting = false;
    }
    landing.given = true;
    return &landing;
  }
  return nullptr;
}

// Nothing here waits: what finds no place is known to be absent.
Status AsyncDraftHead::PlaceFeatures(std::span<const std::span<const float>> runs,
                                     std::vector<std::span<const std::byte>>* placed) {
  for (Landing& landing : landings_) {
    if (!std::exchange(landing.given, false)) continue;
    AISP_RETURN_IF_ERROR(device_.Record(*landing.read, stream_));
    landing.waiting = true;
  }
  placed->clear();
  const auto size = static_cast<size_t>(feature_size());
  for (const std::span<const float> run : runs) {
    AISP_ASSIGN_OR_RETURN(Landing* const landing, FreeLanding());
    const std::span<const float> last = run.last(std::min(run.size(), kLandingRows * size));
    if (landing != nullptr) head_->FormatFeatures(last, landing->rows);
    const size_t bytes = landing != nullptr ? last.size() / size * feature_bytes() : 0;
    placed->emplace_back(landing != nullptr ? landing->rows : nullptr, bytes);
  }
  return {};
}

Status AsyncDraftHead::KeepFeatures(std::span<const FeatureCopy> rows) {
  ranges_.clear();
  // Rows come from one piece of memory and go to another: the lowest of them stands for it.
  const std::byte* from = rows.front().from;
  for (const FeatureCopy& row : rows) from = std::min(from, row.from);
  for (const FeatureCopy& row : rows) {
    ranges_.push_back({static_cast<size_t>(row.from - from),
                       static_cast<size_t>(row.to - feature_places()), feature_bytes()});
  }
  return device_.CopyRanges(places_.data(), from, ranges_, stream_);
}

SampledToken AsyncDraftHead::TokenOf(const Flight& flight, size_t sample) const {
  const DrawnToken& drawn = static_cast<const DrawnToken*>(drawn_.data())[DrawnAt(flight, sample)];
  SampledToken out;
  if (!flight.refused[sample]) {
    out.status = flight.refused[sample];
  } else if (drawn.status == DrawStatus::kNotFinite) {
    out.status = tl::unexpected(NotFiniteError(flight.positions[sample]));
  } else if (drawn.status == DrawStatus::kNothingLeft) {
    out.status = tl::unexpected(NothingLeftError());
  } else {
    AISP_CHECK(drawn.token >= 0 && drawn.token < head_->shape().vocabulary);
    out.token = drawn.token;
    out.logprob = TokenLogprob{.logprob = drawn.logprob, .top = {}};
  }
  return out;
}

Status AsyncDraftHead::Launch(const HeadStep& step) {
  AISP_CHECK(step.samples.size() == step.batch.logit_rows.size() && drawing_.size() < kDepth);
  const size_t place = launched_++ % kDepth;
  // What the step before the last one had of the host, and on the device, is free then.
  Status enqueued = device_.Synchronize(*flights_[place].done);
  if (enqueued) enqueued = Enqueue(step, place);
  if (!enqueued) {
    drawing_.clear();
  } else if (!step.samples.empty()) {
    drawing_.push_back(&flights_[place]);
  }
  return enqueued;
}

Status AsyncDraftHead::Enqueue(const HeadStep& step, size_t place) {
  Flight& flight = flights_[place];
  GraphKey key = KeyFor(step);
  key.place = place;
  AISP_RETURN_IF_ERROR(step.features.empty() ? head_->GoOnFrom(step.goes_on, stream_)
                                             : head_->TakeFeatures(step.features, stream_));
  const bool beside = !drawing_.empty();
  Stream& upload = beside ? *upload_stream_ : stream_;
  AISP_ASSIGN_OR_RETURN(const DeviceBatch batch,
                        head_->Upload(step.batch, key.rows, static_cast<int32_t>(place), upload));
  const int32_t draws = step.samples.empty() ? 0 : batch.num_logit_rows;
  if (draws > 0) AISP_RETURN_IF_ERROR(UploadDraws(step.samples, draws, flight, upload));
  if (beside) {
    AISP_RETURN_IF_ERROR(device_.Record(*uploaded_, upload));
    AISP_RETURN_IF_ERROR(device_.Wait(stream_, *uploaded_));
  }
  if (key.rows > 0) {
    AISP_ASSIGN_OR_RETURN(Graph* const graph, GraphFor(key));
    AISP_RETURN_IF_ERROR(device_.LaunchGraph(*graph, stream_));
  } else {
    AISP_RETURN_IF_ERROR(
        head_->Enqueue(key.part, batch, DrawsOf(draws, key.filters, place), stream_));
  }
  return device_.Record(*flight.done, stream_);
}

Result<std::vector<SampledToken>> AsyncDraftHead::Collect() {
  AISP_CHECK(!drawing_.empty());
  const Flight& flight = *drawing_.front();
  drawing_.pop_front();
  if (const Status done = device_.Synchronize(*flight.done); !done) {
    drawing_.clear();
    return tl::unexpected(done.error());
  }
  std::vector<SampledToken> drawn;
  drawn.reserve(flight.positions.size());
  for (size_t i = 0; i < flight.positions.size(); ++i) drawn.push_back(TokenOf(flight, i));
  return drawn;
}

}  // namespace aisp
