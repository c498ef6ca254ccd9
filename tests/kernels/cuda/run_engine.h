// Runs an engine over an executor until all requests have ended: the loop of tests that compare
// devices.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "common/check.h"
#include "engine/engine.h"

namespace aisp {

// `on_token`: the events of requests[i], in order; an error fails the test. `on_step`: called after
// each step's tokens; may be empty.
inline void RunEngine(Executor& executor, const EngineOptions& options,
                      std::vector<SequenceRequest> requests,
                      const std::function<void(size_t i, TokenOutput& output)>& on_token,
                      const std::function<void(const CollectOutput& step)>& on_step = {}) {
  const SteadyClock clock;
  Engine engine(options, &executor, &clock, nullptr);
  std::map<SequenceId, size_t> ids;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto id = engine.Add(std::move(requests[i]));
    AISP_CHECK_MSG(id.has_value(), id.error().message);
    ids[*id] = i;
  }
  while (engine.CanLaunch() || engine.InFlight()) {
    while (engine.CanLaunch()) {
      const Status launched = engine.Launch();
      AISP_CHECK_MSG(launched.has_value(), launched.error().message);
    }
    CollectOutput step = engine.Collect();
    for (TokenOutput& output : step.tokens) {
      EXPECT_NE(output.finish, FinishReason::kError) << output.error.message;
      on_token(ids.at(output.sequence), output);
    }
    if (on_step) on_step(step);
    engine.CheckInvariants();
  }
}

}  // namespace aisp
