// Metrics of client requests outside the router: why a request was rejected before the router saw
// it, and the frontend's own time. Handles are fetched once; the I/O thread.
#pragma once

#include <array>
#include <cstdint>

#include "common/metrics.h"

namespace aisp {

// Labels of aisp_requests_rejected_total; the router adds its own (router/router_metrics.cc).
enum class Rejection : uint8_t {
  kUnauthenticated,  // no key, or an unknown one
  kBadRequest,       // not JSON, a bad parameter, an unknown model, a prompt that is too long
  kKeyLimit,         // a limit of the key is reached
  kTokenizerQueue,   // the tokenizer's queue is full
  kDeadline,         // it timed out before it was placed
};

class FrontendMetrics {
 public:
  FrontendMetrics() = default;
  FrontendMetrics(Metrics* metrics, const MetricLabels& labels);

  void Count(Rejection reason) const { rejected_[static_cast<size_t>(reason)].Add(); }

  Counter disconnected;
  Counter embedded_inputs, embedded_tokens;
  Histogram frontend_s;  // from reception to the router

 private:
  std::array<Counter, 5> rejected_;
};

}  // namespace aisp
