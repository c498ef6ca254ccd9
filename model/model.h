// Model: a checkpoint's weights on one device and its forward pass.
//
// Load and Bind allocate everything: a step allocates no device memory. One step at a time, on the
// given stream; a step's logits stay valid until the next step. Device and operations outlive the
// model. On the CPU the forward pass is batch- and chunk-invariant, bit for bit (kernels/ops.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "kernels/ops.h"
#include "model/adapter_table.h"
#include "model/batch_upload.h"
#include "model/forward.h"
#include "model/lora_adapter.h"
#include "model/spec.h"

namespace aisp {

struct ModelOptions {
  // Dtype of multiplications: f32 or bf16; nullopt: the device's best for the checkpoint's dtype.
  std::optional<DType> compute_dtype;
  int32_t max_batch_tokens = 512;  // rows per step
  int32_t max_logit_rows = 64;     // rows per step whose logits are wanted
  int32_t max_sequences = 64;      // per step
  int32_t max_context =
      0;  // tokens per sequence; 0: config.json's value, which is also the maximum
  // Uses random weights from this seed; the directory then needs only a config.json.
  std::optional<uint64_t> random_weights;
  // Format of the layers' matrices; nullopt: the checkpoint's if the device supports it, else the
  // compute dtype.
  std::optional<WeightFormat> weight_format;
  // LoRA adapters for slots 0, 1, ...; there are at least as many slots.
  std::vector<std::shared_ptr<const LoraAdapter>> adapters;
  int32_t max_adapters = 0;  // 0 and no adapters: steps have no overhead for them
  // Largest rank of later adapters. On a GPU memory is reserved for all slots.
  int32_t max_adapter_rank = 0;
  // Logits of this many tokens only, those with the smallest ids (BPE gives frequent tokens small
  // ids); the others' are kNoLogit. 0: of all. For models that only draft.
  int32_t output_tokens = 0;
  // Keeps every step's residual stream before these layers (the number of layers: after the last).
  std::vector<int32_t> feature_layers;
  // Called during Load with the bytes of weights processed so far and in total.
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> on_progress;
};

// The logit of a token without one. Finite, since a draw reports other values as a fault of the
// model.
inline constexpr float kNoLogit = -1e9f;

// What a step draws after its forward pass, if anything.
struct StepDraws {
  StepPart part = StepPart::kForward;
  DrawParams params;  // without logits and slot_tokens
};

class Model {
 public:
  // Errors name the file and the tensor.
  static Result<std::unique_ptr<Model>> Load(const std::string& directory,
                                             const ModelOptions& options, Device& device, Ops& ops);
  virtual ~Model() = default;

  virtual const ModelSpec& spec() const = 0;
  virtual DType compute_dtype() const = 0;
  virtual int32_t max_context() const = 0;
  // Device bytes of the workspace.
  virtual size_t workspace_bytes() const = 0;

  // Sets each layer's pool, and int32 [slots]: the last token drawn for each (kTokenOnDevice). Both
  // are device memory and outlive the model. Once, before the first step; errors name what the
  // device has no kernel for.
  virtual Status Bind(std::span<const PagedKvView> layers, int32_t* slot_tokens) = 0;
  virtual const Programme& programme() const = 0;

  // Converts `adapter` to the kernels' layout, the slowest part of loading it. Any thread; errors
  // as in AdapterTable::Pack.
  virtual Result<PackedAdapter> PackAdapter(const LoraAdapter& adapter) const = 0;
  // Sets the adapter for rows that name this slot (ForwardBatch::adapter_of_row) from the next step
  // on; an empty one clears it. On the enqueuing thread, between steps, while no sequence uses the
  // slot. After an error the slot is empty.
  virtual Status SetPackedAdapter(int32_t slot, PackedAdapter adapter) = 0;
  // PackAdapter, then SetPackedAdapter; null clears the slot.
  Status SetAdapter(int32_t slot, const std::shared_ptr<const LoraAdapter>& adapter);
  virtual int32_t adapter_slots() const = 0;
  // The slot of the adapter with this digest; -1: none. On the enqueuing thread.
  virtual int32_t FindAdapter(std::string_view digest) const = 0;
  virtual std::string_view AdapterIn(int32_t slot) const = 0;

  // A step: copies its arrays to the device (see BatchUpload), then launches, which a graph may
  // capture. INVALID_ARGUMENT: a token out of the vocabulary, or more rows, sequences or positions
  // than the options allow.
  virtual Result<DeviceBatch> Upload(const ForwardBatch& batch, int32_t block_tokens,
                                     int32_t pad_to, int32_t place, Stream& stream) = 0;
  virtual DeviceBatch Padded(int32_t rows, int32_t longest, int32_t place,
                             bool adapters = false) const = 0;
  // `on_layer`: the layer's KV was enqueued (on the CPU: is in the pool). May be empty.
  virtual Status Enqueue(const DeviceBatch& batch, const StepDraws& draws,
                         const std::function<void(int32_t layer)>& on_layer, Stream& stream) = 0;
  // The launches of a step. Enqueue prepares them if needed; for a capture they must exist before.
  // Valid until the next call.
  virtual Result<PreparedStep*> Prepare(const Bucket& bucket) = 0;
  // Bytes of all matrices of the layers and the output head.
  virtual size_t weight_bytes() const = 0;
  // Weight bytes that a step of `rows` rows reads; for a mixture of experts the expected value
  // under uniform routing.
  virtual double StreamedBytes(int32_t rows) const = 0;
  // f32 [max_logit_rows, vocabulary]: row i belongs to batch.logit_rows[i] of the last step.
  virtual TensorView logits() const = 0;
  // [max_batch_tokens, feature_layers * hidden], f32 or, on an asynchronous device (GPU), the
  // compute dtype. Row i belongs to row i of the last step. No data without feature_layers.
  virtual TensorView features() const = 0;
  // [vocabulary, hidden] in the checkpoint's dtype, in device memory.
  virtual TensorView embedding() const = 0;
  // The final norm, f32 [hidden], and the output matrix over the vocabulary, for heads that share
  // them.
  virtual TensorView final_norm() const = 0;
  virtual const PackedLinear& head() const = 0;
  // Enqueues copying the final-norm hidden states of `rows` of the last step to `out`, f32 [rows,
  // hidden]. Both are host memory; on an asynchronous device page-locked, and unchanged until the
  // stream has got there. Not on the path of other steps.
  virtual Status HiddenStates(std::span<const int32_t> rows, std::span<float> out,
                              Stream& stream) = 0;
};

}  // namespace aisp
