// Pull: downloads what a server needs of a hub model into the cache: config.json,
// generation_config.json, the tokenizer, the chat template, the safetensors index and its shards.
// Files that show whether the model can be served come first, the weights last.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "common/result.h"
#include "hub/options.h"
#include "hub/repo.h"

namespace aisp {

struct PullProgress {
  std::string what;  // "config.json", "7 files"
  uint64_t done_bytes = 0;
  uint64_t total_bytes = 0;  // 0: unknown
  int waiting = 0;           // files downloaded by another process
};

// The caller's checks; each may be empty. The first three run in this order before the weights are
// downloaded, and an error ends the pull.
struct PullHooks {
  std::function<Status(const std::string& config_json)> check_config;
  std::function<Status(const std::string& index_json)> check_index;
  // Gets the JSON header of a weights file, which `data_bytes` of data follow.
  std::function<Status(const std::string& file, const std::string& header_json,
                       uint64_t data_bytes)>
      check_header;
  // Called five times a second, on the thread that called Pull.
  std::function<void(const PullProgress&)> on_progress;
  std::function<bool()> cancelled;
};

struct Pulled {
  std::string folder;  // .../snapshots/COMMIT
  std::string commit;
  int files = 0;
  uint64_t bytes = 0;      // of all these files
  uint64_t new_bytes = 0;  // that were downloaded now
};

// Returns when the snapshot is complete. `weights` false: all else. Errors: UNAUTHENTICATED,
// PERMISSION_DENIED, NOT_FOUND from the hub; RESOURCE_EXHAUSTED: disk full; UNAVAILABLE,
// DEADLINE_EXCEEDED: network; DATA_LOSS: wrong hash; CANCELLED; a hook's. The next Pull resumes.
Result<Pulled> Pull(const HubOptions& options, const HubRepo& repo, bool weights,
                    const PullHooks& hooks);

}  // namespace aisp
