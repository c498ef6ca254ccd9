// `aisp info --programme`: which kernel computes each node of a model's step, from the CUDA
// backend's table, without a GPU and without weights.
#pragma once

#include <cstdint>

#include "config/config.h"
#include "server/served_model.h"

namespace aisp {

struct ProgrammeMapOptions {
  int32_t batch = 1;    // sequences
  int32_t rows = 1;     // per sequence
  int32_t context = 0;  // keys per sequence, for attention's bytes; 0: 1024
  bool all = false;     // print every launch; else equal launches once, with their number
};

// Prints the map. Errors name the nodes without a kernel.
Status PrintProgrammeMap(const Config& config, const ServedModel& model,
                         const ProgrammeMapOptions& options);

}  // namespace aisp
