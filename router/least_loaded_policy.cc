// The worker with the least work: a decode worker by the part of its rows that is taken, a prefill
// worker by the prompt tokens that wait there.
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
