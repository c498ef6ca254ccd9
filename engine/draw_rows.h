// What a device that draws is told of a row: engine/sampler.h's parameters in the form of
// kernels/params.h. Engine thread only.
#pragma once

#include <span>
#include <vector>

#include "engine/executor.h"
#include "kernels/params.h"

namespace aisp {

// Without where its logits, its edits and its mask are.
DrawRow DrawRowOf(const SampleRow& row);
// Whether it has top_k, top_p or min_p.
bool FiltersTokens(const SampleRow& row);

// Lists what rows' logits are edited by.
class EditWriter {
 public:
  explicit EditWriter(int32_t vocabulary) : edit_of_token_(static_cast<size_t>(vocabulary), -1) {}
  // The row's edits from room[*used] on, each token once. False: there is no room for all of them.
  bool Append(const SampleRow& row, std::span<TokenEdit> room, size_t* used);

 private:
  std::vector<int32_t> edit_of_token_;  // -1 between calls
};

}  // namespace aisp
