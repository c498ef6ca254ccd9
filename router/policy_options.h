// The list of routing policies, and the parameters of the cost policy. Plain data, for config/ too.
//
// To add a policy: a file router/NAME_policy.cc with its factory, and a line here.
#pragma once

#include <cstdint>
#include <string_view>

namespace aisp {

// Name in settings, factory in namespace aisp: std::unique_ptr<RoutingPolicy> F(const
// PolicyOptions&).
#define AISP_ROUTING_POLICIES(X)           \
  X("cost", MakeCostPolicy)                \
  X("least-loaded", MakeLeastLoadedPolicy) \
  X("round-robin", MakeRoundRobinPolicy)   \
  X("power-of-two", MakePowerOfTwoPolicy)  \
  X("prefix", MakePrefixPolicy)

inline constexpr std::string_view kRoutingPolicies[] = {
#define AISP_POLICY_NAME(name, factory) name,
    AISP_ROUTING_POLICIES(AISP_POLICY_NAME)
#undef AISP_POLICY_NAME
};

// Whether a decode worker pulls a prefix that another worker has cached: never, if that is
// predicted to be faster than computing it, or always.
enum class PrefixPulls : uint8_t { kOff, kAuto, kAlways };
inline constexpr std::string_view kPrefixPulls[] = {"off", "auto", "always"};

struct CostPolicyOptions {
  double handoff_ms = 0.5;  // messages of one remote prefill that do not overlap with other work
  double bytes_per_s_same_host = 5e9;  // until measured
  double bytes_per_s_other_host = 1e9;
  double disturbance_weight = 0.25;  // of 1 ms delay of a stream, relative to the new request's
  double tie_fraction = 0.02;        // scores within this fraction are ties
};

struct PolicyOptions {
  std::string_view name = "cost";
  CostPolicyOptions cost;
};

}  // namespace aisp
