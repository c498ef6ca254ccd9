// The long run of the exhaustive explorer: `ninja kv-model`. Prints what was explored; exits with 1
// on a violation.
#include <cstdio>

#include "tests/kvcache/model/handoff_model.h"
#include "tests/kvcache/model/pull_model.h"

int main() {
  int worst = 0;
  struct Run {
    const char* what;
    int requests, blocks;
    uint64_t most;
    bool converts = false;
  };
  for (const Run& run :
       {Run{"1 request, 1 block", 1, 1, 2'000'000}, Run{"2 requests, 1 block", 2, 1, 300'000},
        Run{"2 requests, 2 blocks", 2, 2, 300'000},
        Run{"1 request, 1 block, converted", 1, 1, 500'000, true},
        Run{"2 requests, 2 blocks, converted", 2, 2, 300'000, true}}) {
    aisp::HandoffConfig config;
    config.requests = run.requests;
    config.blocks = run.blocks;
    config.converts = run.converts;
    if (run.converts) config.tiers = false;
    const aisp::Exploration e = aisp::Explore(config, run.most);
    std::printf("%s: %lu states, %lu transitions, %d deep, %s; violations: %s\n", run.what,
                e.states, e.transitions, e.depth, e.complete ? "complete" : "cut at the bound",
                e.violation.empty() ? "none" : e.violation.c_str());
    for (const std::string& step : e.path) std::printf("  %s\n", step.c_str());
    worst |= e.violation.empty() ? 0 : 1;
  }
  struct PullRun {
    const char* what;
    aisp::PullConfig config;
  };
  const PullRun pulls[] = {{"2 pullers, each twice", {.pulls = 2, .evictions = 2}},
                           {"2 pullers of 2 blocks", {.prefix_blocks = 2, .evictions = 2}},
                           {"2 pullers, the holder and one of them die, links break",
                            {.link_breaks = 1, .holder_ends = 1, .puller_ends = 1}},
                           {"3 pullers", {.pullers = 3, .computes = 0}}};
  for (PullRun run : pulls) {
    for (const bool owner_copies : {false, true}) {
      run.config.owner_copies = owner_copies;
      const aisp::Exploration e = aisp::Explore(run.config, 500'000);
      std::printf("%s%s: %lu states, %lu transitions, %d deep, %s; violations: %s\n", run.what,
                  owner_copies ? ", their side copies" : "", e.states, e.transitions, e.depth,
                  e.complete ? "complete" : "cut at the bound",
                  e.violation.empty() ? "none" : e.violation.c_str());
      for (const std::string& step : e.path) std::printf("  %s\n", step.c_str());
      worst |= e.violation.empty() ? 0 : 1;
    }
  }
  return worst;
}
