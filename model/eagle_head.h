// EagleHead: the weights of an EAGLE-3 head and its forward pass; on the CPU.
//
// Row i of a sequence reads the embedding of token i + 1 and, of token i, the target's features or,
// behind the last token that the target has computed, the head's own output one row before. It says
// which token follows token i + 1. Its KV is its own, one layer of it; a row stands there at the
// place that its position in the batch says, so a sequence may begin anywhere in a text (rotation
// is relative).
//
// As in a Model: everything is allocated by Load, one step at a time, the logits stay valid until
// the next one, rows do not depend on what else is in a step. Device and operations outlive it, and
// so does the model whose embeddings it reads.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "model/batch_upload.h"
#include "model/eagle_spec.h"
#include "model/sublayer.h"

namespace aisp {

struct EagleHeadOptions {
  DType compute_dtype = DType::kF32;
  int32_t max_rows = 512;
  int32_t max_sequences = 64;  // of a step; as many logit rows
  int32_t max_context = 2048;
};

class EagleHead {
 public:
  // `embedding`: the target's, [vocabulary, hidden]. Errors name the tensor, or the place in d2t
  // that is out of the target's vocabulary.
  static Result<std::unique_ptr<EagleHead>> Load(const std::string& directory,
                                                 const EagleSpec& spec, const TensorView& embedding,
                                                 const EagleHeadOptions& options, Device& device,
                                                 Ops& ops);

  const EagleSpec& spec() const { return spec_; }
  const EagleHeadOptions& options() const { return options_; }
  int32_t feature_size() const {
    return static_cast<int32_t>(spec_.feature_layers.size()) * spec_.target_hidden;
  }
  // The token of the target's vocabulary that each of the head's logits is of.
  std::span<const TokenId> target_tokens() const { return target_tokens_; }

  // A step over `kv`. `features`: f32 [rows, feature_size]. INVALID_ARGUMENT as Model::Upload.
  Status Step(const ForwardBatch& batch, std::span<const float> features, const PagedKvView& kv);
  // A step whose row i goes on with the head's output at logit row outputs[i] of the step before.
  Status StepOn(const ForwardBatch& batch, std::span<const int32_t> outputs, const PagedKvView& kv);
  // f32 [max_sequences, draft vocabulary]: row i is of batch.logit_rows[i] of the last step.
  TensorView logits() const { return logits_; }

 private:
  EagleHead(EagleSpec spec, const EagleHeadOptions& options, Device& device, Ops& ops)
      : spec_(std::move(spec)), options_(options), device_(device), ops_(ops) {}
  Status LoadWeights(const std::string& directory);
  Status ReadTokenMap(const Checkpoint& checkpoint);
  Status Allocate();
  Status Layer(const DeviceBatch& batch, const PagedKvView& kv);
  Status Attend(const DeviceBatch& batch, const PagedKvView& kv);
  Status Mlp(int32_t rows);
  Status Output(const DeviceBatch& batch);
  Result<DeviceBatch> Upload(const ForwardBatch& batch, const PagedKvView& kv);

  const EagleSpec spec_;
  const EagleHeadOptions options_;
  Device& device_;
  Ops& ops_;
  std::unique_ptr<Stream> stream_;
  TensorView embedding_;
  std::vector<TokenId> target_tokens_;
  DeviceVector input_norm_, hidden_norm_, post_norm_, final_norm_;
  std::unique_ptr<PackedLinear> fc_, qkv_, output_, gate_up_, down_, head_;
  Workspace unused_;
  Buffer rope_memory_, memory_;
  TensorView rope_;
  // [max_rows, ..]: what a step hands on. `both_`: the normed embedding beside the normed hidden
  // state.
  TensorView features_, embedded_, hidden_, both_, wide_, mixed_, normed_;
  // [max_sequences, ..]: of the rows whose logits are wanted.
  TensorView kept_, head_input_, logits_;
  BatchUpload upload_;
};

}  // namespace aisp
