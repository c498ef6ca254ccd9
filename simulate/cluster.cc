#include "simulate/cluster.h"

#include <fmt/format.h>

#include <algorithm>

#include "simulate/simulation.h"

namespace aisp::simulate {
Result<Outcome> Run(const ClusterOptions& options, const std::vector<loadgen::WorkItem>& items,
                    const std::vector<double>& at_s, const Objective& limits, double hopeless) {
  int64_t most = 0;
  for (const Fleet& fleet : options.fleets)
    most = std::max(most, fleet.profile.blocks * fleet.profile.block_tokens);
  for (const loadgen::WorkItem& item : items) {
    if (!item.made_up())
      return InvalidArgument("texts cannot be simulated: use a trace or a made-up dataset");
    if (item.input_tokens + item.output_tokens + 1 < most) continue;
    return InvalidArgument(
        fmt::format("a prompt of {} tokens with an answer of {} does not fit into a KV pool of {} "
                    "tokens; use a "
                    "profile with more blocks or --length-scale below 1",
                    item.input_tokens, item.output_tokens, most));
  }
  if (!at_s.empty() && !(at_s.back() <= kLongestArrivalsS)) {
    return InvalidArgument(
        fmt::format("the last request comes after {:.4g} s; at most {:.0f} s (a week) of arrivals "
                    "can be simulated: a higher --request-rate or fewer requests fit",
                    at_s.back(), kLongestArrivalsS));
  }
  return Simulation(options, items, at_s, limits, hopeless).Play();
}

}  // namespace aisp::simulate
