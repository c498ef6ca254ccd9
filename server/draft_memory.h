// What a draft model or head keeps of a GPU beside the served model, told before it is loaded.
#pragma once

#include <algorithm>
#include <cstdint>

#include "config/config.h"
#include "server/kv_pool.h"
#include "server/served_model.h"

namespace aisp {

// Rows of a draft model's step that one sequence's tokens behind the last draft may have, beside
// one each.
inline constexpr int32_t kDraftTailRows = 64;

// Rows of a step of a head on a GPU: prompts are taken up in pieces.
inline int32_t DraftHeadRows(int64_t max_batch_tokens) {
  return static_cast<int32_t>(std::min<int64_t>(max_batch_tokens, 2048));
}

// Nothing where no model or head is configured. Errors as MakeSpeculator.
Result<DraftMemory> DraftMemoryOf(const Config& config, const ServedModel& served);

}  // namespace aisp
