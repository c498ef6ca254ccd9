#include "server/bench_speculation.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>

#include "common/clock.h"
#include "common/random.h"
#include "engine/engine.h"
#include "speculation/speculator.h"

namespace aisp {
namespace {

constexpr TokenId kDrawn = 11;  // what every draw is biased to
constexpr TokenId kWrong = 12;

class ImposedProposer final : public Proposer {
 public:
  explicit ImposedProposer(std::vector<double> acceptance) : acceptance_(std::move(acceptance)) {}
  std::string_view name() const override { return "imposed"; }
  Status Propose(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) override {
    for (size_t i = 0; i < contexts.size(); ++i) {
      for (int32_t at = 0; at < contexts[i].limit; ++at) {
        const double p = acceptance_[std::min(static_cast<size_t>(at), acceptance_.size() - 1)];
        drafts[i].Add(random_.Uniform() < p ? kDrawn : kWrong, static_cast<float>(p));
      }
    }
    return {};
  }
  void Ended(const DraftContext&) override {}

 private:
  const std::vector<double> acceptance_;
  SplitMix64 random_{1};
};

EngineOptions OptionsFor(const ServingExecutor& executor, int32_t batch) {
  EngineOptions options;
  options.limits.max_sequences = batch;
  options.limits.max_batch_tokens = executor.max_batch_tokens();
  options.limits.max_prefill_chunk = executor.max_batch_tokens();
  options.limits.watermark_blocks = 0;
  options.limits.max_draft_rows = executor.max_draws() - executor.max_slots();
  options.enable_prefix_cache = false;
  options.max_sequences_total = batch;
  return options;
}

SequenceRequest RequestOf(const SpeculationBenchOptions& o, int32_t vocabulary, uint64_t seed) {
  SequenceRequest request;
  SplitMix64 random(seed);
  for (int32_t i = 0; i < o.prompt_tokens; ++i)
    request.tokens.push_back(static_cast<TokenId>(random.Below(static_cast<uint64_t>(vocabulary))));
  request.prompt_tokens = o.prompt_tokens;
  request.max_new_tokens = o.output_tokens;
  request.sampling.temperature = 0;
  request.sampling.logit_bias = {{kDrawn, 1e4f}};
  return request;
}

struct Measured {
  double per_s = 0, step_ms = 0, tokens_per_step = 1;
};

// From when every sequence has begun to decode until the first one ends.
Result<Measured> Measure(const SpeculationBenchOptions& o, ServingExecutor& executor, int32_t batch,
                         std::shared_ptr<Speculator> speculator) {
  const SteadyClock clock;
  EngineOptions options = OptionsFor(executor, batch);
  options.speculator = std::move(speculator);
  Engine engine(options, &executor, &clock, nullptr);
  const int32_t vocabulary = executor.model().spec().vocabulary;
  std::vector<SequenceId> ids(static_cast<size_t>(batch));
  for (size_t i = 0; i < ids.size(); ++i) {
    AISP_ASSIGN_OR_RETURN(ids[i], engine.Add(RequestOf(o, vocabulary, 100 + i)));
  }
  std::set<SequenceId> started;
  Instant begin = kNever, end{};
  int64_t tokens = 0, steps = 0, accepted = 0, verified = 0;
  bool ended = false;
  while (!ended) {
    while (engine.CanLaunch()) AISP_RETURN_IF_ERROR(engine.Launch());
    if (!engine.InFlight()) return Internal("the engine has nothing to do, but work is left");
    const CollectOutput out = engine.Collect();
    for (const TokenOutput& token : out.tokens) {
      if (token.finish == FinishReason::kError) return tl::unexpected(token.error);
      ended |= token.finish != FinishReason::kNone;
      started.insert(token.sequence);
    }
    end = clock.Now();
    if (begin != kNever) {
      tokens += static_cast<int64_t>(out.tokens.size());
      ++steps;
      for (const VerifiedDraft& draft : out.drafts) accepted += draft.accepted, ++verified;
    } else if (static_cast<int32_t>(started.size()) == batch && out.timing.prefill_tokens == 0) {
      begin = end;
    }
  }
  // What is in flight belongs to this engine, and the executor to the next one too.
  for (const SequenceId id : ids) engine.Cancel(id);
  while (engine.InFlight()) static_cast<void>(engine.Collect());
  if (steps < 8) return InvalidArgument("too few decode steps to measure; give a greater --osl");
  Measured m;
  m.per_s = static_cast<double>(tokens) / ToSeconds(end - begin);
  m.step_ms = ToMs(end - begin) / static_cast<double>(steps);
  if (verified > 0)
    m.tokens_per_step = 1 + static_cast<double>(accepted) / static_cast<double>(verified);
  return m;
}

}  // namespace

Result<std::vector<SpeculationBenchRow>> BenchSpeculation(const SpeculationBenchOptions& options,
                                                          ServingExecutor& executor) {
  for (const double p : options.acceptance) {
    if (!(p >= 0 && p <= 1))
      return InvalidArgument(fmt::format("an acceptance of {}; probabilities are in [0, 1]", p));
  }
  if (options.acceptance.empty()) return InvalidArgument("no acceptance is given");
  const SteadyClock clock;
  std::vector<SpeculationBenchRow> rows;
  for (const int32_t batch : options.batches) {
    AISP_ASSIGN_OR_RETURN(const Measured plain, Measure(options, executor, batch, nullptr));
    for (const int32_t length : options.lengths) {
      for (const bool adaptive : {false, true}) {
        const SpeculatorOptions with{.num_tokens = length, .adaptive = adaptive};
        AISP_ASSIGN_OR_RETURN(
            const Measured m,
            Measure(options, executor, batch,
                    std::make_shared<Speculator>(
                        with, std::make_unique<ImposedProposer>(options.acceptance), &clock)));
        rows.push_back({batch, length, adaptive, plain.per_s, m.per_s, m.per_s / plain.per_s,
                        m.tokens_per_step, m.step_ms, plain.step_ms});
      }
    }
  }
  return rows;
}

std::string ToTable(const std::vector<SpeculationBenchRow>& rows) {
  std::string out = fmt::format("{:>6} {:>4} {:>7} {:>12} {:>12} {:>8} {:>12} {:>9} {:>9}\n",
                                "batch", "k", "length", "plain tok/s", "with tok/s", "speed-up",
                                "tokens/step", "plain ms", "step ms");
  for (const SpeculationBenchRow& r : rows) {
    out +=
        fmt::format("{:>6} {:>4} {:>7} {:>12.1f} {:>12.1f} {:>8.3f} {:>12.2f} {:>9.3f} {:>9.3f}\n",
                    r.batch, r.length, r.adaptive ? "chosen" : "all", r.plain_per_s, r.per_s,
                    r.speedup, r.tokens_per_step, r.plain_step_ms, r.step_ms);
  }
  return out;
}

std::string ToJson(const std::vector<SpeculationBenchRow>& rows) {
  std::string out = "[";
  for (const SpeculationBenchRow& r : rows) {
    out += fmt::format(
        "{}{{\"batch\": {}, \"length\": {}, \"adaptive\": {}, \"plain_tokens_per_s\": {:.1f}, "
        "\"tokens_per_s\": {:.1f}, \"speedup\": {:.4f}, \"tokens_per_step\": {:.3f}, "
        "\"plain_step_ms\": {:.4f}, \"step_ms\": {:.4f}}}",
        out.size() > 1 ? ", " : "", r.batch, r.length, r.adaptive, r.plain_per_s, r.per_s,
        r.speedup, r.tokens_per_step, r.plain_step_ms, r.step_ms);
  }
  return out + "]";
}

}  // namespace aisp
