// Models and limits shared by many tests of the engine.
#pragma once

#include "tests/engine/engine_harness.h"

namespace aisp {

inline ProvenanceOptions SmallModel(int32_t depth = 1, int32_t blocks = 64) {
  ProvenanceOptions model;
  model.max_depth = depth;
  model.num_blocks = blocks;
  return model;
}

inline EngineOptions Budget(int32_t batch_tokens, int32_t chunk) {
  EngineOptions options;
  options.limits.max_batch_tokens = batch_tokens;
  options.limits.max_prefill_chunk = chunk;
  return options;
}

}  // namespace aisp
