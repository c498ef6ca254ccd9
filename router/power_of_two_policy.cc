// Draws two workers at random and takes the less loaded one (Mitzenmacher, "The Power of Two
// Choices in Randomized Load Balancing", 2001). Nearly as even as comparing all, and routers with
// the same view do not all pick one worker.
#include "router/policy.h"

namespace aisp {
namespace {

class PowerOfTwoPolicy final : public OrderPolicy {
 public:
  PowerOfTwoPolicy() : OrderPolicy("power-of-two") {}

 protected:
  double Order(const RequestSummary& request, const WorkerView& worker, size_t index,
               size_t count) const override {
    // The two roles draw from different bits.
    const uint64_t draw = worker.prefill ? request.tie_break >> 32 : request.tie_break & 0xFFFFFFFF;
    const size_t first = draw % count;
    const size_t second = count > 1 ? (first + 1 + draw / count % (count - 1)) % count : first;
    const double load = worker.prefill ? static_cast<double>(worker.queued_prefill.tokens)
                                       : static_cast<double>(worker.rows) / worker.max_rows;
    // Others only if neither of the two is available.
    constexpr double kLast = 1e18;
    return index == first || index == second ? load : kLast;
  }
};

}  // namespace

std::unique_ptr<RoutingPolicy> MakePowerOfTwoPolicy(const PolicyOptions& /*options*/) {
  return std::make_unique<PowerOfTwoPolicy>();
}

}  // namespace aisp
