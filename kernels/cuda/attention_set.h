// The attention kernels of a model's layers: one instance per shape, with the workspace for its
// plans and the tensor maps of the layers' pools. Created when steps are prepared; the table
// handles shapes without a kernel in attention/.
//
// One stream at a time: the workspaces belong to the running step.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "kernels/cuda/attention/attention.h"
#include "kernels/device/device.h"
#include "kernels/params.h"

namespace aisp::cuda {

class AttentionSet {
 public:
  struct Instance {
    std::unique_ptr<Attention> attention;
    Buffer workspace;
  };

  AttentionSet(Device& device, int32_t max_rows, int32_t max_sequences)
      : device_(device), max_rows_(max_rows), max_sequences_(max_sequences) {}

  // The instance for the layer's shape, for steps with at most `decode_tokens` rows per decoding
  // sequence, and `split_tokens` per sequence if not 0 (AttentionConfig). Keeps its address.
  // Allocates on the first call for a shape.
  Result<Instance*> For(const AttentionParams& params, int32_t decode_tokens, int32_t split_tokens,
                        cudaStream_t stream);
  // "decode ...; prefill ..." for each shape.
  std::string Describe() const;

 private:
  using Shape = std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, float,
                           DType, DType, DType>;

  Device& device_;
  const int32_t max_rows_, max_sequences_;
  std::map<Shape, Instance> instances_;
};

}  // namespace aisp::cuda
