// EagleHead: the weights and forward pass of an EAGLE-3 head (model/feature_head.h): one layer over
// the concatenated embedding and hidden state, and an output head over a part of the vocabulary.
// Its features are the residual streams before chosen layers of the target.
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
  // `embedding`: the target's, [vocabulary, hidden]. Errors name the tensor, or the entry of d2t
  // outside the target's vocabulary.
  static Result<std::unique_ptr<EagleHead>> Load(const std::string& directory,
                                                 const EagleSpec& spec, const TensorView& embedding,
                                                 const FeatureHeadOptions& options, Device& device,
                                                 Ops& ops);

  const EagleSpec& spec() const { return spec_; }
  // For each logit of the head, its token in the target's vocabulary.
  std::span<const TokenId> target_tokens() const { return target_tokens_; }
  // Device bytes, without the KV pool.
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
  bool fused_ = false;  // gate, up and their product are one operation
  TensorView embedding_;
  std::vector<TokenId> target_tokens_;
  DeviceVector input_norm_, hidden_norm_, post_norm_, final_norm_;
  std::unique_ptr<PackedLinear> fc_, qkv_, output_, gate_up_, down_, head_;
  size_t weight_bytes_ = 0;
  Workspace unused_;
  Buffer rope_memory_, memory_, columns_;
  TensorView rope_;
  // [max_rows, ..]: intermediate tensors. `both_`: the normed embedding and the normed hidden state
  // side by side. The residual stream is hidden_ for kBegin and kept_ for kGoOn.
  TensorView embedded_, both_, wide_, mixed_, normed_;
  TensorView head_input_;  // [max_sequences, hidden]
};

}  // namespace aisp
