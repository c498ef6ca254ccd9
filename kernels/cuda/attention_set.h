// The attention kernels that a model's layers need, one instance for each shape, with the memory
// that it plans its steps in, and the layers' pools as the copy engine sees them. Made when steps
// are prepared; shapes that attention/ has no kernel for are the table's matter.
//
// One stream at a time: the instances' workspaces are of the step that runs.
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

  // Of the layer's shape, for steps whose sequences have at most `decode_tokens` rows where they
  // decode, and `split_tokens` in all where that is not 0 (AttentionConfig); stays where it is.
  // Allocates at its first call for a shape.
  Result<Instance*> For(const AttentionParams& params, int32_t decode_tokens, int32_t split_tokens,
                        cudaStream_t stream);
  // "decode ...; prefill ..." of each shape.
  std::string Describe() const;

 private:
  using Shape = std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, float,
                           DType, DType, DType>;

  Device& device_;
  const int32_t max_rows_, max_sequences_;
  std::map<Shape, Instance> instances_;
};

}  // namespace aisp::cuda
