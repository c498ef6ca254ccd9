// The long run of the exhaustive explorer: `ninja kv-model`. Prints what it looked at; 1 on a
// violation.
#include <cstdio>

#include "tests/kvcache/model/handoff_model.h"

int main() {
  int worst = 0;
  struct Run {
    const char* what;
    int requests, blocks;
    uint64_t most;
  };
  for (const Run& run :
       {Run{"1 request, 1 block", 1, 1, 2'000'000}, Run{"2 requests, 1 block", 2, 1, 300'000},
        Run{"2 requests, 2 blocks", 2, 2, 300'000}}) {
    aisp::HandoffConfig config;
    config.requests = run.requests;
    config.blocks = run.blocks;
    const aisp::Exploration e = aisp::Explore(config, run.most);
    std::printf("%s: %lu states, %lu transitions, %d deep, %s; violations: %s\n", run.what,
                e.states, e.transitions, e.depth, e.complete ? "complete" : "cut at the bound",
                e.violation.empty() ? "none" : e.violation.c_str());
    for (const std::string& step : e.path) std::printf("  %s\n", step.c_str());
    worst |= e.violation.empty() ? 0 : 1;
  }
  return worst;
}
