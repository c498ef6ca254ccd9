#include "bench/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "common/random.h"
#include "engine/async_executor.h"

namespace aisp {
namespace {

SequenceRequest RandomPrompt(int32_t tokens, int32_t vocabulary, uint64_t seed) {
  SequenceRequest request;
  SplitMix64 random(seed);
  for (int32_t i = 0; i < tokens; ++i) {
    request.tokens.push_back(static_cast<TokenId>(random.Below(static_cast<uint64_t>(vocabulary))));
  }
  request.prompt_tokens = tokens;
  request.max_new_tokens = 1;
  return request;
}

SequenceRequest RequestOf(const EngineBenchOptions& o, int32_t vocabulary, uint64_t seed) {
  SequenceRequest request = RandomPrompt(o.prompt_tokens, vocabulary, seed);
  request.max_new_tokens = o.output_tokens;
  request.sampling.temperature = o.greedy ? 0.0f : 1.0f;
  request.sampling.seed = seed;
  if (!o.adapters.empty()) request.adapter = o.adapters[seed % o.adapters.size()];
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

// Bytes that a decode step of `batch` sequences of `context` tokens reads.
double BytesOf(const ServingExecutor& executor, int32_t batch, double context) {
  return executor.model().StreamedBytes(batch) +
         batch * context * static_cast<double>(executor.kv_layout().BytesPerToken());
}

DeviceTimes TimesOf(const ServingExecutor& executor) {
  const auto* async = dynamic_cast<const AsyncExecutor*>(&executor);
  return async != nullptr ? async->times() : DeviceTimes{};
}

// The executor's largest steps, and no prefix hits.
EngineOptions PlainOptions(const ServingExecutor& executor, int32_t sequences) {
  EngineOptions options;
  options.limits.max_sequences = sequences;
  options.limits.max_batch_tokens = executor.max_batch_tokens();
  options.limits.max_prefill_chunk = executor.max_batch_tokens();
  options.limits.watermark_blocks = 0;
  options.enable_prefix_cache = false;
  options.max_sequences_total = sequences;
  return options;
}

// Times of full decode steps.
struct DecodeSteps {
  std::vector<double> ms;
  double contexts = 0;  // mean context of a row, summed over the steps
  DeviceTimes begin, end;
};

// Sets the fields of *result from `batch` on.
void FillDecode(const EngineBenchOptions& o, const ServingExecutor& executor, DecodeSteps steps,
                EngineBenchResult* result) {
  const double context = steps.contexts / static_cast<double>(steps.ms.size());
  steps.ms.erase(steps.ms.begin(), steps.ms.begin() + 3);
  result->step_ms = Median(steps.ms);
  result->output_tokens_per_s = result->batch * 1e3 / result->step_ms;
  const auto count = static_cast<double>(steps.end.steps - steps.begin.steps);
  const double busy = steps.end.busy_ms - steps.begin.busy_ms;
  const double idle = steps.end.idle_ms - steps.begin.idle_ms;
  if (count > 0 && busy > 0) {
    result->device_ms = busy / count;
    result->idle_percent = 100 * idle / (busy + idle);
  }
  result->bytes = BytesOf(executor, result->batch, context);
  if (const auto* async = dynamic_cast<const AsyncExecutor*>(&executor))
    result->operations = async->GraphOperations(result->batch);
  if (o.read_bytes_per_s > 0) {
    result->roofline_ms = 1e3 * (result->bytes / o.read_bytes_per_s +
                                 static_cast<double>(result->operations) * o.kernel_s);
    result->roofline_percent = 100 * result->roofline_ms / result->step_ms;
  }
}

Result<EngineBenchResult> BenchBatch(const EngineBenchOptions& o, ServingExecutor& executor,
                                     int32_t batch, uint64_t seed) {
  const SteadyClock clock;
  Engine engine(PlainOptions(executor, batch), &executor, &clock, nullptr);
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

  DecodeSteps steps;
  Instant last = prefilled;
  while (open > 0) {
    AISP_ASSIGN_OR_RETURN(const CollectOutput out, Turn(engine));
    take(out);
    const Instant now = clock.Now();
    // Only full decode steps; the first two overlap with steps launched before them.
    const bool full = out.timing.decode_rows == batch && out.timing.prefill_tokens == 0;
    if (full) {
      if (steps.ms.size() == 2) steps.begin = TimesOf(executor);
      steps.ms.push_back(ToMs(now - last));
      steps.contexts += static_cast<double>(out.timing.decode_context) / batch;
      steps.end = TimesOf(executor);
    }
    last = now;
  }
  if (steps.ms.size() < 8)
    return InvalidArgument("too few decode steps to measure; give a greater --osl");
  FillDecode(o, executor, std::move(steps), &result);
  return result;
}

// A closed loop on one engine.
class ClosedLoop {
 public:
  ClosedLoop(const EngineBenchOptions& o, ServingExecutor& executor, int32_t streams, uint64_t seed)
      : options_(o),
        executor_(executor),
        streams_(streams),
        seed_(seed),
        engine_(EngineFor(o, streams), &executor, &clock_, nullptr) {}

  Result<ClosedLoopResult> Run() {
    const int32_t requests = streams_ * options_.rounds;
    const DeviceTimes device_begin = TimesOf(executor_);
    const Instant begin = clock_.Now();
    for (int32_t i = 0; i < streams_; ++i) AISP_RETURN_IF_ERROR(AddNext());
    int32_t ended = 0;
    while (ended < requests) {
      AISP_ASSIGN_OR_RETURN(const CollectOutput out, TimedTurn());
      for (const TokenOutput& token : out.tokens) {
        if (token.token >= 0) ++tokens_;
        if (token.finish == FinishReason::kNone) continue;
        ++ended;
        const SequenceTimes times = engine_.Times(token.sequence);
        ttft_ms_ += ToMs(times.first_token - times.added);
        if (added_ < requests) AISP_RETURN_IF_ERROR(AddNext());
      }
    }
    return ResultOf(ToSeconds(clock_.Now() - begin), requests, device_begin);
  }

 private:
  static EngineOptions EngineFor(const EngineBenchOptions& o, int32_t streams) {
    EngineOptions options = o.serving;
    options.limits.max_sequences = streams;
    options.max_sequences_total = std::max(options.max_sequences_total, streams);
    return options;
  }

  Status AddNext() {
    const auto seed = seed_ + static_cast<uint64_t>(added_++);
    AISP_RETURN_IF_ERROR(
        engine_.Add(RequestOf(options_, executor_.model().spec().vocabulary, seed)));
    return {};
  }

  Result<CollectOutput> TimedTurn() {
    while (engine_.CanLaunch()) {
      const Instant begin = clock_.Now();
      AISP_RETURN_IF_ERROR(engine_.Launch());
      launch_us_ += 1e3 * ToMs(clock_.Now() - begin);
    }
    AISP_ASSIGN_OR_RETURN(CollectOutput out, Turn(engine_));
    if (out.timing.step > 0) {
      ++steps_;
      Note(out.timing, out.timing.prefill_tokens > 0 ? &mixed_ : &decoding_);
      overhead_us_ += 1e3 * ToMs(out.timing.overhead);
    }
    return out;
  }

  static void Note(const StepTiming& timing, StepKind* kind) {
    ++kind->steps;
    kind->device_s += ToSeconds(timing.device);
    kind->decode_rows += timing.decode_rows;
    kind->prompt_tokens += timing.prefill_tokens;
  }

  ClosedLoopResult ResultOf(double seconds, int32_t requests, const DeviceTimes& begin) const {
    const auto steps = static_cast<double>(std::max<uint64_t>(steps_, 1));
    ClosedLoopResult r;
    r.streams = streams_;
    r.requests = requests;
    r.seconds = seconds;
    r.output_tokens_per_s = static_cast<double>(tokens_) / seconds;
    r.ttft_ms = ttft_ms_ / requests;
    r.steps = steps_;
    r.mixed_percent = 100 * static_cast<double>(mixed_.steps) / steps;
    r.decoding = decoding_;
    r.mixed = mixed_;
    r.step_ms = 1e3 * seconds / steps;
    r.overhead_us = overhead_us_ / steps;
    // Both times include planning.
    r.launch_us = launch_us_ / steps;
    const DeviceTimes end = TimesOf(executor_);
    const double busy = end.busy_ms - begin.busy_ms, idle = end.idle_ms - begin.idle_ms;
    if (busy > 0) r.idle_percent = 100 * idle / (busy + idle);
    return r;
  }

  const EngineBenchOptions& options_;
  ServingExecutor& executor_;
  const int32_t streams_;
  const uint64_t seed_;
  const SteadyClock clock_;
  Engine engine_;
  int32_t added_ = 0;
  uint64_t tokens_ = 0, steps_ = 0;
  StepKind decoding_, mixed_;
  double ttft_ms_ = 0, launch_us_ = 0, overhead_us_ = 0;
};

std::string ToJson(const StepKind& k) {
  return fmt::format(
      "{{\"steps\": {}, \"device_s\": {:.3f}, \"decode_rows\": {}, \"prompt_tokens\": {}}}",
      k.steps, k.device_s, k.decode_rows, k.prompt_tokens);
}

std::string ToJson(const ClosedLoopResult& r) {
  return fmt::format(
      ", \"closed_loop\": {{\"streams\": {}, \"requests\": {}, \"seconds\": {:.3f}, "
      "\"output_tokens_per_s\": {:.1f}, \"mean_ttft_ms\": {:.1f}, \"steps\": {}, "
      "\"mixed_steps_percent\": {:.1f}, \"mean_step_ms\": {:.4f}, \"overhead_us\": {:.1f}, "
      "\"launch_us\": {:.1f}, \"idle_percent\": {:.2f}, \"decode_steps\": {}, "
      "\"mixed_steps\": {}}}",
      r.streams, r.requests, r.seconds, r.output_tokens_per_s, r.ttft_ms, r.steps, r.mixed_percent,
      r.step_ms, r.overhead_us, r.launch_us, r.idle_percent, ToJson(r.decoding), ToJson(r.mixed));
}

struct PromptTime {
  double ms = 0, device_ms = 0;
};

// One prompt on an otherwise idle engine.
Result<PromptTime> TimePrompt(Engine& engine, SequenceRequest request,
                              const ServingExecutor& executor) {
  const SteadyClock clock;
  const double busy_ms = TimesOf(executor).busy_ms;
  const Instant begin = clock.Now();
  AISP_RETURN_IF_ERROR(engine.Add(std::move(request)));
  for (bool ended = false; !ended;) {
    AISP_ASSIGN_OR_RETURN(const CollectOutput out, Turn(engine));
    ended = !out.tokens.empty();
  }
  return PromptTime{ToMs(clock.Now() - begin), TimesOf(executor).busy_ms - busy_ms};
}

}  // namespace

Result<PromptTimes> BenchPrompts(const PromptBenchOptions& options, ServingExecutor& executor) {
  if (options.count < 2)
    return InvalidArgument("prompts are timed from two on: the first is told apart");
  const SteadyClock clock;
  Engine engine(PlainOptions(executor, 1), &executor, &clock, nullptr);
  const int32_t vocabulary = executor.model().spec().vocabulary;
  PromptTimes times;
  times.tokens = options.tokens;
  times.count = options.count;
  std::vector<double> rested, device, back_to_back;
  for (int32_t i = 0; i < 2 * options.count; ++i) {
    SequenceRequest request =
        RandomPrompt(options.tokens, vocabulary, options.seed + static_cast<uint64_t>(i));
    request.adapter = options.adapter;
    const bool rests = i < options.count;
    if (rests && i > 0) std::this_thread::sleep_for(options.rest);
    AISP_ASSIGN_OR_RETURN(const PromptTime time, TimePrompt(engine, std::move(request), executor));
    if (i == 0) {
      times.first_ms = time.ms;
    } else if (rests) {
      rested.push_back(time.ms);
      device.push_back(time.device_ms);
    } else {
      back_to_back.push_back(time.ms);
    }
  }
  times.rested_ms = Median(rested);
  times.device_ms = Median(device);
  times.back_to_back_ms = Median(back_to_back);
  return times;
}

Result<std::vector<EngineBenchResult>> BenchEngine(const EngineBenchOptions& options,
                                                   ServingExecutor& executor) {
  std::vector<EngineBenchResult> results;
  for (int32_t batch : options.batches) {
    AISP_ASSIGN_OR_RETURN(EngineBenchResult result,
                          BenchBatch(options, executor, batch, 1000 * results.size() + 1));
    if (options.rounds > 0) {
      const uint64_t seed = 1000000 * (results.size() + 1);
      AISP_ASSIGN_OR_RETURN(result.closed_loop, ClosedLoop(options, executor, batch, seed).Run());
    }
    results.push_back(result);
  }
  return results;
}

std::string ToJson(const PromptTimes& t) {
  return fmt::format(
      "{{\"tokens\": {}, \"count\": {}, \"first_ms\": {:.3f}, \"rested_ms\": {:.3f}, "
      "\"back_to_back_ms\": {:.3f}, \"device_ms\": {:.3f}}}",
      t.tokens, t.count, t.first_ms, t.rested_ms, t.back_to_back_ms, t.device_ms);
}

std::string ToJson(const EngineBenchResult& r) {
  return fmt::format(
      "{{\"batch\": {}, \"prefill_s\": {:.5f}, \"prompt_tokens_per_s\": {:.0f}, "
      "\"step_ms\": {:.4f}, \"output_tokens_per_s\": {:.1f}, \"device_ms\": {:.4f}, "
      "\"idle_percent\": {:.2f}, \"bytes\": {:.0f}, \"operations\": {}, "
      "\"roofline_ms\": {:.4f}, \"roofline_percent\": {:.1f}{}}}",
      r.batch, r.prefill_s, r.prompt_tokens_per_s, r.step_ms, r.output_tokens_per_s, r.device_ms,
      r.idle_percent, r.bytes, r.operations, r.roofline_ms, r.roofline_percent,
      r.closed_loop ? ToJson(*r.closed_loop) : "");
}

}  // namespace aisp
