// The launches behind TokenDrawer. Four kernels: scan (per slice of a row: copies logits and
// applies edits if there are penalties, biases or bans; finds the best score, the best with noise,
// and whether all are finite), count and list (rows with top_k, top_p or min_p: how far tokens are
// below the best score, and the candidates if they are few), finish (one block per row: merges the
// slices, and draws filtered rows from the list or from all tokens).
//
// If no row filters and rows are few, scan is the only kernel: the block with a row's last slice
// waits for the others and merges them. A slice's results are slots that hold kTokenEmpty until
// written (token_slots.h), so this takes one store and one load through L2; the merging block
// empties them again.
#pragma once

#include <cuda_runtime_api.h>

#include "common/result.h"
#include "kernels/cuda/poll.h"
#include "kernels/params.h"

namespace aisp::cuda {

inline constexpr int32_t kDrawSlices = 16;
inline constexpr int32_t kDrawBins = 256;
inline constexpr int32_t kDrawCandidates = 4096;  // per row, in a list

// The result of a slice: two vectors, each written in one piece.
struct alignas(16) DrawSlice {
  float max_score = 0;  // after edits, before the temperature
  int32_t max_token = 0;
  float best = 0;  // score / temperature + noise
  int32_t best_token = 0;
  float max_logit = 0;  // of the unedited logits
  float sum = 0;        // of exp(logit - max_logit)
  int32_t finite = 0;
  int32_t reserved = 0;
};

struct DrawCandidate {
  float score = 0;  // divided by the temperature
  int32_t token = 0;
};

struct DrawList {
  int32_t count = -1;  // number of candidates, in token order; negative: too many for a list
  int32_t reserved = 0;
  unsigned long long units = 0;  // weight of all tokens, for top_p
};

struct DrawCall {
  const float* logits = nullptr;
  int64_t stride = 0;
  int32_t vocabulary = 0;
  const DrawRow* rows = nullptr;
  const TokenEdit* edits = nullptr;
  const uint32_t* masks = nullptr;  // as in DrawParams
  int32_t mask_words = 0;
  int32_t num_rows = 0;
  bool filters = true;  // some row may have top_k, top_p or min_p
  int32_t* slot_tokens = nullptr;
  DrawnToken* drawn = nullptr;
  float* edited = nullptr;                  // [num_rows, vocabulary]
  DrawSlice* slices = nullptr;              // [num_rows, kDrawSlices]; kTokenEmpty between calls
  uint32_t* bin_counts = nullptr;           // [num_rows, kDrawSlices, kDrawBins]
  unsigned long long* bin_units = nullptr;  // same shape
  DrawList* lists = nullptr;                // [num_rows]
  DrawCandidate* candidates = nullptr;      // [num_rows, kDrawCandidates]
  PollTag poll;
};

Status LaunchDraw(const DrawCall& call, cudaStream_t stream);

}  // namespace aisp::cuda
