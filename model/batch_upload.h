// BatchUpload: brings a step's small arrays (tokens, positions, tables) to the device in one copy.
//
// The staging memory is reused: the stream of the step before must have passed the copy, which holds because a step is
// collected before the one after the next is launched and there are two staging areas.
#pragma once

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
  const int32_t* logit_rows = nullptr;
  int32_t num_logit_rows = 0;
};

class BatchUpload {
 public:
  BatchUpload() = default;
  static Result<BatchUpload> Create(Device& device, const BatchLimits& limits);

  // INVALID_ARGUMENT: what the limits do not allow, a token out of the vocabulary, spans that do not fit each other.
  Result<DeviceBatch> Upload(const ForwardBatch& batch, int32_t vocabulary, int32_t block_tokens,
                             Device& device, Stream& stream);
  size_t bytes() const { return device_[0].bytes() + device_[1].bytes(); }

 private:
  Status Check(const ForwardBatch& batch, int32_t vocabulary, int32_t block_tokens) const;

  BatchLimits limits_;
  std::array<Buffer, 2> staging_, device_;
  size_t turn_ = 0;
};

}  // namespace aisp
