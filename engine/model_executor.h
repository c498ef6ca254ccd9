// ModelExecutor: runs planned steps of a real model and draws tokens from its logits.
//
// It owns the model and the KV pool; the device and the operations outlive it. The pool is
// shareable memory (Device::Export), so another process can map it. On a synchronous device (the
// CPU) a step is computed inside Launch and max_depth() is 1. One engine thread; kv_pool() and
// kv_layout(), which do not change, from any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/executor.h"
#include "engine/sampler.h"
#include "kernels/device/device.h"
#include "kernels/ops.h"
#include "model/model.h"

namespace aisp {

struct ModelExecutorOptions {
  ModelOptions
      model;  // max_logit_rows and max_sequences follow max_slots, which they must not be below
  int32_t max_slots = 64;
  int32_t max_draft_rows = 0;    // rows of a step that verify draft tokens, and draw too
  int32_t max_scored_rows = 64;  // rows of a step that score known tokens
  int32_t block_tokens = 16;     // 16 to 128, a multiple of 16
  int32_t num_blocks = 0;        // 0: as many as kv_bytes holds
  size_t kv_bytes = 0;
  // If both are 0: chooses the number from the device's memory after the weights are loaded.
  std::function<Result<int32_t>(const MemoryInfo& memory)> choose_blocks;
  std::optional<DType> kv_dtype;  // f32, bf16 or fp8_e4m3; empty: the compute dtype
};

// The KV layout of a model of this shape. INVALID_ARGUMENT: a block size or dtype without a kernel,
// or no room for a single block.
Result<KvLayout> MakeKvLayout(const KvShape& shape, int32_t block_tokens, DType dtype,
                              int32_t num_blocks, size_t kv_bytes);

// The same for a loaded model; uses choose_blocks if set and needed.
Result<KvLayout> MakeKvLayout(const ModelExecutorOptions& options, const Model& model,
                              const Device& device);

// The views of each layer in a pool.
std::vector<PagedKvView> KvViews(const KvLayout& layout, void* pool);

// Sets `ranges` to the byte ranges of these copies in a pool.
void CopyRangesOf(const KvLayout& layout, std::span<const CopiedBlock> copies,
                  std::vector<CopyRange>* ranges);

// An executor of a real model, with a pool that other processes can map.
class ServingExecutor : public Executor {
 public:
  virtual const Buffer& kv_pool() const = 0;
  virtual const Model& model() const = 0;
  // Logits of the last step: f32 [max_logit_rows, vocabulary], in device memory.
  virtual TensorView logits() const = 0;
  // The stream of its steps, for callers that enqueue work between them; null on a synchronous
  // device.
  virtual Stream* stream() const = 0;
};

class ModelExecutor final : public ServingExecutor {
 public:
  // Device and operations outlive this. UNIMPLEMENTED: an asynchronous device; INVALID_ARGUMENT: no
  // slots; else the model's or the device's error.
  static Result<std::unique_ptr<ModelExecutor>> Create(const std::string& model_directory,
                                                       const ModelExecutorOptions& options,
                                                       Device& device, Ops& ops);

  int max_depth() const override { return 1; }
  const KvLayout& kv_layout() const override { return layout_; }
  int32_t max_context() const override { return model_->max_context(); }
  int32_t max_batch_tokens() const override { return options_.model.max_batch_tokens; }
  int32_t max_slots() const override { return options_.max_slots; }
  std::vector<SlowPathCount> slow_paths() const override { return ops_->slow_paths().Snapshot(); }
  int32_t max_draws() const override { return options_.max_slots + options_.max_draft_rows; }
  bool copies_blocks() const override { return true; }
  bool applies_masks() const override { return true; }
  int32_t max_scored_rows() const override { return options_.max_scored_rows; }
  int32_t hidden_size() const override { return model_->spec().hidden; }
  int32_t feature_size() const override {
    return static_cast<int32_t>(model_->features().shape[1]);
  }
  int32_t vocabulary() const override { return model_->spec().vocabulary; }
  int32_t adapter_slots() const override { return model_->adapter_slots(); }
  int32_t FindAdapter(std::string_view digest) const override {
    return model_->FindAdapter(digest);
  }
  std::string_view AdapterIn(int32_t slot) const override { return model_->AdapterIn(slot); }
  Status SetAdapter(int32_t slot, PackedAdapter adapter) override {
    return model_->SetPackedAdapter(slot, std::move(adapter));
  }
  Result<Ticket> Launch(const StepInput& input) override;
  Result<StepResult> Collect(Ticket ticket) override;

  const Buffer& kv_pool() const override { return pool_; }
  const Model& model() const override { return *model_; }
  TensorView logits() const override { return model_->logits(); }
  Stream* stream() const override { return nullptr; }

 private:
  ModelExecutor(const ModelExecutorOptions& options, Device& device)
      : options_(options), device_(device) {}
  Status Start(const std::string& model_directory, Ops& ops);
  Status Forward(const StepInput& input);
  void DrawTokens(const StepInput& input);
  void ScoreRows(const StepInput& input);
  Status ReadHidden(const StepInput& input);
  void ReadFeatures(const StepInput& input);

  const ModelExecutorOptions options_;
  Device& device_;
  Ops* ops_ = nullptr;
  std::unique_ptr<Model> model_;
  KvLayout layout_;
  Buffer pool_;
  Buffer slot_tokens_;  // int32 [max_slots]: the last token drawn for each slot
  std::unique_ptr<Stream> stream_;
  std::optional<Sampler> sampler_;
  std::vector<CopyRange> ranges_;
  StepResult result_;  // of the step in flight
  uint64_t launched_ = 0;
  bool in_flight_ = false;
};

}  // namespace aisp
