// PrefixFetcher: brings the beginning of a prompt from another worker's cache into this worker's,
// whatever role it has. What asks goes on without it, whatever becomes of it. The engine thread.
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
  // Begins to fetch what `of.pull()` names of `tokens` (all of the prompt's), in the scope of `of`.
  // Ends in `done`, once, after this has returned and unless it was left. 0: there is nothing to
  // wait for, and `done` is not called.
  virtual uint64_t Fetch(const v1::PrefillRequest& of, std::span<const TokenId> tokens,
                         Done done) = 0;
  virtual void Abandon(uint64_t fetch) = 0;
  // Once, before the first Fetch.
  virtual void AddFetchMetrics(Metrics& metrics, const MetricLabels& labels) = 0;
};

}  // namespace aisp
