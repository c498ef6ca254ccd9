// GPU memory of a draft model or head besides the served model, computed before loading.
#pragma once

#include <algorithm>
#include <cstdint>

#include "config/config.h"
#include "server/kv_pool.h"
#include "server/served_model.h"

namespace aisp {

// Rows per sequence in a draft model's step, besides one each, to catch up with accepted tokens.
inline constexpr int32_t kDraftTailRows = 64;

// Rows of a head's step on a GPU; prompts are processed in pieces.
inline int32_t DraftHeadRows(int64_t max_batch_tokens) {
  return static_cast<int32_t>(std::min<int64_t>(max_batch_tokens, 2048));
}

// Zero when no draft model or head is configured. Errors as in MakeSpeculator.
Result<DraftMemory> DraftMemoryOf(const Config& config, const ServedModel& served);

}  // namespace aisp
