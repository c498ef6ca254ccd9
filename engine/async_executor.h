// AsyncExecutor: runs planned steps on an asynchronous device, two in flight.
//
// Launch enqueues a step and returns; drawn tokens stay on the device for the next step
// (kTokenOnDevice) and reach the host in Collect. The host's inputs are uploaded during the
// previous step, into a buffer set that it does not read. Steps in which every sequence has one row
// and draws (decode) are captured graphs, one per batch size in a list, with and without filters
// (top_k, top_p, min_p); smaller batches are padded with rows that do nothing. Verify steps (at
// most 4, 8 or 16 rows per sequence) and steps with adapters are captured on first use. Other steps
// are launched operation by operation; so are the draws of a decode step with late masks, whose
// forward pass has its own graph. Layers of prefill-only sequences are reported to the LayerSink in
// Collect, each once its event has completed.
//
// Tokens are drawn on the device by the rules of engine/sampler.h. The host computes only lists of
// top tokens, logprobs under a mask and scores of known tokens, from logits copied for those rows.
// A device error ends the executor: the engine becomes unready. One engine thread; kv_pool() and
// kv_layout() from any thread.
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

// Sums since the start, by the device's clock.
struct DeviceTimes {
  uint64_t steps = 0;
  double busy_ms = 0;  // during steps
  double idle_ms =
      0;  // between a step's end and the next one's start, while the next was already in flight
};

class AsyncExecutor final : public ServingExecutor {
 public:
  // Device and operations outlive this. INVALID_ARGUMENT: no slots, or operations that do not draw;
  // else the model's or the device's error.
  static Result<std::unique_ptr<AsyncExecutor>> Create(const std::string& model_directory,
                                                       const AsyncExecutorOptions& options,
                                                       Device& device, Ops& ops);
  // Waits for steps in flight.
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
  // Logits of the last step: f32 [max_logit_rows, vocabulary], in device memory.
  TensorView logits() const override { return model_->logits(); }
  Stream* stream() const override { return stream_.get(); }
  DeviceTimes times() const { return times_; }
  // Number of operations in the graph of a decode step of `rows` rows without filters; 0: no graph.
  size_t GraphOperations(int32_t rows) const;

 private:
  static constexpr int kDepth = 2;

  // State of a step in flight, until it is collected.
  struct Flight {
    StepInput input;
    Buffer draw_staging;  // page-locked: DrawRow [max_draws], then edits
    Buffer mask_staging;  // page-locked: the masks of draw rows that have one
    Buffer logits;        // page-locked: rows whose logprobs are wanted, then scored rows
    Buffer hidden_rows,
        hidden;  // page-locked: indices of rows whose hidden states are wanted, and those states
    Buffer features;                 // of rows whose features are wanted
    Buffer kept;                     // page-locked: features for the host, in the device's format
    std::vector<float> widened;      // the same in f32, if the device uses a narrower format
    bool fetches = false;            // some logits, hidden states or features go to the host
    std::unique_ptr<Event> fetched;  // signals that they have arrived
    std::vector<std::unique_ptr<Event>> layers;
    // A verify graph computes logits of all rows; these are the requested rows, by the samples'
    // logit_index. Empty: logit_index is used as it is.
    std::vector<int32_t> asked_rows;
    std::vector<int32_t> all_rows;
    std::vector<Status> refused;  // by sample: why it could not be drawn
    size_t layers_reported = 0;   // to the step's sink
    bool captured = false;        // a graph was captured for it
    bool follows = false;         // another step was in flight when this one was launched
  };

  // How a step draws.
  struct Drawing {
    int32_t rows = 0;
    bool filters = true;  // whether any row filters
    int32_t place = 0;    // buffer set of draw_rows_ and of the batch
  };

  // What a graph was captured for.
  struct GraphSize {
    bool adapters = false;  // some rows have adapters
    int32_t longest = 1;    // most rows of one sequence: 1, 4, 8 or 16
    int32_t rows = 0;       // 0: no graph
    auto operator<=>(const GraphSize&) const = default;
  };

  // The graphs for steps of one size.
  struct StepGraphs {
    // With and without filters. Verify steps and steps with adapters: captured on first use.
    std::unique_ptr<Graph> filtering, plain;
    std::unique_ptr<Graph> forward;  // without draws; captured on first use
    std::vector<size_t> slow;        // PreparedStep::slow_launches
  };

  // Events at a step's begin and end. One more than steps in flight, so that the step before the
  // oldest can be read.
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
  // Ensures at least `bytes` of page-locked memory; its content may be lost.
  Status Grow(Buffer& buffer, size_t bytes) const;
  Status FetchFeatures(Flight& flight);
  // Copies the features of these rows of the current step, contiguously.
  Status CopyFeatures(std::span<const int32_t> rows, Buffer& to);
  std::span<const float> KeptFeatures(Flight& flight) const;
  GraphSize SizeFor(const StepInput& input) const;
  static void WantAllLogits(Flight& flight);
  static int32_t LogitRowOf(const Flight& flight, size_t sample);
  Status ReportLayers(Flight& flight);
  // The next row of logits that was fetched to the host.
  std::span<const float> NextLogits(const Flight& flight, size_t* logit_rows_read) const;
  SampledToken TokenOf(Flight& flight, size_t sample, size_t* logit_rows_read);
  void ReadOutputs(Flight& flight, StepResult* result);
  // Whether the host reads a sample's logits. Valid from the upload of its draws on.
  bool ReadsLogits(const Flight& flight, size_t sample) const;
  // The mask used for a sample; empty: none.
  std::span<const uint32_t> MaskOf(const Flight& flight, size_t sample) const;
  // Index in `drawn_` where the device writes a sample's token.
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
  Buffer pool_, slot_tokens_, draw_masks_;
  std::array<Buffer, 2> draw_rows_;  // DrawRow [rows of the step], then edits (FirstEdit)
  int32_t place_ = 0;                // buffer set that the last step reads
  Buffer drawn_;  // page-locked, written by the device: DrawnToken [kDepth, max_draws]
  std::unique_ptr<Stream> stream_, upload_stream_;
  std::unique_ptr<Event> uploaded_;
  std::map<GraphSize, std::array<StepGraphs, 2>> graphs_;  // by size and buffer set
  std::array<Flight, kDepth> flights_;
  std::array<Clocking, kDepth + 1> clocking_;
  uint64_t launched_ = 0;
  uint64_t collected_ = 0;
  uint64_t captured_ = 0;  // number of graphs
  DeviceTimes times_;
  std::optional<EditWriter> edits_;
  std::vector<CopyRange> ranges_;
};

}  // namespace aisp
