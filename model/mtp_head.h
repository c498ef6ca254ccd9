// MtpHead: the weights and forward pass of a next-token (MTP) layer (model/feature_head.h).
//
// Its features are the residual stream after the target's last layer. They get the target's final
// norm, then `hnorm`; the next token's embedding gets `enorm`. `eh_proj` projects both to one row,
// which passes through a layer of the model's kind. Beyond the target's last computed token it
// continues from that layer's output. The output matrix is the target's unless the checkpoint has
// its own.
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
  // [max_rows, ..]: the features after the target's norm; the normed embedding and normed hidden
  // state side by side.
  TensorView final_, embedded_, both_;
  TensorView head_input_;  // [max_sequences, hidden]
};

}  // namespace aisp
