// Several sequences in common steps that take unequal chunks of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/model/golden.h"

namespace aisp {

// Computes `tokens` of each sequence in small chunks of different sizes, so that some sequences are
// alone in their last steps. Returns the logits after the last token of each.
inline std::vector<std::vector<float>> InUnequalChunks(Rig& rig,
                                                       std::vector<Rig::Sequence>& sequences,
                                                       int32_t tokens) {
  std::vector<std::vector<float>> last(sequences.size());
  for (;;) {
    std::vector<Rig::Rows> rows;
    std::vector<size_t> whose;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const int32_t count =
          std::min<int32_t>(3 + 5 * static_cast<int32_t>(i), tokens - sequences[i].computed);
      if (count == 0) continue;
      rows.push_back({&sequences[i], count});
      whose.push_back(i);
    }
    if (rows.empty()) return last;
    const auto logits = rig.Step(rows);
    for (size_t i = 0; i < whose.size(); ++i) last[whose[i]] = logits[i];
  }
}

}  // namespace aisp
