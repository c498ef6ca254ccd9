// Pull: a model by name from the hub into the cache, as much of it as a server needs: config.json,
// generation_config.json, the tokenizer, the chat template, the safetensors index and the shards
// that it names. What tells whether the model can be served comes first, its weights last.
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
  uint64_t total_bytes = 0;  // 0: not known yet
  int waiting = 0;           // files that come through another process
};

// What the caller knows about models; each may be empty. The first three are asked in this order,
// before the weights come, and an error of theirs ends the pull.
struct PullHooks {
  std::function<Status(const std::string& config_json)> check_config;
  std::function<Status(const std::string& index_json)> check_index;
  // The JSON header of a file of weights; behind it lie `data_bytes`.
  std::function<Status(const std::string& file, const std::string& header_json,
                       uint64_t data_bytes)>
      check_header;
  // Five times a second, on the thread that called Pull.
  std::function<void(const PullProgress&)> on_progress;
  std::function<bool()> cancelled;
};

struct Pulled {
  std::string folder;  // .../snapshots/COMMIT
  std::string commit;
  int files = 0;
  uint64_t bytes = 0;      // of all these files
  uint64_t new_bytes = 0;  // that were not there
};

// Returns when the snapshot is whole. Errors: UNAUTHENTICATED, PERMISSION_DENIED and NOT_FOUND as
// the hub answered; RESOURCE_EXHAUSTED: the disk, with the bytes needed and free; UNAVAILABLE and
// DEADLINE_EXCEEDED: the network, after retries; DATA_LOSS: a wrong hash; CANCELLED; what the hooks
// said. After each of them the next Pull goes on from what has come. Without `weights`: all else.
Result<Pulled> Pull(const HubOptions& options, const HubRepo& repo, bool weights,
                    const PullHooks& hooks);

}  // namespace aisp
