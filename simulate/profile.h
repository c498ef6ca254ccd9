// WorkerProfile: costs and capacities of one kind of worker. Profiles are JSON files; `aisp
// simulate --learn` writes one from the fits of a running router.
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
  // Step costs in ms, in the form that the router fits.
  StepCost cost;
  int32_t chunk_tokens = 512;       // prefill tokens of one sequence per step
  int32_t max_batch_tokens = 2048;  // per step
  int32_t max_running = 256;        // sequences
  int32_t block_tokens = 64;        // a multiple of 16
  int64_t blocks = 4096;            // in the KV pool
  double kv_bytes_per_token = 131072;
  int32_t num_layers = 32;
  double transfer_bytes_per_s = 5e9;  // between two workers
  double handoff_ms = 0.5;            // exposed time of a remote prefill's hand-off
  double message_ms = 0.15;           // between two processes, one way
  double frontend_ms = 0.5;           // per request, outside router and workers
  // Steps launched while one runs, 0 or 1; new work waits for them too.
  int32_t launched_ahead = 0;
  // Additional ms of a decode-only step from so many rows on, where a kernel needs another tile.
  std::map<int32_t, double> more_from_rows;
  // Additional ms of a step with prefill once it has any decode row.
  double beside_rows_ms = 0;
  // Steps with prefill slow down while others precede them, because the device's clock falls: by
  // this fraction under constant prefill. Earlier work counts for about `rest_ms`.
  double back_to_back = 0;
  double rest_ms = 60;
  double step_jitter = 0.02;  // standard deviation of a step's time, relative to it
};

// Workers of one kind.
struct Fleet {
  WorkerProfile profile;
  int prefill = 0;
  int decode = 0;
};

// "NAME:2P2D", groups joined by '+'. NAME is a .json file or the name of a shipped profile in
// `folder`. Without prefill workers ("4D") every worker prefills its own prompts. INVALID_ARGUMENT
// names the wrong part and what is accepted.
Result<std::vector<Fleet>> ParseFleets(std::string_view spec, const std::string& folder);

// INVALID_ARGUMENT names the unknown, missing or out-of-range key.
Result<WorkerProfile> ParseProfile(std::string_view json, std::string name);
std::string ProfileToJson(const WorkerProfile& profile);

}  // namespace aisp::simulate
