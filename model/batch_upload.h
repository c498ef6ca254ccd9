// BatchUpload: brings a step's small arrays (tokens, positions, tables) to the device in one copy.
//
// The staging memory is reused: the stream of the step before must have passed the copy, which
// holds because a step is collected before the one after the next is launched and there are two
// staging areas. There are two places on the device, too: a step's arrays may come to one while the
// step before reads the other. Where they lie in it depends on the numbers of rows, sequences and
// logit rows alone, so a captured step finds later arrays where its own were (Padded).
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
  const int32_t* logit_rows = nullptr;  // null: all of them
  int32_t num_logit_rows = 0;
  const int32_t* adapter_of_row = nullptr;  // null: no row has an adapter
};

class BatchUpload {
 public:
  BatchUpload() = default;
  static Result<BatchUpload> Create(Device& device, const BatchLimits& limits);

  // INVALID_ARGUMENT: what the limits do not allow, a token out of the vocabulary, spans that do
  // not fit each other. With `pad_to` > 0 rows and sequences are added that do nothing; unless the
  // logits of every row are wanted, there are as many logit rows as sequences then. `place`: which
  // of the two; what read it last is done when `stream` gets there.
  Result<DeviceBatch> Upload(const ForwardBatch& batch, int32_t vocabulary, int32_t block_tokens,
                             int32_t pad_to, int32_t place, Device& device, Stream& stream);
  // Where Upload puts a batch that it pads to `rows`, of sequences of at most `longest` rows, for a
  // capture.
  DeviceBatch Padded(int32_t rows, int32_t longest, int32_t place, bool all_logits = true,
                     bool adapters = false) const;
  const BatchLimits& limits() const { return limits_; }
  size_t bytes() const { return places_[0].bytes() + places_[1].bytes(); }

 private:
  Status Check(const ForwardBatch& batch, int32_t vocabulary, int32_t block_tokens) const;
  // Of a batch that is padded to so many rows.
  int32_t PaddedSequences(int32_t rows) const { return std::min(rows, limits_.max_sequences); }

  BatchLimits limits_;
  std::array<Buffer, 2> staging_, places_;
  size_t turn_ = 0;
};

}  // namespace aisp
