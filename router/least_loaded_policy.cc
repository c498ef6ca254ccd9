// Picks the least loaded worker: decode workers by the fraction of rows in use, prefill workers by
// queued prompt tokens.
#include "router/policy.h"

namespace aisp {
namespace {

class LeastLoadedPolicy final : public OrderPolicy {
 public:
  LeastLoadedPolicy() : OrderPolicy("least-loaded") {}

 protected:
  double Order(const RequestSummary& /*request*/, const WorkerView& worker, size_t /*index*/,
               size_t /*count*/) const override {
    if (worker.prefill) return static_cast<double>(worker.queued_prefill.tokens);
    return static_cast<double>(worker.rows) / worker.max_rows;
  }
};

}  // namespace

std::unique_ptr<RoutingPolicy> MakeLeastLoadedPolicy(const PolicyOptions& /*options*/) {
  return std::make_unique<LeastLoadedPolicy>();
}

}  // namespace aisp
