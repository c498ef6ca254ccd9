// Picks workers in turn, regardless of load: a baseline for comparisons.
#include "router/policy.h"

namespace aisp {
namespace {

class RoundRobinPolicy final : public OrderPolicy {
 public:
  RoundRobinPolicy() : OrderPolicy("round-robin") {}

 protected:
  double Order(const RequestSummary& request, const WorkerView& /*worker*/, size_t index,
               size_t count) const override {
    return static_cast<double>((index + count - request.ordinal % count) % count);
  }
};

}  // namespace

std::unique_ptr<RoutingPolicy> MakeRoundRobinPolicy(const PolicyOptions& /*options*/) {
  return std::make_unique<RoundRobinPolicy>();
}

}  // namespace aisp
