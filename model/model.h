// Model: a checkpoint's weights on one device and its forward pass.
//
// Everything is allocated by Load and Bind: a step allocates nothing on the device. One step at a
// time, on the stream that it is given; the logits of a step stay valid until the next. The device
// and the operations outlive the model. On the CPU the forward pass is batch- and chunk-invariant,
// bit for bit (kernels/ops.h).
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
  // In which weights are multiplied: f32 or bf16; nothing: what the device does best with the
  // checkpoint's own dtype.
  std::optional<DType> compute_dtype;
  int32_t max_batch_tokens = 512;  // rows of a step
  int32_t max_logit_rows = 64;     // rows of a step whose logits are wanted
  int32_t max_sequences = 64;      // of a step
  int32_t max_context =
      0;  // tokens of a sequence; 0: what config.json says, which is also the limit
  // Weights are not read but random, from this seed; the directory needs no more than a
  // config.json.
  std::optional<uint64_t> random_weights;
  // How the layers' matrices are kept; nothing: as the checkpoint has them where the device can,
  // else in the compute dtype.
  std::optional<WeightFormat> weight_format;
  // Served beside the weights: slots 0, 1, ... of max_adapters, or of as many as these if that is
  // less.
  std::vector<std::shared_ptr<const LoraAdapter>> adapters;
  int32_t max_adapters = 0;  // 0, and none given: steps cost nothing for them
  // Of those that come later. On a GPU memory is reserved for all slots.
  int32_t max_adapter_rank = 0;
  // Of every step the residual stream in front of these layers is kept (the number of layers:
  // behind the last).
  std::vector<int32_t> feature_layers;
  // Hears, while Load reads, how many bytes of how many weights have been taken up.
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> on_progress;
};

// What a step draws beside its forward pass, if anything.
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

  // The pool of each layer, and int32 [slots]: the last token drawn for each (kTokenOnDevice). Both
  // in device memory, which lives as long as the model. Once, before the first step; errors name
  // what the device has no kernel for.
  virtual Status Bind(std::span<const PagedKvView> layers, int32_t* slot_tokens) = 0;
  virtual const Programme& programme() const = 0;

  // `adapter` as its kernels read it, which takes longest of loading one. Any thread; errors as of
  // AdapterTable::Pack.
  virtual Result<PackedAdapter> PackAdapter(const LoraAdapter& adapter) const = 0;
  // What rows that name this slot (ForwardBatch::adapter_of_row) run with from the next step on; an
  // empty one empties it. By the thread that enqueues steps, between steps, while no sequence uses
  // the slot. After an error the slot is empty.
  virtual Status SetPackedAdapter(int32_t slot, PackedAdapter adapter) = 0;
  // Both; null empties the slot.
  Status SetAdapter(int32_t slot, const std::shared_ptr<const LoraAdapter>& adapter);
  virtual int32_t adapter_slots() const = 0;
  // The slot of the adapter with this digest; -1: it is in none. By the same thread.
  virtual int32_t FindAdapter(std::string_view digest) const = 0;
  virtual std::string_view AdapterIn(int32_t slot) const = 0;

  // A step: its arrays to the device (see BatchUpload), then its launches, which a graph may
  // capture. Upload answers INVALID_ARGUMENT to a token out of the vocabulary, and to more rows,
  // sequences or positions than the options allow.
  virtual Result<DeviceBatch> Upload(const ForwardBatch& batch, int32_t block_tokens,
                                     int32_t pad_to, int32_t place, Stream& stream) = 0;
  virtual DeviceBatch Padded(int32_t rows, int32_t longest, int32_t place,
                             bool adapters = false) const = 0;
  // `on_layer`: the layer's KV is enqueued (on the CPU: is in the pool). May be empty.
  virtual Status Enqueue(const DeviceBatch& batch, const StepDraws& draws,
                         const std::function<void(int32_t layer)>& on_layer, Stream& stream) = 0;
  // The launches of such a step. Enqueue prepares what was not prepared before; in a capture it has
  // to be there. Valid until the next call.
  virtual Result<PreparedStep*> Prepare(const Bucket& bucket) = 0;
  // Bytes of all matrices of the layers and the head.
  virtual size_t weight_bytes() const = 0;
  // What a step of `rows` rows reads of them: of a mixture's experts, those that rows choose if all
  // are equally likely.
  virtual double StreamedBytes(int32_t rows) const = 0;
  // f32 [max_logit_rows, vocabulary]: row i is of batch.logit_rows[i] of the last step.
  virtual TensorView logits() const = 0;
  // [max_batch_tokens, feature_layers * hidden], f32 or, where steps run beside the host, in the
  // compute dtype: row i is of row i of the last step; no data without feature_layers.
  virtual TensorView features() const = 0;
  // [vocabulary, hidden], as the checkpoint has it; in device memory.
  virtual TensorView embedding() const = 0;
  // What the logits are made with, for heads that share it: the final norm, f32 [hidden], and the
  // matrix over the vocabulary.
  virtual TensorView final_norm() const = 0;
  virtual const PackedLinear& head() const = 0;
  // Enqueues: hidden states of `rows` of the last step after the final norm, f32 [rows, hidden], to
  // `out`. Both in host memory; where steps run beside the host, page-locked, and left alone until
  // the stream has come that far. Not on the path of other steps.
  virtual Status HiddenStates(std::span<const int32_t> rows, std::span<float> out,
                              Stream& stream) = 0;
};

}  // namespace aisp
