// `aisp info --programme`: which kernel computes each node of a model's step, resolved by the table
// of the CUDA backend, without a GPU and without weights.
#pragma once

#include <cstdint>

#include "config/config.h"
#include "server/served_model.h"

namespace aisp {

struct ProgrammeMapOptions {
  int32_t batch = 1;    // sequences
  int32_t rows = 1;     // of each
  int32_t context = 0;  // keys of each, for attention's bytes; 0: 1024
  bool all = false;     // every launch; else those that are alike once, with their number
};

// Prints it. Errors name what the table has no kernel for.
Status PrintProgrammeMap(const Config& config, const ServedModel& model,
                         const ProgrammeMapOptions& options);

}  // namespace aisp
