// Picks the worker with the longest cached prefix; among equals the least loaded one.
#include "router/policy.h"

namespace aisp {
namespace {

class PrefixPolicy final : public OrderPolicy {
 public:
  PrefixPolicy() : OrderPolicy("prefix") {}

 protected:
  double Order(const RequestSummary& /*request*/, const WorkerView& worker, size_t /*index*/,
               size_t /*count*/) const override {
    const double load =
        worker.prefill
            ? static_cast<double>(worker.queued_prefill.tokens) /
                  (1.0 + static_cast<double>(worker.queued_prefill.tokens))
            : static_cast<double>(worker.rows) / (1.0 + static_cast<double>(worker.rows));
    return load - static_cast<double>(KnownTokens(worker));
  }
};

}  // namespace

std::unique_ptr<RoutingPolicy> MakePrefixPolicy(const PolicyOptions& /*options*/) {
  return std::make_unique<PrefixPolicy>();
}

}  // namespace aisp
