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
#include "model/batch_upload.h"
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
  // Weights are not read but random, from this seed; the directory needs no more than a config.json.
  std::optional<uint64_t> random_weights;
  // How the layers' matrices are kept; nothing: as the checkpoint has them where the device can, else in the compute dtype.
  std::optional<WeightFormat> weight_format;
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
  // The two halves of Forward: the arrays to the device (see BatchUpload), and the operations alone, which a graph may capture.
  virtual Result<DeviceBatch> Upload(const ForwardBatch& batch, int32_t block_tokens,
                                     int32_t pad_to, int32_t place, Stream& stream) = 0;
  virtual DeviceBatch Padded(int32_t rows, int32_t place) const = 0;
  virtual Status Enqueue(const DeviceBatch& batch, const PagedKvPool& kv,
                         const int32_t* slot_tokens,
                         const std::function<void(int32_t layer)>& on_layer, Stream& stream) = 0;
  // Bytes of all matrices of the layers and the head.
  virtual size_t weight_bytes() const = 0;
  // What a step of `rows` rows reads of them: of a mixture's experts, those that rows choose if all are equally likely.
  virtual double StreamedBytes(int32_t rows) const = 0;
  // f32 [max_logit_rows, vocabulary]: row i is of batch.logit_rows[i] of the last Forward.
  virtual TensorView logits() const = 0;
};

}  // namespace aisp
