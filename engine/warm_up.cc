#include "engine/warm_up.h"

#include <algorithm>

namespace aisp {
namespace {

// Longer steps use the same kernels; shorter ones those of decode.
constexpr int32_t kMostRows = 2048, kLeastRows = 16;

}  // namespace

std::vector<int32_t> WarmUpSizes(int32_t most) {
  std::vector<int32_t> sizes;
  for (int32_t rows = std::min(most, kMostRows); rows > 1; rows /= 2) {
    sizes.push_back(rows);
    if (rows <= kLeastRows) break;
  }
  std::reverse(sizes.begin(), sizes.end());
  return sizes;
}

WarmUpStep::WarmUpStep(int32_t rows, bool decodes, int32_t block_tokens) {
  Add(decodes ? rows - 1 : rows, block_tokens);
  if (decodes) Add(1, block_tokens);
  logit_rows_.push_back(rows - 1);
}

void WarmUpStep::Add(int32_t rows, int32_t block_tokens) {
  const auto table = static_cast<int32_t>(tables_.size());
  sequences_.push_back({static_cast<int32_t>(tokens_.size()), rows, rows, table});
  for (int32_t row = 0; row < rows; ++row) {
    tokens_.push_back(0);
    positions_.push_back(row);
    slots_.push_back(0);
    if (row % block_tokens == 0) tables_.push_back(static_cast<int32_t>(tables_.size()));
  }
}

ForwardBatch WarmUpStep::batch() const {
  return {tokens_, positions_, slots_, sequences_, tables_, logit_rows_};
}

}  // namespace aisp
