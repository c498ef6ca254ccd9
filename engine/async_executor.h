// AsyncExecutor: runs planned steps on a device that computes beside the host, two of them in
// flight.
//
// Launch enqueues a step and returns; the tokens it draws stay on the device for the next one
// (kTokenOnDevice) and come to the host in Collect. What the host has for a step comes to a place
// on the device that the step before does not read, while that one runs. Steps in which every
// sequence has one row and draws (decoding) are captured graphs, one for each size in a list of
// batch sizes and for rows that filter (top_k, top_p, min_p) or do not; a smaller batch is padded
// with rows that do nothing. So are steps that verify proposed tokens, for sequences of at most 4,
// 8 or 16 rows, and those of rows with adapters, each when it is first wanted. Other steps are
// launched operation by operation, and so are the draws of a decode step whose masks come late: its
// forward pass has a graph of its own. Layers of prefill-only sequences are reported to the
// LayerSink in Collect, each as soon as its event is done.
//
// Tokens are drawn on the device by the rules of engine/sampler.h; only the list of likeliest
// tokens, the log-probabilities under a mask and the scores of known tokens are made on the host,
// from logits that are copied for those rows alone. An error of the device ends the executor: the
// engine turns unready. One engine thread; kv_pool(), kv_layout() from any thread.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/draw_rows.h"
#include "engine/model_executor.h"
#include "engine/sampler.h"

namespace aisp {

struct AsyncExecutorOptions {
  ModelExecutorOptions base;
  bool use_graphs = true;
};

// Sums since the start, by the device's own clock.
struct DeviceTimes {
  uint64_t steps = 0;
  double busy_ms = 0;  // in steps
  double idle_ms = 0;  // between a step's end and the next one's begin, while another was in flight
};

class AsyncExecutor final : public ServingExecutor {
 public:
  static Result<std::unique_ptr<AsyncExecutor>> Create(const std::string& model_directory,
                                                       const AsyncExecutorOptions& options,
                                                       Device& device, Ops& ops);
  // Waits for what is in flight.
  ~AsyncExecutor() override;

  int max_depth() const override { return kDepth; }
  const KvLayout& kv_layout() const override { return layout_; }
  int32_t max_context() const override { return model_->max_context(); }
  int32_t max_batch_tokens() const override { return options_.base.model.max_batch_tokens; }
  int32_t max_slots() const override { return options_.base.max_slots; }
  std::vector<SlowPathCount> slow_paths() const override { return ops_->slow_paths().Snapshot(); }
  int32_t max_draws() const override {
    return options_.base.max_slots + options_.base.max_draft_rows;
  }
  bool copies_blocks() const override { return true; }
  bool applies_masks() const override { return true; }
  int32_t vocabulary() const override { return model_->spec().vocabulary; }
  int32_t adapter_slots() const override { return model_->adapter_slots(); }
  int32_t FindAdapter(std::string_view digest) const override {
    return model_->FindAdapter(digest);
  }
  std::string_view AdapterIn(int32_t slot) const override { return model_->AdapterIn(slot); }
  Status SetAdapter(int32_t slot, PackedAdapter adapter) override {
    return model_->SetPackedAdapter(slot, std::move(adapter));
  }
  int32_t max_scored_rows() const override { return options_.base.max_scored_rows; }
  int32_t hidden_size() const override { return model_->spec().hidden; }
  bool features_on_host() const override { return false; }
  int32_t max_kept_features() const override;
  int32_t feature_size() const override {
    return static_cast<int32_t>(model_->features().shape[1]);
  }
  std::vector<int32_t> step_sizes() const override;
  Result<Ticket> Launch(const StepInput& input) override;
  bool Done(Ticket ticket) override;
  Result<StepResult> Collect(Ticket ticket) override;

  const Buffer& kv_pool() const override { return pool_; }
  const Model& model() const override { return *model_; }
  // Of the last step: f32 [max_logit_rows, vocabulary], in device memory.
  TensorView logits() const override { return model_->logits(); }
  Stream* stream() const override { return stream_.get(); }
  DeviceTimes times() const { return times_; }
  // Operations of the graph that runs a decode step of `rows` rows that do not filter; 0 without
  // one.
  size_t GraphOperations(int32_t rows) const;

 private:
  static constexpr int kDepth = 2;

  // What a step in flight needs until it is collected.
  struct Flight {
    StepInput input;
    Buffer draw_staging;         // page-locked: DrawRow [max_draws], then edits
    Buffer mask_staging;         // page-locked: masks of those rows that have one
    Buffer logits;               // page-locked: rows whose logprobs are wanted, then scored ones
    Buffer hidden_rows, hidden;  // page-locked: rows whose hidden states are wanted, and those
    Buffer features;             // rows whose features are wanted
    Buffer kept;                 // page-locked: those that come to the host, as the device has them
    std::vector<float> widened;  // those in f32, where the device has them in less
    bool fetches = false;        // there are rows of logits, hidden states or features
    std::unique_ptr<Event> fetched;  // then: they are there
    std::vector<std::unique_ptr<Event>> layers;
    // A graph of rows that verify has the logits of all of them: the rows that were asked for, in
    // whose places samples name theirs. Empty: as the samples say.
    std::vector<int32_t> asked_rows;
    std::vector<int32_t> all_rows;
    std::vector<Status> refused;  // by sample: why it was not drawn at all
    size_t layers_reported = 0;   // to the step's sink
    bool captured = false;        // a graph was made for it
    bool follows = false;         // another step was in flight when this one was launched
  };

  // How a step draws.
  struct Drawing {
    int32_t rows = 0;
    bool filters = true;  // some of them
    int32_t place = 0;    // of draw_rows_ and of the batch
  };

  // What a graph was captured for.
  struct GraphSize {
    bool adapters = false;  // of some rows
    int32_t longest = 1;    // most rows of a sequence: 1, or VerifyRows
    int32_t rows = 0;       // 0: no graph
    auto operator<=>(const GraphSize&) const = default;
  };

  // Steps of one size, drawing for rows of which some filter or for others.
  struct StepGraphs {
    // Of verifying, and of rows with adapters: captured when first wanted.
    std::unique_ptr<Graph> filtering, plain;
    std::unique_ptr<Graph> forward;  // without draws; captured when first wanted
    std::vector<size_t> slow;        // PreparedStep::slow_launches
  };

  // When the device began and ended a step. One more than steps in flight, so that the step before
  // the oldest can be read.
  struct Clocking {
    std::unique_ptr<Event> begin, end;
  };

  AsyncExecutor(const AsyncExecutorOptions& options, Device& device);
  Status Start(const std::string& model_directory, Ops& ops);
  Status AllocateFlights();
  Status WarmUp();
  Status CaptureGraphs();
  Status Compute(const DeviceBatch& batch, const Drawing& drawing, Flight* flight);
  Result<std::unique_ptr<Graph>> Capture(const GraphSize& size, const Drawing& drawing,
                                         StepGraphs* graphs);
  Result<Graph*> GraphFor(const GraphSize& size, const Drawing& drawing, bool cut);
  Drawing DrawingFor(const StepInput& input, const GraphSize& size) const;
  Result<DeviceBatch> Upload(Flight& flight, const Drawing& drawing, int32_t bucket);
  Status UploadDraws(Flight& flight, const Drawing& drawing, Stream& stream);
  Status FetchResults(Flight& flight);
  Status FetchLogits(Flight& flight);
  Status FetchHidden(Flight& flight);
  // Makes page-locked memory of at least so many bytes of `buffer`, whose content may be lost.
  Status Grow(Buffer& buffer, size_t bytes) const;
  Status FetchFeatures(Flight& flight);
  // Features of rows of this step, one behind the other.
  Status CopyFeatures(std::span<const int32_t> rows, Buffer& to);
  std::span<const float> KeptFeatures(Flight& flight) const;
  GraphSize SizeFor(const StepInput& input) const;
  static void WantAllLogits(Flight& flight);
  static int32_t LogitRowOf(const Flight& flight, size_t sample);
  Status ReportLayers(Flight& flight);
  // The next row of logits that was fetched for the host.
  std::span<const float> NextLogits(const Flight& flight, size_t* logit_rows_read) const;
  SampledToken TokenOf(Flight& flight, size_t sample, size_t* logit_rows_read);
  void ReadOutputs(Flight& flight, StepResult* result);
  // Whether the host reads the logits of a sample. When its draws are uploaded or later.
  bool ReadsLogits(const Flight& flight, size_t sample) const;
  // The mask that a sample was drawn with; empty: none.
  std::span<const uint32_t> MaskOf(const Flight& flight, size_t sample) const;
  // Where the device leaves what it draws for a sample.
  size_t DrawnAt(const Flight& flight, size_t sample) const {
    return static_cast<size_t>(&flight - flights_.data()) * static_cast<size_t>(max_draws()) +
           sample;
  }
  StepDraws DrawsOf(const Drawing& drawing) const;
  Status DrawAfterCut(Flight& flight, const DeviceBatch& batch, const Drawing& drawing);
  size_t MaskWords() const { return (static_cast<size_t>(model_->spec().vocabulary) + 31) / 32; }
  void PlaceMask(const SampleRow& sample, Flight& flight, DrawRow* draw, int32_t* masks) const;
  size_t MaxEdits() const;

  const AsyncExecutorOptions options_;
  Device& device_;
  Ops* ops_ = nullptr;
  std::unique_ptr<Model> model_;
  KvLayout layout_;
  Buffer pool_, slot_tokens_, draw_edits_, draw_masks_;
  std::array<Buffer, 2> draw_rows_;
  int32_t place_ = 0;  // that the last step reads
  Buffer drawn_;       // page-locked, written by the device: DrawnToken [kDepth, max_draws]
  std::unique_ptr<Stream> stream_, upload_stream_;
  std::unique_ptr<Event> uploaded_;
  std::map<GraphSize, std::array<StepGraphs, 2>> graphs_;  // by size and place
  std::array<Flight, kDepth> flights_;
  std::array<Clocking, kDepth + 1> clocking_;
  uint64_t launched_ = 0;
  uint64_t collected_ = 0;
  uint64_t captured_ = 0;  // graphs
  DeviceTimes times_;
  std::optional<EditWriter> edits_;
  std::vector<CopyRange> ranges_;
};

}  // namespace aisp
