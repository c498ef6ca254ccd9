// Model: a checkpoint's weights on one device and its forward pass.
//
// Everything is allocated by Load: Forward allocates nothing. One Forward at a time, on the stream that it is given; the logits
// of a step stay valid until the next. The device and the operations outlive the model.
// On the CPU the forward pass is batch- and chunk-invariant, bit for bit (kernels/ops.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/result.h"
#include "kernels/ops.h"
#include "model/forward.h"
#include "model/spec.h"

namespace aisp {

struct ModelOptions {
  // In which weights are multiplied: f32 or bf16; nothing: what the device does best with the checkpoint's own dtype.
  std::optional<DType> compute_dtype;
  int32_t max_batch_tokens = 512;  // rows of a step
  int32_t max_logit_rows = 64;     // rows of a step whose logits are wanted
  int32_t max_sequences = 64;      // of a step
  int32_t max_context =
      0;  // tokens of a sequence; 0: what config.json says, which is also the limit
};

// All layers of the pool have the same shape and follow each other at `layer_bytes`.
struct PagedKvPool {
  PagedKvView first_layer;
  size_t layer_bytes = 0;
  PagedKvView Layer(int32_t layer) const {
    PagedKvView view = first_layer;
    view.layer =
        static_cast<std::byte*>(first_layer.layer) + static_cast<size_t>(layer) * layer_bytes;
    return view;
  }
};

struct ForwardInput {
  ForwardBatch batch;
  PagedKvPool kv;
  const int32_t* slot_tokens = nullptr;  // device memory, for kTokenOnDevice
  // Layer `layer` of the batch's KV is enqueued (on the CPU: is in the pool). May be empty.
  std::function<void(int32_t layer)> on_layer;
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

  // INVALID_ARGUMENT: a token out of the vocabulary, more rows, sequences or positions than the options allow.
  virtual Status Forward(const ForwardInput& input, Stream& stream) = 0;
  // f32 [max_logit_rows, vocabulary]: row i is of batch.logit_rows[i] of the last Forward.
  virtual TensorView logits() const = 0;
};

}  // namespace aisp
