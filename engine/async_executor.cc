#include "engine/async_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "common/check.h"
#include "common/log.h"
#include "common/strings.h"
#include "engine/graph_sizes.h"
#include "engine/warm_up.h"
#include "model/prepared_steps.h"

namespace aisp {
namespace {

// Larger batches have graphs for the first buffer set only: the gap between two of their steps is
// relatively too short to pay for twice the graphs.
constexpr int32_t kMostRowsOfTwoPlaces = 32;

ModelExecutorOptions Complete(ModelExecutorOptions o) {
  o.model.max_sequences = o.max_slots;
  o.model.max_logit_rows = o.max_slots + o.max_draft_rows + o.max_scored_rows;
  return o;
}

}  // namespace

AsyncExecutor::AsyncExecutor(const AsyncExecutorOptions& options, Device& device)
    : options_{Complete(options.base), options.use_graphs}, device_(device) {}

AsyncExecutor::~AsyncExecutor() {
  if (upload_stream_ != nullptr) static_cast<void>(device_.Synchronize(*upload_stream_));
  if (stream_ != nullptr) static_cast<void>(device_.Synchronize(*stream_));
}

Result<std::unique_ptr<AsyncExecutor>> AsyncExecutor::Create(const std::string& model_directory,
                                                             const AsyncExecutorOptions& options,
                                                             Device& device, Ops& ops) {
  if (options.base.max_slots < 1) return InvalidArgument("max_slots has to be positive");
  if (!ops.DrawsTokens()) {
    return InvalidArgument(fmt::format(
        "this executor leaves tokens on the device; {} does not draw them", ops.Describe()));
  }
  std::unique_ptr<AsyncExecutor> executor(new AsyncExecutor(options, device));
  AISP_RETURN_IF_ERROR(executor->Start(model_directory, ops));
  return executor;
}

Status AsyncExecutor::Start(const std::string& model_directory, Ops& ops) {
  const ModelExecutorOptions& base = options_.base;
  ops_ = &ops;
  AISP_ASSIGN_OR_RETURN(model_, Model::Load(model_directory, base.model, device_, ops));
  const ModelSpec& spec = model_->spec();
  AISP_ASSIGN_OR_RETURN(layout_, MakeKvLayout(base, *model_, device_));
  AISP_ASSIGN_OR_RETURN(pool_, device_.Allocate(layout_.PoolBytes(), MemoryKind::kShareable));
  AISP_ASSIGN_OR_RETURN(stream_, device_.CreateStream());
  AISP_ASSIGN_OR_RETURN(upload_stream_, device_.CreateStream());
  AISP_ASSIGN_OR_RETURN(uploaded_, device_.CreateEvent());
  edits_.emplace(spec.vocabulary);
  AISP_RETURN_IF_ERROR(AllocateFlights());
  AISP_RETURN_IF_ERROR(
      model_->Bind(KvViews(layout_, pool_.data()), static_cast<int32_t*>(slot_tokens_.data())));
  AISP_RETURN_IF_ERROR(WarmUp());
  return options_.use_graphs && device_.info().supports_graphs ? CaptureGraphs() : Status{};
}

Status AsyncExecutor::AllocateFlights() {
  const auto slots = static_cast<size_t>(options_.base.max_slots);
  const auto draws = static_cast<size_t>(max_draws());
  const size_t rows = DrawBytes(draws, MaxEdits());
  const size_t drawn = draws * sizeof(DrawnToken);
  const size_t masks = draws * MaskWords() * sizeof(uint32_t);
  const auto device = [&](size_t bytes) { return device_.Allocate(bytes, MemoryKind::kDevice); };
  AISP_ASSIGN_OR_RETURN(slot_tokens_, device(slots * sizeof(int32_t)));
  for (Buffer& place : draw_rows_) {
    AISP_ASSIGN_OR_RETURN(place, device(rows));
  }
  AISP_ASSIGN_OR_RETURN(draw_masks_, device(masks));
  AISP_ASSIGN_OR_RETURN(drawn_, device_.Allocate(kDepth * drawn, MemoryKind::kHost));
  for (Flight& f : flights_) {
    AISP_ASSIGN_OR_RETURN(f.draw_staging, device_.Allocate(rows, MemoryKind::kHost));
    AISP_ASSIGN_OR_RETURN(f.mask_staging, device_.Allocate(masks, MemoryKind::kHost));
    if (feature_size() > 0) {
      AISP_ASSIGN_OR_RETURN(f.features, device(model_->features().bytes()));
      const TensorView features = model_->features();
      const size_t kept = static_cast<size_t>(max_kept_features()) *
                          static_cast<size_t>(features.cols()) * DTypeBytes(features.dtype);
      AISP_ASSIGN_OR_RETURN(f.kept, device_.Allocate(kept, MemoryKind::kHost));
    }
    AISP_ASSIGN_OR_RETURN(f.fetched, device_.CreateEvent());
    for (int32_t layer = 0; layer < layout_.num_layers; ++layer) {
      AISP_ASSIGN_OR_RETURN(auto event, device_.CreateEvent());
      f.layers.push_back(std::move(event));
    }
  }
  for (Clocking& c : clocking_) {
    AISP_ASSIGN_OR_RETURN(c.begin, device_.CreateEvent());
    AISP_ASSIGN_OR_RETURN(c.end, device_.CreateEvent());
  }
  return {};
}

// Runs every operation once, so that first-call setup is done: decode, prefill and mixed steps.
Status AsyncExecutor::WarmUp() {
  const ModelExecutorOptions& base = options_.base;
  const int32_t largest = std::min(base.max_slots, base.model.max_batch_tokens);
  AISP_RETURN_IF_ERROR(Compute(model_->Padded(largest, 1, 0), {.rows = largest}, nullptr));
  AISP_RETURN_IF_ERROR(device_.Synchronize(*stream_));
  const int32_t most = std::min({base.model.max_batch_tokens, model_->max_context(),
                                 (layout_.num_blocks - 1) * layout_.block_tokens});
  const auto run = [&](int32_t rows, bool decodes) -> Status {
    const WarmUpStep step(rows, decodes, layout_.block_tokens);
    AISP_ASSIGN_OR_RETURN(const DeviceBatch batch,
                          model_->Upload(step.batch(), layout_.block_tokens, 0, 0, *stream_));
    AISP_RETURN_IF_ERROR(Compute(batch, {.rows = 1, .filters = false}, nullptr));
    // The next step reuses the same arrays.
    return device_.Synchronize(*stream_);
  };
  const std::vector<int32_t> sizes = WarmUpSizes(most);
  if (base.max_slots > 1 && !sizes.empty() && sizes.front() > 2)
    AISP_RETURN_IF_ERROR(run(sizes.front(), true));
  // Stop warming up once one step takes longer than any kernel loading would.
  constexpr Duration kSlow = std::chrono::milliseconds(300);
  const SteadyClock clock;
  for (const int32_t rows : sizes) {
    const Instant begin = clock.Now();
    AISP_RETURN_IF_ERROR(run(rows, false));
    if (clock.Now() - begin > kSlow) break;
  }
  return {};
}

StepDraws AsyncExecutor::DrawsOf(const Drawing& drawing) const {
  StepDraws draws;
  if (drawing.rows == 0) return draws;
  draws.part = StepPart::kWhole;
  const Buffer& rows = draw_rows_[static_cast<size_t>(drawing.place)];
  draws.params.rows = static_cast<const DrawRow*>(rows.data());
  draws.params.edits = static_cast<const TokenEdit*>(rows.data());
  draws.params.masks = static_cast<const uint32_t*>(draw_masks_.data());
  draws.params.mask_words = static_cast<int32_t>(MaskWords());
  draws.params.num_rows = drawing.rows;
  draws.params.filters = drawing.filters;
  draws.params.drawn = static_cast<DrawnToken*>(drawn_.data());
  return draws;
}

// Enqueues the operations of a step. `flight`: not null if its layers are reported.
Status AsyncExecutor::Compute(const DeviceBatch& batch, const Drawing& drawing, Flight* flight) {
  std::function<void(int32_t)> on_layer;
  Status recorded;
  if (flight != nullptr) {
    on_layer = [&](int32_t layer) {
      Status status = device_.Record(*flight->layers[static_cast<size_t>(layer)], *stream_);
      if (!status) recorded = std::move(status);
    };
  }
  AISP_RETURN_IF_ERROR(model_->Enqueue(batch, DrawsOf(drawing), on_layer, *stream_));
  return recorded;
}

Result<std::unique_ptr<Graph>> AsyncExecutor::Capture(const GraphSize& size, const Drawing& drawing,
                                                      StepGraphs* graphs) {
  const DeviceBatch batch = model_->Padded(size.rows, size.longest, drawing.place, size.adapters);
  const StepDraws draws = DrawsOf(drawing);
  AISP_ASSIGN_OR_RETURN(const PreparedStep* const step,
                        model_->Prepare(BucketOf(batch, draws.part, draws.params)));
  graphs->slow = step->slow_launches();
  AISP_RETURN_IF_ERROR(device_.BeginCapture(*stream_));
  const Status computed = Compute(batch, drawing, nullptr);
  Result<std::unique_ptr<Graph>> graph = device_.EndCapture(*stream_);
  AISP_RETURN_IF_ERROR(computed);
  ++captured_;
  return graph;
}

Status AsyncExecutor::CaptureGraphs() {
  const SteadyClock clock;
  const Instant start = clock.Now();
  AISP_ASSIGN_OR_RETURN(const MemoryInfo before, device_.GetMemoryInfo());
  const int32_t largest = std::min(options_.base.max_slots, options_.base.model.max_batch_tokens);
  int64_t count = 0;
  for (const int32_t rows : GraphSizes(largest)) {
    const int32_t places = rows <= kMostRowsOfTwoPlaces ? 2 : 1;
    for (int32_t place = 0; place < places; ++place) {
      const GraphSize size{false, 1, rows};
      StepGraphs& graphs = graphs_[size][static_cast<size_t>(place)];
      AISP_ASSIGN_OR_RETURN(graphs.filtering, Capture(size, {rows, true, place}, &graphs));
      AISP_ASSIGN_OR_RETURN(graphs.plain, Capture(size, {rows, false, place}, &graphs));
      count += 2;
    }
  }
  const int32_t most_draws = std::min(max_draws(), options_.base.model.max_batch_tokens);
  for (const int32_t longest : {4, 8, 16}) {
    if (options_.base.max_draft_rows == 0) break;
    for (const int32_t rows : GraphSizes(most_draws)) {
      if (rows > 1) graphs_[{false, longest, rows}];
    }
  }
  if (model_->adapter_slots() > 0) {
    std::vector<GraphSize> sizes;
    sizes.reserve(graphs_.size());
    for (const auto& [size, graphs] : graphs_) sizes.push_back({true, size.longest, size.rows});
    for (const GraphSize& size : sizes) graphs_[size];
  }
  AISP_RETURN_IF_ERROR(device_.Synchronize(*stream_));
  AISP_ASSIGN_OR_RETURN(const MemoryInfo after, device_.GetMemoryInfo());
  LogInfo(
      "decode graphs captured",
      {{"graphs", count},
       {"largest_batch", largest},
       {"ms", ToMs(clock.Now() - start)},
       {"memory", HumanBytes(before.free_bytes - std::min(before.free_bytes, after.free_bytes))}});
  return {};
}

std::vector<int32_t> AsyncExecutor::step_sizes() const {
  if (graphs_.empty()) return {};
  return GraphSizes(std::min(max_draws(), options_.base.model.max_batch_tokens));
}

Result<Graph*> AsyncExecutor::GraphFor(const GraphSize& size, const Drawing& drawing, bool cut) {
  StepGraphs& graphs = graphs_.at(size)[static_cast<size_t>(drawing.place)];
  std::unique_ptr<Graph>& graph = cut               ? graphs.forward
                                  : drawing.filters ? graphs.filtering
                                                    : graphs.plain;
  if (graph == nullptr) {
    const Drawing captured = cut ? Drawing{.rows = 0, .filters = false, .place = drawing.place}
                                 : Drawing{size.rows, drawing.filters, drawing.place};
    AISP_ASSIGN_OR_RETURN(graph, Capture(size, captured, &graphs));
  }
  return graph.get();
}

// The size of the graph that runs this step; 0 rows: none.
AsyncExecutor::GraphSize AsyncExecutor::SizeFor(const StepInput& input) const {
  const size_t rows = input.batch.tokens.size();
  if (graphs_.empty() || input.samples.empty() || input.batch.slot_of_row.size() != rows ||
      !input.slices.empty() || !input.scored.empty() || !input.hidden_rows.empty())
    return {};
  int32_t longest = 1;
  for (const SequenceRows& s : input.batch.sequences) longest = std::max(longest, s.num_rows);
  const bool each_draws = input.samples.size() == rows && input.batch.logit_rows.size() == rows;
  if (longest > kMostVerifyRows || (longest == 1 && !each_draws)) return {};
  if (longest > 1) longest = VerifyRows(longest);
  const bool adapters = !input.batch.adapter_of_row.empty();
  const auto graph = graphs_.lower_bound({adapters, longest, static_cast<int32_t>(rows)});
  const bool fits = graph != graphs_.end() && graph->first.longest == longest &&
                    graph->first.adapters == adapters;
  return fits ? graph->first : GraphSize{};
}

void AsyncExecutor::WantAllLogits(Flight& flight) {
  ForwardBatch& batch = flight.input.batch;
  const size_t rows = batch.tokens.size();
  if (batch.logit_rows.size() == rows) return;
  flight.asked_rows.assign(batch.logit_rows.begin(), batch.logit_rows.end());
  flight.all_rows.resize(rows);
  std::iota(flight.all_rows.begin(), flight.all_rows.end(), 0);
  batch.logit_rows = flight.all_rows;
}

// The row of the computed logits that the sample is drawn from.
int32_t AsyncExecutor::LogitRowOf(const Flight& flight, size_t sample) {
  const int32_t index = flight.input.samples[sample].logit_index;
  return flight.asked_rows.empty() ? index : flight.asked_rows[static_cast<size_t>(index)];
}

size_t AsyncExecutor::GraphOperations(int32_t rows) const {
  const auto graph = graphs_.lower_bound({false, 1, rows});
  return graph == graphs_.end() || graph->first.longest > 1 || graph->first.adapters
             ? 0
             : graph->second[0].plain->size();
}

// Uploads a step's inputs during the step in flight, if any, unless that one reads the same buffer
// set.
Result<DeviceBatch> AsyncExecutor::Upload(Flight& flight, const Drawing& drawing, int32_t bucket) {
  const bool beside = flight.follows && drawing.place != place_;
  place_ = drawing.place;
  Stream& stream = beside ? *upload_stream_ : *stream_;
  AISP_ASSIGN_OR_RETURN(
      const DeviceBatch batch,
      model_->Upload(flight.input.batch, layout_.block_tokens, bucket, drawing.place, stream));
  if (drawing.rows > 0 && !flight.input.before_draw)
    AISP_RETURN_IF_ERROR(UploadDraws(flight, drawing, stream));
  if (beside) {
    AISP_RETURN_IF_ERROR(device_.Record(*uploaded_, stream));
    AISP_RETURN_IF_ERROR(device_.Wait(*stream_, *uploaded_));
  }
  return batch;
}

Result<Ticket> AsyncExecutor::Launch(const StepInput& input) {
  AISP_CHECK_MSG(launched_ - collected_ < kDepth, "more steps are launched than may be in flight");
  for (int32_t block : input.batch.block_tables)
    AISP_CHECK(block >= 0 && block < layout_.num_blocks);
  Flight& flight = flights_[launched_ % kDepth];
  flight.input = input;
  flight.layers_reported = 0;
  flight.asked_rows.clear();
  flight.captured = false;
  flight.follows = launched_ > collected_;
  const GraphSize size = SizeFor(input);
  if (size.rows > 0) WantAllLogits(flight);
  const Drawing drawing = DrawingFor(input, size);
  AISP_ASSIGN_OR_RETURN(const DeviceBatch batch, Upload(flight, drawing, size.rows));
  Clocking& clocking = clocking_[launched_ % clocking_.size()];
  AISP_RETURN_IF_ERROR(device_.Record(*clocking.begin, *stream_));
  if (!input.copies.empty()) {
    CopyRangesOf(layout_, input.copies, &ranges_);
    AISP_RETURN_IF_ERROR(device_.CopyRanges(pool_.data(), pool_.data(), ranges_, *stream_));
  }
  const bool cut = input.before_draw && drawing.rows > 0;
  if (size.rows > 0) {
    const uint64_t captured = captured_;
    AISP_ASSIGN_OR_RETURN(Graph* const graph, GraphFor(size, drawing, cut));
    flight.captured = captured_ > captured;
    AISP_RETURN_IF_ERROR(device_.LaunchGraph(*graph, *stream_));
    const StepGraphs& graphs = graphs_.at(size)[static_cast<size_t>(drawing.place)];
    for (const size_t slow : graphs.slow) ops_->slow_paths().Count(slow);
  } else {
    const bool reports = input.sink != nullptr && !input.slices.empty();
    AISP_RETURN_IF_ERROR(Compute(batch, cut ? Drawing{} : drawing, reports ? &flight : nullptr));
  }
  if (cut) AISP_RETURN_IF_ERROR(DrawAfterCut(flight, batch, drawing));
  AISP_RETURN_IF_ERROR(CopyFeatures(input.feature_rows, flight.features));
  AISP_RETURN_IF_ERROR(device_.Record(*clocking.end, *stream_));
  AISP_RETURN_IF_ERROR(FetchResults(flight));
  return Ticket{++launched_};
}

// The forward pass is enqueued; this uploads what the draw needs and enqueues the draw.
Status AsyncExecutor::DrawAfterCut(Flight& flight, const DeviceBatch& batch,
                                   const Drawing& drawing) {
  flight.input.before_draw();
  AISP_RETURN_IF_ERROR(UploadDraws(flight, drawing, *stream_));
  StepDraws draws = DrawsOf(drawing);
  draws.part = StepPart::kDraw;
  return model_->Enqueue(batch, draws, {}, *stream_);
}

Status AsyncExecutor::ReportLayers(Flight& flight) {
  const StepInput& input = flight.input;
  if (input.sink == nullptr || input.slices.empty()) return {};
  for (size_t& layer = flight.layers_reported; layer < flight.layers.size(); ++layer) {
    AISP_RETURN_IF_ERROR(device_.Synchronize(*flight.layers[layer]));
    input.sink->OnLayer(static_cast<int32_t>(layer), input.slices);
  }
  return {};
}

bool AsyncExecutor::Done(Ticket ticket) {
  AISP_CHECK_MSG(ticket.value == collected_ + 1 && collected_ < launched_,
                 "the oldest step in flight is asked for");
  Flight& flight = flights_[collected_ % kDepth];
  const StepInput& input = flight.input;
  if (input.sink != nullptr && !input.slices.empty()) {
    for (size_t& layer = flight.layers_reported; layer < flight.layers.size(); ++layer) {
      const Result<bool> finished = device_.Query(*flight.layers[layer]);
      if (!finished) return true;
      if (!*finished) return false;
      input.sink->OnLayer(static_cast<int32_t>(layer), input.slices);
    }
  }
  const Clocking& clocking = clocking_[collected_ % clocking_.size()];
  return device_.Query(flight.fetches ? *flight.fetched : *clocking.end).value_or(true);
}

Result<StepResult> AsyncExecutor::Collect(Ticket ticket) {
  AISP_CHECK_MSG(ticket.value == collected_ + 1 && collected_ < launched_,
                 "steps are collected in the order in which they were launched");
  Flight& flight = flights_[collected_ % kDepth];
  AISP_RETURN_IF_ERROR(ReportLayers(flight));
  const Clocking& clocking = clocking_[collected_ % clocking_.size()];
  AISP_RETURN_IF_ERROR(device_.Synchronize(flight.fetches ? *flight.fetched : *clocking.end));
  AISP_ASSIGN_OR_RETURN(const double busy_ms, device_.ElapsedMs(*clocking.begin, *clocking.end));
  ++times_.steps;
  times_.busy_ms += busy_ms;
  StepResult result;
  result.device_time = FromMs(busy_ms);
  result.captured = flight.captured;
  if (flight.follows) {
    const Clocking& before = clocking_[(collected_ - 1) % clocking_.size()];
    AISP_ASSIGN_OR_RETURN(const double idle_ms, device_.ElapsedMs(*before.end, *clocking.begin));
    times_.idle_ms += idle_ms;
    result.device_time += FromMs(idle_ms);
  }
  ReadOutputs(flight, &result);
  ++collected_;
  return result;
}

}  // namespace aisp
