// EagleHead: the weights of an EAGLE-3 head and its forward pass (model/feature_head.h): one layer
// over embedding and hidden state side by side, and a head over a part of the vocabulary. Its
// features are the residual streams in front of chosen layers of the target.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/eagle_spec.h"
#include "model/feature_head.h"
#include "model/sublayer.h"

namespace aisp {

class EagleHead final : public FeatureHead {
 public:
  // `embedding`: the target's, [vocabulary, hidden]. Errors name the tensor, or the place in d2t
  // that is out of the target's vocabulary.
  static Result<std::unique_ptr<EagleHead>> Load(const std::string& directory,
                                                 const EagleSpec& spec, const TensorView& embedding,
                                                 const FeatureHeadOptions& options, Device& device,
                                                 Ops& ops);

  const EagleSpec& spec() const { return spec_; }
  // The token of the target's vocabulary that each of the head's logits is of.
  std::span<const TokenId> target_tokens() const { return target_tokens_; }
  // Device bytes beside the KV pool.
  size_t bytes() const;

 private:
  EagleHead(const EagleSpec& spec, const FeatureHeadOptions& options, Device& device, Ops& ops);
  Status LoadWeights(const std::string& directory, Stream& stream);
  Status ReadTokenMap(const Checkpoint& checkpoint);
  void MakeTokenMap();
  Status Allocate(Stream& stream);
  Status FillTables(Stream& stream);
  void EmitProgrammes();
  void EmitFeatures(ProgrammeBuilder& b) const;
  ValueId EmitKeys(ProgrammeBuilder& b, const TensorView& residual) const;
  void EmitLayer(ProgrammeBuilder& b, const TensorView& residual) const;
  void EmitMlp(ProgrammeBuilder& b, const TensorView& residual) const;
  void EmitOutput(ProgrammeBuilder& b, const TensorView& residual, bool keeps) const;
  bool spreads() const { return spec_.draft_vocabulary != spec_.layer.vocabulary; }

  const EagleSpec spec_;
  DType activation_ = DType::kF32;
  bool fused_ = false;  // gate, up and their product in one operation
  TensorView embedding_;
  std::vector<TokenId> target_tokens_;
  DeviceVector input_norm_, hidden_norm_, post_norm_, final_norm_;
  std::unique_ptr<PackedLinear> fc_, qkv_, output_, gate_up_, down_, head_;
  size_t weight_bytes_ = 0;
  Workspace unused_;
  Buffer rope_memory_, memory_, columns_;
  TensorView rope_;
  // [max_rows, ..]: what a step hands on. `both_`: the normed embedding beside the normed hidden
  // state. hidden_ is the residual stream of a step that begins, kept_ of one that goes on.
  TensorView embedded_, both_, wide_, mixed_, normed_;
  TensorView head_input_;  // [max_sequences, hidden]
};

}  // namespace aisp
