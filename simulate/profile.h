// WorkerProfile: what one kind of worker costs and holds, as the simulator needs it. Profiles are
// JSON files; `aisp simulate --learn` writes one from the fits of a running router.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "router/step_time_model.h"

namespace aisp::simulate {

struct WorkerProfile {
  std::string name;
  // The same fits that the router learns: milliseconds of steps by what they hold.
  StepCost cost;
  int32_t chunk_tokens = 512;       // prompt tokens of one sequence in a step
  int32_t max_batch_tokens = 2048;  // of one step
  int32_t max_running = 256;        // sequences
  int32_t block_tokens = 64;        // a multiple of 16
  int64_t blocks = 4096;            // of the KV pool
  double kv_bytes_per_token = 131072;
  int32_t num_layers = 32;
  double transfer_bytes_per_s = 5e9;  // between two workers
  double handoff_ms = 0.5;            // of a remote prefill, that nothing hides
  double message_ms = 0.15;           // between two processes, one way
  double frontend_ms = 0.5;           // of a request outside router and workers
  // Steps that are launched while one runs, 0 or 1: what arrives then waits for it, too.
  int32_t launched_ahead = 0;
  // What a step of decodes takes longer from so many rows on, where a kernel's next tile begins.
  std::map<int32_t, double> more_from_rows;
  // What a step with prompts takes longer as soon as one row decodes beside them.
  double beside_rows_ms = 0;
  // Steps with prompts behind others are slower, because the device's clock falls: by this part
  // where it computes prompts all the time. What it did counts for about `rest_ms`.
  double back_to_back = 0;
  double rest_ms = 60;
  double step_jitter = 0.02;  // standard deviation of a step's time, as a part of it
};

// Workers of one kind.
struct Fleet {
  WorkerProfile profile;
  int prefill = 0;
  int decode = 0;
};

// "NAME:2P2D", groups joined by '+': NAME is a .json file or the name of a shipped profile, which
// is looked for in `folder`. Without prefill workers ("4D") every worker prefills its own prompts.
// INVALID_ARGUMENT names the part that is wrong and what is accepted.
Result<std::vector<Fleet>> ParseFleets(std::string_view spec, const std::string& folder);

// INVALID_ARGUMENT names the key that is unknown, missing or out of range.
Result<WorkerProfile> ParseProfile(std::string_view json, std::string name);
std::string ProfileToJson(const WorkerProfile& profile);

}  // namespace aisp::simulate
