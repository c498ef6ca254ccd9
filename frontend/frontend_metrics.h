// What the surfaces count of requests beside the router: why one was turned away before the router
// saw it, and what the client's side of this process took. Handles fetched once; the I/O thread.
#pragma once

#include <array>
#include <cstdint>

#include "common/metrics.h"

namespace aisp {

// Label values of aisp_requests_rejected_total; the router adds its own (router/router_metrics.cc).
enum class Rejection : uint8_t {
  kUnauthenticated,  // no key, or one that is not known
  kBadRequest,       // not JSON, a wrong parameter, an unknown model, a prompt that does not fit
  kKeyLimit,         // the key has all that its limits allow
  kTokenizerQueue,   // too many prompts wait to be tokenized
  kDeadline,         // its time was over before it could be placed
};

class FrontendMetrics {
 public:
  FrontendMetrics() = default;
  FrontendMetrics(Metrics* metrics, const MetricLabels& labels);

  void Count(Rejection reason) const { rejected_[static_cast<size_t>(reason)].Add(); }

  Counter disconnected;
  Counter embedded_inputs, embedded_tokens;
  Histogram frontend_s;  // received to handed to the router

 private:
  std::array<Counter, 5> rejected_;
};

}  // namespace aisp
