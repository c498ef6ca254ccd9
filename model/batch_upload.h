// BatchUpload: copies a step's small arrays (tokens, positions, block tables) to the device in one
// copy.
//
// There are two staging areas on the host. One may be reused because a step is collected, so that
// its copy is complete, before the second step after it is launched. There are two places on the
// device, so that a step's arrays can be copied while the previous step reads the other. Offsets
// depend only on the numbers of rows, sequences and logit rows, so a captured graph finds later
// steps' arrays at the same addresses (Padded).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/ops.h"
#include "model/forward.h"

namespace aisp {

struct BatchLimits {
  int32_t max_rows = 0;
  int32_t max_sequences = 0;
  int32_t max_logit_rows = 0;
  int32_t max_context = 0;
};

// A ForwardBatch in device memory.
struct DeviceBatch {
  RaggedBatch ragged;
  const int32_t* tokens = nullptr;
  const int32_t* slot_of_row = nullptr;
  const int32_t* logit_rows = nullptr;  // null: all rows
  int32_t num_logit_rows = 0;
  const int32_t* adapter_of_row = nullptr;  // null: no row has an adapter
};

class BatchUpload {
 public:
  BatchUpload() = default;
  static Result<BatchUpload> Create(Device& device, const BatchLimits& limits);

  // INVALID_ARGUMENT: limits exceeded, a token out of the vocabulary, inconsistent spans. `pad_to`
  // > 0 adds idle rows and sequences; then there is one logit row per sequence, unless all rows
  // have one. `place`: which of the two; its last reader has finished when `stream` reaches the
  // copy.
  Result<DeviceBatch> Upload(const ForwardBatch& batch, int32_t vocabulary, int32_t block_tokens,
                             int32_t pad_to, int32_t place, Device& device, Stream& stream);
  // The addresses of a batch padded to `rows`, with sequences of at most `longest` rows, for a
  // capture.
  DeviceBatch Padded(int32_t rows, int32_t longest, int32_t place, bool all_logits = true,
                     bool adapters = false) const;
  const BatchLimits& limits() const { return limits_; }
  size_t bytes() const { return places_[0].bytes() + places_[1].bytes(); }

 private:
  Status Check(const ForwardBatch& batch, int32_t vocabulary, int32_t block_tokens) const;
  // Number of sequences in a batch padded to `rows`.
  int32_t PaddedSequences(int32_t rows) const { return std::min(rows, limits_.max_sequences); }

  BatchLimits limits_;
  std::array<Buffer, 2> staging_, places_;
  size_t turn_ = 0;
};

}  // namespace aisp
