// MtpHead: the weights of a next-token layer and its forward pass (model/feature_head.h).
//
// Its features are the residual stream behind the target's last layer. It norms them as the target
// does in front of its head, then with `hnorm`; the embedding of the next token with `enorm`;
// `eh_proj` makes one row of both, which goes through a layer of the model's kind. Behind the last
// token that the target has computed it goes on with that layer's output. The matrix of the head is
// the target's unless the checkpoint has one for it.
#pragma once

#include <memory>
#include <string>

#include "model/feature_head.h"
#include "model/mtp_spec.h"
#include "model/sublayer.h"
#include "model/workspace.h"

namespace aisp {

class MtpHead final : public FeatureHead {
 public:
  // `target` outlives it. Errors name the tensor.
  static Result<std::unique_ptr<MtpHead>> Load(const std::string& directory, const MtpSpec& spec,
                                               const Model& target,
                                               const FeatureHeadOptions& options, Device& device,
                                               Ops& ops);

 private:
  MtpHead(const MtpSpec& spec, const Model& target, const FeatureHeadOptions& options,
          Device& device, Ops& ops);
  Status LoadRope(Stream& stream);
  Status LoadWeights(const std::string& directory, Stream& stream);
  Status Allocate();
  void EmitProgrammes();
  void EmitInput(ProgrammeBuilder& b, bool begins) const;
  void EmitOutput(ProgrammeBuilder& b) const;

  const MtpSpec spec_;
  const Model& target_;
  DeviceVector token_norm_, hidden_norm_, output_norm_;
  std::unique_ptr<PackedLinear> projection_, own_head_;
  const PackedLinear* head_ = nullptr;
  std::unique_ptr<Sublayer> attention_, mlp_;
  Workspace workspace_;
  Buffer rope_memory_, memory_;
  TensorView rope_;
  // [max_rows, ..]: the features behind the target's norm; the normed embedding beside the normed
  // hidden state.
  TensorView final_, embedded_, both_;
  TensorView head_input_;  // [max_sequences, hidden]
};

}  // namespace aisp
