// The launches behind TokenDrawer. Four kernels: scan (slices of each row: rows with penalties,
// biases or bans get a copy of their logits with the edits applied; greatest score, greatest score
// plus noise, whether all is finite), count and list (rows with top_k, top_p or min_p: what lies
// how far below the greatest score, and the tokens near enough to be left, if they are few), finish
// (one block a row: puts the slices together; a row that filters is decided here, among its list or
// among all tokens).
//
// Where no row filters and rows are few, scan is the only one: the block with a row's last slice
// waits for the others' and puts them together. A slice's results are slots that hold kTokenEmpty
// until they are written (token_slots.h), so that this is one store and one load through L2;
// whoever puts a row together empties them again.
#pragma once

#include <cuda_runtime_api.h>

#include "common/result.h"
#include "kernels/cuda/poll.h"
#include "kernels/params.h"

namespace aisp::cuda {

inline constexpr int32_t kDrawSlices = 16;
inline constexpr int32_t kDrawBins = 256;
inline constexpr int32_t kDrawCandidates = 4096;  // of a row, listed

// What a slice of a row contributes: two vectors, each written in one piece.
struct alignas(16) DrawSlice {
  float max_score = 0;  // after edits, before the temperature
  int32_t max_token = 0;
  float best = 0;  // score / temperature + noise
  int32_t best_token = 0;
  float max_logit = 0;  // of the model's own
  float sum = 0;        // of exp(logit - max_logit)
  int32_t finite = 0;
  int32_t reserved = 0;
};

struct DrawCandidate {
  float score = 0;  // divided by the temperature
  int32_t token = 0;
};

struct DrawList {
  int32_t count = -1;  // of candidates, in the order of their tokens; negative: too many for a list
  int32_t reserved = 0;
  unsigned long long units = 0;  // the weight of all tokens, where top_p needs it
};

struct DrawCall {
  const float* logits = nullptr;
  int64_t stride = 0;
  int32_t vocabulary = 0;
  const DrawRow* rows = nullptr;
  const TokenEdit* edits = nullptr;
  const uint32_t* masks = nullptr;  // as DrawParams
  int32_t mask_words = 0;
  int32_t num_rows = 0;
  bool filters = true;  // a row has top_k, top_p or min_p, perhaps
  int32_t* slot_tokens = nullptr;
  DrawnToken* drawn = nullptr;
  float* edited = nullptr;                  // [num_rows, vocabulary]
  DrawSlice* slices = nullptr;              // [num_rows, kDrawSlices]; kTokenEmpty between calls
  uint32_t* bin_counts = nullptr;           // [num_rows, kDrawSlices, kDrawBins]
  unsigned long long* bin_units = nullptr;  // the same
  DrawList* lists = nullptr;                // [num_rows]
  DrawCandidate* candidates = nullptr;      // [num_rows, kDrawCandidates]
  PollTag poll;
};

Status LaunchDraw(const DrawCall& call, cudaStream_t stream);

}  // namespace aisp::cuda
