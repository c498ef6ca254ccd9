#include "bench/speculation.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "common/clock.h"
#include "common/random.h"
#include "engine/engine.h"
#include "speculation/speculator.h"

namespace aisp {
namespace {

constexpr TokenId kDrawn = 11;  // all draws are biased to it
constexpr TokenId kWrong = 12;

// Proposes the tokens itself. An inner proposer drafts as many, and its drafts are dropped: only
// its time counts.
class ImposedProposer final : public Proposer {
 public:
  ImposedProposer(std::vector<double> acceptance, std::unique_ptr<Proposer> inner)
      : acceptance_(std::move(acceptance)), inner_(std::move(inner)) {}
  std::string_view name() const override { return "imposed"; }
  bool costly() const override { return inner_ != nullptr && inner_->costly(); }
  bool at_once() const override { return inner_ != nullptr && inner_->at_once(); }
  int32_t feature_size() const override { return inner_ != nullptr ? inner_->feature_size() : 0; }
  int32_t feature_window() const override { return inner_ ? inner_->feature_window() : 0; }
  Status Computed(std::span<const ComputedRows> rows) override { return inner_->Computed(rows); }
  bool timed() const override { return inner_ == nullptr || inner_->timed(); }
  Duration catch_up() const override { return inner_ != nullptr ? inner_->catch_up() : Duration{}; }
  Status Propose(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) override {
    if (inner_ != nullptr) AISP_RETURN_IF_ERROR(inner_->Propose(contexts, drafts));
    for (size_t i = 0; i < contexts.size(); ++i) {
      drafts[i].Clear();
      for (int32_t at = 0; at < contexts[i].limit; ++at) {
        const double p = acceptance_[std::min(static_cast<size_t>(at), acceptance_.size() - 1)];
        drafts[i].Add(random_.Uniform() < p ? kDrawn : kWrong, static_cast<float>(p));
      }
    }
    return {};
  }
  void Ended(const DraftContext& context) override {
    if (inner_ != nullptr) inner_->Ended(context);
  }

 private:
  const std::vector<double> acceptance_;
  const std::unique_ptr<Proposer> inner_;
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

SequenceRequest RequestOf(const SpeculationBenchOptions& o, int32_t vocabulary, size_t which) {
  SequenceRequest request;
  request.max_new_tokens = o.output_tokens;
  if (!o.prompts.empty()) {
    request.tokens = o.prompts[which % o.prompts.size()];
    request.prompt_tokens = static_cast<int32_t>(request.tokens.size());
    request.sampling.temperature = o.temperature;
    request.sampling.seed = which;
    return request;
  }
  SplitMix64 random(100 + which);
  for (int32_t i = 0; i < o.prompt_tokens; ++i)
    request.tokens.push_back(static_cast<TokenId>(random.Below(static_cast<uint64_t>(vocabulary))));
  request.prompt_tokens = o.prompt_tokens;
  request.sampling.temperature = 0;
  request.sampling.logit_bias = {{kDrawn, 1e4f}};
  return request;
}

double CpuSeconds() {
  timespec spent{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
  return static_cast<double>(spent.tv_sec) + 1e-9 * static_cast<double>(spent.tv_nsec);
}

struct Measured {
  int64_t tokens = 0, steps = 0, accepted = 0, drafted = 0, verified = 0;
  double seconds = 0, cpu_seconds = 0, proposing = 0, on_device = 0;
  std::vector<std::vector<TokenId>> answers;

  double per_s() const { return static_cast<double>(tokens) / seconds; }
  double per_cpu_s() const { return static_cast<double>(tokens) / std::max(1e-9, cpu_seconds); }
  double step_ms() const { return seconds * 1e3 / static_cast<double>(steps); }
  double device_ms() const { return on_device * 1e3 / static_cast<double>(steps); }
  double propose_ms() const { return proposing * 1e3 / static_cast<double>(steps); }
  double tokens_per_step() const {
    return 1 + static_cast<double>(accepted) / static_cast<double>(std::max<int64_t>(1, verified));
  }
  double acceptance() const {
    return static_cast<double>(accepted) / static_cast<double>(std::max<int64_t>(1, drafted));
  }
};

// From when every sequence decodes until the first one ends; adds to `m`.
Status MeasureRound(const SpeculationBenchOptions& o, ServingExecutor& executor, int32_t batch,
                    const std::shared_ptr<Speculator>& speculator, size_t first, Measured* m) {
  const SteadyClock clock;
  EngineOptions options = OptionsFor(executor, batch);
  options.speculator = speculator;
  Engine engine(options, &executor, &clock, nullptr);
  const int32_t vocabulary = executor.model().spec().vocabulary;
  std::vector<SequenceId> ids(static_cast<size_t>(batch));
  for (size_t i = 0; i < ids.size(); ++i) {
    AISP_ASSIGN_OR_RETURN(ids[i], engine.Add(RequestOf(o, vocabulary, first + i)));
  }
  std::map<SequenceId, std::vector<TokenId>> started;
  Instant begin = kNever, end{};
  double cpu_begin = 0, cpu_end = 0;
  const int64_t steps_before = m->steps;
  bool ended = false;
  while (!ended) {
    while (engine.CanLaunch()) AISP_RETURN_IF_ERROR(engine.Launch());
    if (!engine.InFlight()) return Internal("the engine has nothing to do, but work is left");
    const CollectOutput out = engine.Collect();
    for (const TokenOutput& token : out.tokens) {
      if (token.finish == FinishReason::kError) return tl::unexpected(token.error);
      ended |= token.finish != FinishReason::kNone;
      if (token.token >= 0) started[token.sequence].push_back(token.token);
    }
    end = clock.Now();
    cpu_end = CpuSeconds();
    if (begin != kNever) {
      m->tokens += static_cast<int64_t>(out.tokens.size());
      ++m->steps;
      m->proposing += ToSeconds(out.timing.propose);
      m->on_device += ToSeconds(out.timing.device);
      for (const VerifiedDraft& draft : out.drafts) {
        m->accepted += draft.accepted;
        m->drafted += draft.drafted;
        ++m->verified;
      }
    } else if (static_cast<int32_t>(started.size()) == batch && out.timing.prefill_tokens == 0) {
      begin = end;
      cpu_begin = cpu_end;
    }
  }
  // Work in flight belongs to this engine; the executor is reused by the next one.
  for (const SequenceId id : ids) engine.Cancel(id);
  while (engine.InFlight()) static_cast<void>(engine.Collect());
  if (m->steps - steps_before < 4)
    return InvalidArgument("too few decode steps to measure; give a greater --osl");
  m->seconds += ToSeconds(end - begin);
  m->cpu_seconds += cpu_end - cpu_begin;
  for (const SequenceId id : ids) m->answers.push_back(std::move(started[id]));
  return {};
}

// Sequences have different lengths when the first one ends; their common part must be equal.
Status SameAnswers(const Measured& plain, const Measured& with) {
  for (size_t i = 0; i < plain.answers.size(); ++i) {
    const auto& a = plain.answers[i];
    const auto& b = with.answers[i];
    const size_t both = std::min(a.size(), b.size());
    const auto differs =
        std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(both), b.begin());
    if (differs.first == a.begin() + static_cast<ptrdiff_t>(both)) continue;
    return Internal(
        fmt::format("answer {} differs with proposed tokens, from its token {} on: {} "
                    "instead of {}",
                    i, differs.first - a.begin(), *differs.second, *differs.first));
  }
  return {};
}

// Runs without and with draft tokens, in turns. `plain` may be measured already.
Status MeasurePairs(const SpeculationBenchOptions& o, ServingExecutor& executor, int32_t batch,
                    const std::shared_ptr<Speculator>& speculator, Measured* plain,
                    Measured* with) {
  const bool compare = plain->steps == 0;
  for (int32_t round = 0; round < o.warm_up_rounds; ++round) {
    // Uses prompts after the measured ones, because a proposer may learn from prompts.
    const size_t first = static_cast<size_t>(o.rounds + round) * static_cast<size_t>(batch);
    Measured unused;
    AISP_RETURN_IF_ERROR(MeasureRound(o, executor, batch, speculator, first, &unused));
  }
  for (int32_t round = 0; round < o.rounds; ++round) {
    const size_t first = static_cast<size_t>(round) * static_cast<size_t>(batch);
    if (compare) AISP_RETURN_IF_ERROR(MeasureRound(o, executor, batch, nullptr, first, plain));
    AISP_RETURN_IF_ERROR(MeasureRound(o, executor, batch, speculator, first, with));
  }
  const bool exact = !o.prompts.empty() && executor.max_depth() == 1;
  return exact ? SameAnswers(*plain, *with) : Status{};
}

SpeculationBenchRow RowOf(const Measured& plain, const Measured& m) {
  SpeculationBenchRow row;
  row.plain_per_s = plain.per_s();
  row.per_s = m.per_s();
  row.speedup = m.per_s() / plain.per_s();
  row.cpu_speedup = m.per_cpu_s() / plain.per_cpu_s();
  row.tokens_per_step = m.tokens_per_step();
  row.acceptance = m.acceptance();
  row.step_ms = m.step_ms();
  row.plain_step_ms = plain.step_ms();
  row.device_ms = m.device_ms();
  row.propose_ms = m.propose_ms();
  return row;
}

std::string BreakEvenText(double rate) {
  if (std::isnan(rate)) return "-";
  return std::isinf(rate) ? "never" : fmt::format("{:.3f}", rate);
}

}  // namespace

// A step brings 1 + p + p^2 + ... tokens, which grows with p.
double BreakEven(double cost, int32_t length) {
  if (cost > length + 1) return std::numeric_limits<double>::infinity();
  double low = 0, high = 1;
  for (int i = 0; i < 50; ++i) {
    const double p = (low + high) / 2;
    double tokens = 1, together = 1;
    for (int32_t at = 0; at < length; ++at) tokens += together *= p;
    (tokens < cost ? low : high) = p;
  }
  return high;
}

Result<std::vector<SpeculationBenchRow>> BenchSpeculation(const SpeculationBenchOptions& options,
                                                          ServingExecutor& executor) {
  for (const double p : options.acceptance) {
    if (!(p >= 0 && p <= 1))
      return InvalidArgument(fmt::format("an acceptance of {}; probabilities are in [0, 1]", p));
  }
  if (options.acceptance.empty()) return InvalidArgument("no acceptance is given");
  const SteadyClock clock;
  const auto imposed = [&](int32_t length, bool adaptive) -> Result<std::shared_ptr<Speculator>> {
    const SpeculatorOptions with{.num_tokens = length, .adaptive = adaptive};
    std::unique_ptr<Proposer> inner;
    if (options.make_proposer) {
      AISP_ASSIGN_OR_RETURN(inner, options.make_proposer());
    }
    return std::make_shared<Speculator>(
        with, std::make_unique<ImposedProposer>(options.acceptance, std::move(inner)), &clock);
  };
  std::vector<SpeculationBenchRow> rows;
  for (const int32_t batch : options.batches) {
    Measured plain;
    for (const int32_t length : options.lengths) {
      for (const bool adaptive : {false, true}) {
        AISP_ASSIGN_OR_RETURN(const auto speculator, options.prompts.empty()
                                                         ? imposed(length, adaptive)
                                                         : options.make(length, adaptive));
        // A single run without draft tokens serves all; with several rounds, each run has its own.
        if (options.rounds > 1) plain = {};
        Measured with;
        AISP_RETURN_IF_ERROR(MeasurePairs(options, executor, batch, speculator, &plain, &with));
        SpeculationBenchRow& row = rows.emplace_back(RowOf(plain, with));
        row.batch = batch;
        row.length = length;
        row.adaptive = adaptive;
        if (!adaptive && options.prompts.empty())
          row.break_even = BreakEven(row.step_ms / row.plain_step_ms, length);
      }
    }
  }
  return rows;
}

std::string ToTable(const std::vector<SpeculationBenchRow>& rows) {
  std::string out = fmt::format(
      "{:>6} {:>4} {:>7} {:>12} {:>12} {:>8} {:>8} {:>12} {:>9} {:>10} {:>9} {:>9} {:>9} "
      "{:>9}\n",
      "batch", "k", "length", "plain tok/s", "with tok/s", "speed-up", "by CPU", "tokens/step",
      "accepted", "break-even", "plain ms", "step ms", "device ms", "draft ms");
  for (const SpeculationBenchRow& r : rows) {
    out += fmt::format(
        "{:>6} {:>4} {:>7} {:>12.1f} {:>12.1f} {:>8.3f} {:>8.3f} {:>12.2f} {:>9.3f} {:>10} "
        "{:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f}\n",
        r.batch, r.length, r.adaptive ? "chosen" : "all", r.plain_per_s, r.per_s, r.speedup,
        r.cpu_speedup, r.tokens_per_step, r.acceptance, BreakEvenText(r.break_even),
        r.plain_step_ms, r.step_ms, r.device_ms, r.propose_ms);
  }
  return out;
}

std::string ToJson(const std::vector<SpeculationBenchRow>& rows) {
  std::string out = "[";
  for (const SpeculationBenchRow& r : rows) {
    out += fmt::format(
        "{}{{\"batch\": {}, \"length\": {}, \"adaptive\": {}, \"plain_tokens_per_s\": {:.1f}, "
        "\"tokens_per_s\": {:.1f}, \"speedup\": {:.4f}, \"cpu_speedup\": {:.4f}, "
        "\"tokens_per_step\": {:.3f}, "
        "\"acceptance\": {:.4f}, \"break_even\": {}, "
        "\"plain_step_ms\": {:.4f}, \"step_ms\": {:.4f}, \"device_ms\": {:.4f}, \"propose_ms\": "
        "{:.4f}}}",
        out.size() > 1 ? ", " : "", r.batch, r.length, r.adaptive, r.plain_per_s, r.per_s,
        r.speedup, r.cpu_speedup, r.tokens_per_step, r.acceptance,
        std::isfinite(r.break_even) ? fmt::format("{:.4f}", r.break_even) : "null", r.plain_step_ms,
        r.step_ms, r.device_ms, r.propose_ms);
  }
  return out + "]";
}

}  // namespace aisp
