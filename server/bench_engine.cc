#include "server/bench_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "common/random.h"
#include "engine/async_executor.h"

namespace aisp {
namespace {

SequenceRequest RequestOf(const EngineBenchOptions& o, int32_t vocabulary, uint64_t seed) {
  SequenceRequest request;
  SplitMix64 random(seed);
  for (int32_t i = 0; i < o.prompt_tokens; ++i) {
    request.tokens.push_back(static_cast<TokenId>(random.Below(static_cast<uint64_t>(vocabulary))));
  }
  request.prompt_tokens = o.prompt_tokens;
  request.max_new_tokens = o.output_tokens;
  request.sampling.temperature = o.greedy ? 0.0f : 1.0f;
  request.sampling.seed = seed;
  return request;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Result<CollectOutput> Turn(Engine& engine) {
  while (engine.CanLaunch()) AISP_RETURN_IF_ERROR(engine.Launch());
  if (!engine.InFlight()) return Internal("the engine has nothing to do, but work is left");
  CollectOutput out = engine.Collect();
  for (const TokenOutput& token : out.tokens) {
    if (token.finish == FinishReason::kError) return tl::unexpected(token.error);
  }
  return out;
}

// What a decode step of `batch` sequences of `context` tokens has to read.
double BytesOf(const ServingExecutor& executor, int32_t batch, double context) {
  return executor.model().StreamedBytes(batch) +
         batch * context * static_cast<double>(executor.kv_layout().BytesPerToken());
}

DeviceTimes TimesOf(const ServingExecutor& executor) {
  const auto* async = dynamic_cast<const AsyncExecutor*>(&executor);
  return async != nullptr ? async->times() : DeviceTimes{};
}

Result<EngineBenchResult> BenchBatch(const EngineBenchOptions& o, ServingExecutor& executor,
                                     int32_t batch, uint64_t seed) {
  const SteadyClock clock;
  EngineOptions options;
  options.limits.max_sequences = batch;
  options.limits.max_batch_tokens = executor.max_batch_tokens();
  options.limits.max_prefill_chunk = executor.max_batch_tokens();
  options.limits.watermark_blocks = 0;
  options.enable_prefix_cache = false;
  options.max_sequences_total = batch;
  Engine engine(options, &executor, &clock, nullptr);
  for (int32_t i = 0; i < batch; ++i) {
    AISP_RETURN_IF_ERROR(engine.Add(
        RequestOf(o, executor.model().spec().vocabulary, seed + static_cast<uint64_t>(i))));
  }
  EngineBenchResult result;
  result.batch = batch;
  const Instant begin = clock.Now();
  std::set<SequenceId> started;
  int32_t open = batch;
  const auto take = [&](const CollectOutput& out) {
    for (const TokenOutput& token : out.tokens) {
      started.insert(token.sequence);
      if (token.finish != FinishReason::kNone) --open;
    }
  };
  while (static_cast<int32_t>(started.size()) < batch) {
    AISP_ASSIGN_OR_RETURN(const CollectOutput out, Turn(engine));
    take(out);
  }
  const Instant prefilled = clock.Now();
  result.prefill_s = ToSeconds(prefilled - begin);
  result.prompt_tokens_per_s = batch * static_cast<double>(o.prompt_tokens) / result.prefill_s;

  std::vector<double> steps_ms;
  double contexts = 0;
  Instant last = prefilled;
  DeviceTimes device_begin, device_end;
  while (open > 0) {
    AISP_ASSIGN_OR_RETURN(const CollectOutput out, Turn(engine));
    take(out);
    const Instant now = clock.Now();
    // Full decode steps alone; the first two overlap with what was launched before them.
    const bool full = out.timing.decode_rows == batch && out.timing.prefill_tokens == 0;
    if (full) {
      if (steps_ms.size() == 2) device_begin = TimesOf(executor);
      steps_ms.push_back(ToMs(now - last));
      contexts += static_cast<double>(out.timing.context_tokens) / batch;
      device_end = TimesOf(executor);
    }
    last = now;
  }
  if (steps_ms.size() < 8)
    return InvalidArgument("too few decode steps to measure; give a greater --osl");
  const double context = contexts / static_cast<double>(steps_ms.size());
  steps_ms.erase(steps_ms.begin(), steps_ms.begin() + 3);
  result.step_ms = Median(steps_ms);
  result.output_tokens_per_s = batch * 1e3 / result.step_ms;
  const auto steps = static_cast<double>(device_end.steps - device_begin.steps);
  const double busy = device_end.busy_ms - device_begin.busy_ms;
  const double idle = device_end.idle_ms - device_begin.idle_ms;
  if (steps > 0 && busy > 0) {
    result.device_ms = busy / steps;
    result.idle_percent = 100 * idle / (busy + idle);
  }
  result.bytes = BytesOf(executor, batch, context);
  if (const auto* async = dynamic_cast<const AsyncExecutor*>(&executor))
    result.operations = async->GraphOperations(batch);
  if (o.read_bytes_per_s > 0) {
    result.roofline_ms = 1e3 * (result.bytes / o.read_bytes_per_s +
                                static_cast<double>(result.operations) * o.kernel_s);
    result.roofline_percent = 100 * result.roofline_ms / result.step_ms;
  }
  return result;
}

}  // namespace

Result<std::vector<EngineBenchResult>> BenchEngine(const EngineBenchOptions& options,
                                                   ServingExecutor& executor) {
  std::vector<EngineBenchResult> results;
  for (int32_t batch : options.batches) {
    AISP_ASSIGN_OR_RETURN(EngineBenchResult result,
                          BenchBatch(options, executor, batch, 1000 * results.size() + 1));
    results.push_back(result);
  }
  return results;
}

std::string ToJson(const EngineBenchResult& r) {
  return fmt::format(
      "{{\"batch\": {}, \"prefill_s\": {:.5f}, \"prompt_tokens_per_s\": {:.0f}, "
      "\"step_ms\": {:.4f}, \"output_tokens_per_s\": {:.1f}, \"device_ms\": {:.4f}, "
      "\"idle_percent\": {:.2f}, \"bytes\": {:.0f}, \"operations\": {}, "
      "\"roofline_ms\": {:.4f}, \"roofline_percent\": {:.1f}}}",
      r.batch, r.prefill_s, r.prompt_tokens_per_s, r.step_ms, r.output_tokens_per_s, r.device_ms,
      r.idle_percent, r.bytes, r.operations, r.roofline_ms, r.roofline_percent);
}

}  // namespace aisp
