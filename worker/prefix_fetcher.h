// PrefixFetcher: pulls a prompt's prefix from another worker's cache into this worker's, in any
// role. The caller continues without it, whatever the result. Engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "common/ids.h"
#include "common/metrics.h"
#include "kv.pb.h"

namespace aisp {

class PrefixFetcher {
 public:
  virtual ~PrefixFetcher() = default;
  using Done = std::function<void(const v1::PrefixPull&)>;
  // Starts to fetch the prefix of `tokens` (the whole prompt) that `of.pull()` names, in the scope
  // of `of`. Calls `done` once, after returning, unless abandoned. 0: nothing to wait for; `done`
  // is not called.
  virtual uint64_t Fetch(const v1::PrefillRequest& of, std::span<const TokenId> tokens,
                         Done done) = 0;
  virtual void Abandon(uint64_t fetch) = 0;
  // Once, before the first Fetch.
  virtual void AddFetchMetrics(Metrics& metrics, const MetricLabels& labels) = 0;
};

}  // namespace aisp
