// LayerSink: receives a notice when a layer's KV of a step is in the pool. The prefill role pushes
// those blocks to a decode worker while the next layer computes. The engine does not know the
// destination.
#pragma once

#include <cstdint>
#include <span>

#include "common/ids.h"

namespace aisp {

// KV of positions [token_begin, token_end) of one sequence.
struct LayerSlice {
  SequenceId sequence;
  int32_t token_begin = 0;
  int32_t token_end = 0;
  std::span<const BlockId> blocks;  // the sequence's whole block table
};

class LayerSink {
 public:
  virtual ~LayerSink() = default;
  // Layer `layer` of all `slices` may be read from the pool. Called in layer order by the thread
  // that executes the step (CPU executor: inside Launch; GPU executor: in Collect or Done, once the
  // layer's event has completed). Must not call back into the engine; must not block.
  virtual void OnLayer(int32_t layer, std::span<const LayerSlice> slices) = 0;
};

}  // namespace aisp
