// Converts engine/sampler.h's parameters to the device's form (kernels/params.h). Engine thread
// only.
#pragma once

#include <span>
#include <vector>

#include "engine/executor.h"
#include "kernels/params.h"

namespace aisp {

// A step's edits lie right behind its draw rows, so that one copy uploads both: index of the first,
// counted from the address of the rows.
constexpr size_t FirstEdit(size_t rows) {
  return (rows * sizeof(DrawRow) + sizeof(TokenEdit) - 1) / sizeof(TokenEdit);
}
// Bytes of draw rows and the edits behind them.
constexpr size_t DrawBytes(size_t rows, size_t edits) {
  return edits == 0 ? rows * sizeof(DrawRow) : (FirstEdit(rows) + edits) * sizeof(TokenEdit);
}

// Leaves the offsets of its logits, edits and mask unset.
DrawRow DrawRowOf(const SampleRow& row);
// Whether it uses top_k, top_p or min_p.
bool FiltersTokens(const SampleRow& row);

// Lists the logit edits of draw rows.
class EditWriter {
 public:
  explicit EditWriter(int32_t vocabulary) : edit_of_token_(static_cast<size_t>(vocabulary), -1) {}
  // Appends the row's edits at room[*used], one per token. False: not enough room.
  bool Append(const SampleRow& row, std::span<TokenEdit> room, size_t* used);

 private:
  std::vector<int32_t> edit_of_token_;  // -1 between calls
};

}  // namespace aisp
