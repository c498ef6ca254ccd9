// Cost of the engine per step, without model and sampler: planning, reserving, building the batch,
// accepting tokens, publishing blocks. The executor computes nothing; its own time is measured and
// subtracted.
#include <algorithm>
#include <string>
#include <vector>

#include "bench/programs/report.h"
#include "common/check.h"
#include "common/clock.h"
#include "engine/engine.h"

namespace aisp {
namespace {

// Draws token 1 for every row.
class NullExecutor final : public Executor {
 public:
  NullExecutor(int32_t num_blocks, int depth) : depth_(depth) {
    layout_ = {.num_layers = 1, .num_kv_heads = 1, .head_dim = 1, .num_blocks = num_blocks};
  }
  int max_depth() const override { return depth_; }
  const KvLayout& kv_layout() const override { return layout_; }
  int32_t max_context() const override { return 131072; }
  int32_t max_batch_tokens() const override { return 8192; }
  int32_t max_slots() const override { return 512; }
  int32_t vocabulary() const override { return INT32_MAX; }
  Result<Ticket> Launch(const StepInput& input) override {
    samples_[input.step % 4] = input.samples.size();
    return Ticket(input.step);
  }
  Result<StepResult> Collect(Ticket ticket) override {
    const Instant begin = clock_.Now();
    StepResult result;
    result.tokens.resize(samples_[ticket.value % 4]);
    for (SampledToken& t : result.tokens) t.token = 1;
    spent_ = spent_ + (clock_.Now() - begin);
    return result;
  }
  Duration spent() const { return spent_; }

 private:
  const int depth_;
  KvLayout layout_;
  size_t samples_[4] = {};
  SteadyClock clock_;
  Duration spent_{};
};

struct Case {
  std::string name;
  int32_t running = 32;
  int32_t context = 1024;
  int32_t waiting = 0;  // more sequences than slots
  int depth = 1;
  BenchTarget target_us;
};

std::vector<TokenId> Prompt(int32_t tokens, int32_t which) {
  std::vector<TokenId> prompt(static_cast<size_t>(tokens));
  for (size_t i = 0; i < prompt.size(); ++i)
    prompt[i] = static_cast<TokenId>((i * 7919 + static_cast<size_t>(which) * 104729) % 50000);
  return prompt;
}

void Turn(Engine& engine) {
  while (engine.CanLaunch()) AISP_CHECK(engine.Launch().has_value());
  AISP_CHECK(engine.InFlight());
  const CollectOutput out = engine.Collect();
  AISP_CHECK(out.tokens.empty() || out.tokens.front().token == 1);
}

// Median over rounds of the mean time of a decode step, in microseconds.
void Measure(const Case& c) {
  constexpr int kRounds = 15;
  constexpr int kSteps = 200;
  const int32_t tokens = c.context + (kRounds + 1) * kSteps + 64;
  NullExecutor executor(c.running * (tokens / 16 + 1) + 64, c.depth);
  SteadyClock clock;
  EngineOptions options;
  options.limits.max_sequences = c.running;
  options.limits.max_batch_tokens = 8192;
  options.limits.max_prefill_chunk = 8192;
  options.max_sequences_total = c.running + c.waiting;
  Engine engine(options, &executor, &clock, nullptr);
  for (int32_t i = 0; i < c.running + c.waiting; ++i) {
    SequenceRequest request;
    request.tokens = Prompt(c.context, i);
    request.prompt_tokens = c.context;
    request.max_new_tokens = 100000;
    request.stop_token_ids = {2};
    AISP_CHECK(engine.Add(std::move(request)).has_value());
  }
  while (engine.NumRunning() < c.running) Turn(engine);
  for (int i = 0; i < kSteps; ++i) Turn(engine);

  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    const Duration executor_before = executor.spent();
    const Instant begin = clock.Now();
    for (int i = 0; i < kSteps; ++i) Turn(engine);
    const Duration spent = (clock.Now() - begin) - (executor.spent() - executor_before);
    rounds.push_back(ToMs(spent) * 1e3 / kSteps);
    uint64_t first_event = 0;
    engine.blocks().TakeEvents(&first_event);
  }
  std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
  ReportBench(c.name, rounds[kRounds / 2], "us/step", c.target_us);
}

}  // namespace
}  // namespace aisp

int main() {
  using aisp::Measure;
  Measure({.name = "engine_step_overhead_batch1", .running = 1, .target_us = {}});
  Measure({.name = "engine_step_overhead_batch32", .target_us = aisp::AtMost(50)});
  Measure(
      {.name = "engine_step_overhead_batch32_depth2", .depth = 2, .target_us = aisp::AtMost(50)});
  Measure({.name = "engine_step_overhead_batch32_context8192", .context = 8192, .target_us = {}});
  Measure({.name = "engine_step_overhead_batch32_waiting900",
           .waiting = 900,
           .target_us = aisp::AtMost(50)});
  Measure({.name = "engine_step_overhead_batch256", .running = 256, .target_us = {}});
  return 0;
}
