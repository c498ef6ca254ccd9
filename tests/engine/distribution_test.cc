// If verify rows differ from decode rows in their last bits, texts may differ from those without
// speculation, but the tokens' distribution must still be the target's. A chi-square test over runs
// of tokens checks that, by proposer and by what draws depend on. The same test must fail for rules
// that accept too many draft tokens.
#include <gtest/gtest.h>

#include <array>
#include <map>

#include "engine/engine.h"
#include "speculation/speculator.h"
#include "tests/engine/jittery_executor.h"

namespace aisp {
namespace {

constexpr uint64_t kTarget = 1, kOther = 2;
constexpr float kBf16 = 0x1.0p-8f;
constexpr int32_t kTokens = 5;   // of an answer
constexpr int32_t kWindow = 3;   // tokens counted together
constexpr int kAnswers = 30000;  // one seed each
constexpr std::array<TokenId, 2> kPrompt{3, 1};

std::vector<double> Softmax(std::vector<double> logits) {
  double most = -1e300, sum = 0;
  for (const double l : logits) most = std::max(most, l);
  for (double& l : logits) sum += l = std::exp(l - most);
  for (double& l : logits) l /= sum;
  return logits;
}

// The target's probabilities of the next token, by the definition of the parameters.
std::vector<double> Next(const SamplingParams& p, TokenId last, std::span<const TokenId> drawn) {
  const std::vector<float> raw = JitteryLogits(kTarget, last);
  std::vector<double> logits(raw.begin(), raw.end());
  std::vector<int> counts(raw.size());
  for (const TokenId t : drawn) ++counts[static_cast<size_t>(t)];
  for (size_t t = 0; t < logits.size(); ++t) {
    if (counts[t] > 0)
      logits[t] -= static_cast<double>(p.presence_penalty) +
                   static_cast<double>(p.frequency_penalty) * counts[t];
    logits[t] /= static_cast<double>(p.temperature);
  }
  std::vector<double> sorted = logits;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  for (double& l : logits) {
    if (p.top_k > 0 && l < sorted[static_cast<size_t>(p.top_k) - 1]) l = -1e300;
  }
  return Softmax(std::move(logits));
}

// Counts of each run of kWindow tokens at each position of an answer.
using Runs = std::map<std::vector<TokenId>, double>;
using Counts = std::array<Runs, kTokens - kWindow + 1>;

void Count(std::span<const TokenId> answer, double weight, Counts* counts) {
  for (size_t at = 0; at < counts->size(); ++at) {
    const auto run = answer.subspan(at, kWindow);
    (*counts)[at][{run.begin(), run.end()}] += weight;
  }
}

void Enumerate(const SamplingParams& p, std::vector<TokenId>* answer, double weight, Counts* out) {
  if (answer->size() == kTokens) return Count(*answer, weight, out);
  const TokenId last = answer->empty() ? kPrompt.back() : answer->back();
  const std::vector<double> next = Next(p, last, *answer);
  for (TokenId t = 0; t < kJitteryVocabulary; ++t) {
    if (next[static_cast<size_t>(t)] == 0) continue;
    answer->push_back(t);
    Enumerate(p, answer, weight * next[static_cast<size_t>(t)], out);
    answer->pop_back();
  }
}

// Drafts from another model, with the target's noise or with its own.
class OtherModel final : public Proposer {
 public:
  explicit OtherModel(bool same_noise) : same_noise_(same_noise) {}
  std::string_view name() const override { return "other"; }
  static std::vector<float> Logits(TokenId last) {
    std::vector<float> logits = JitteryLogits(kTarget, last);
    const std::vector<float> other = JitteryLogits(kOther, last);
    for (size_t t = 0; t < logits.size(); ++t) logits[t] += 0.4f * other[t];
    return logits;
  }
  Status Propose(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) override {
    for (size_t i = 0; i < contexts.size(); ++i) {
      const DraftContext& c = contexts[i];
      SamplingParams params = *c.sampling;
      if (!same_noise_) params.seed += 1'000'000;
      SampleRow row;
      row.params = &params;
      TokenId last = c.tokens.back();
      for (int32_t at = 0; at < c.limit; ++at) {
        row.position = static_cast<uint32_t>(c.tokens.size()) + static_cast<uint32_t>(at);
        const std::vector<float> logits = Logits(last);
        last = sampler_.Sample(logits, row).token;
        // Draft lengths depend on what was drawn, as in proposers with a confidence limit.
        const std::vector<double> sure = Softmax({logits.begin(), logits.end()});
        drafts[i].Add(last, static_cast<float>(sure[static_cast<size_t>(last)]));
        if (drafts[i].confidence.back() < 0.1f) break;
      }
    }
    return {};
  }
  void Ended(const DraftContext&) override {}

 private:
  const bool same_noise_;
  Sampler sampler_{kJitteryVocabulary};
};

class Likeliest final : public Proposer {
 public:
  std::string_view name() const override { return "likeliest"; }
  Status Propose(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) override {
    for (size_t i = 0; i < contexts.size(); ++i) {
      TokenId last = contexts[i].tokens.back();
      for (int32_t at = 0; at < contexts[i].limit; ++at) {
        const std::vector<float> logits = JitteryLogits(kTarget, last);
        last =
            static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
        drafts[i].Add(last, 0.5f);
      }
    }
    return {};
  }
  void Ended(const DraftContext&) override {}
};

struct Drawn {
  Counts counts;
  std::map<uint64_t, std::vector<TokenId>> answers;  // by seed
  int64_t drafted = 0, accepted = 0;
};

// `proposer`: null: no drafts.
Drawn Draw(const SamplingParams& params, std::unique_ptr<Proposer> proposer,
           const DrawRule& rule = DrawOfTarget) {
  JitteryExecutor executor(kTarget, kBf16, rule);
  const ManualClock clock;
  EngineOptions options;
  options.limits = {.max_batch_tokens = executor.max_batch_tokens(),
                    .max_sequences = executor.max_slots(),
                    .max_draft_rows = 6 * executor.max_slots()};
  options.enable_prefix_cache = false;
  if (proposer != nullptr)
    options.speculator = std::make_shared<Speculator>(
        SpeculatorOptions{.num_tokens = 4, .adaptive = false}, std::move(proposer), &clock);
  Engine engine(options, &executor, &clock, nullptr);
  Drawn drawn;
  std::map<SequenceId, uint64_t> running;
  for (uint64_t seed = 0; seed < kAnswers || !running.empty();) {
    for (; seed < kAnswers && running.size() < JitteryExecutor::kSlots; ++seed) {
      SequenceRequest request;
      request.tokens.assign(kPrompt.begin(), kPrompt.end());
      request.prompt_tokens = kPrompt.size();
      request.max_new_tokens = kTokens;
      request.sampling = params;
      request.sampling.seed = seed + 9000000;
      const auto id = engine.Add(std::move(request));
      EXPECT_TRUE(id.has_value());
      running[*id] = seed;
    }
    EXPECT_TRUE(engine.Launch().has_value());
    for (const TokenOutput& output : engine.Collect().tokens) {
      std::vector<TokenId>& answer = drawn.answers[running.at(output.sequence)];
      answer.push_back(output.token);
      if (output.finish == FinishReason::kNone) continue;
      Count(answer, 1, &drawn.counts);
      drawn.drafted += output.drafts.drafted;
      drawn.accepted += output.drafts.accepted;
      running.erase(output.sequence);
    }
  }
  return drawn;
}

// Chi-square's excess over its mean under `expected`, in standard deviations (Wilson and Hilferty);
// the worst position. Rare runs are counted together.
double WorstDeviation(const Counts& counts, const Counts& expected) {
  double worst = -1e300;
  for (size_t at = 0; at < counts.size(); ++at) {
    double chi_square = 0, rare = 0, rare_seen = 0, known = 0;
    int cells = 0;
    const auto add = [&](double seen, double wanted) {
      chi_square += (seen - wanted) * (seen - wanted) / wanted;
      ++cells;
    };
    for (const auto& [run, probability] : expected[at]) {
      const double wanted = probability * kAnswers;
      const auto it = counts[at].find(run);
      const double seen = it == counts[at].end() ? 0 : it->second;
      known += seen;
      if (wanted >= 8)
        add(seen, wanted);
      else
        rare += wanted, rare_seen += seen;
    }
    EXPECT_EQ(known, kAnswers) << "runs that the target never draws";
    if (rare > 0) add(rare_seen, rare);
    const double free = cells - 1, ninth = 2 / (9 * free);
    worst = std::max(worst, (std::cbrt(chi_square / free) - (1 - ninth)) / std::sqrt(ninth));
  }
  return worst;
}

std::vector<SamplingParams> Settings() {
  SamplingParams plain, cold, penalised, few;
  cold.temperature = 0.6f;
  penalised.presence_penalty = 0.8f;
  penalised.frequency_penalty = 0.3f;
  few.top_k = 3;
  return {plain, cold, penalised, few};
}

Counts Expected(const SamplingParams& params) {
  Counts expected;
  std::vector<TokenId> answer;
  Enumerate(params, &answer, 1, &expected);
  return expected;
}

std::unique_ptr<Proposer> MakeProposer(int which) {
  if (which == 0) return std::make_unique<Likeliest>();
  return std::make_unique<OtherModel>(/*same_noise=*/which == 1);
}

// 3.1 is one in a thousand; there are three positions, three proposers and four settings.
constexpr double kTooMuch = 4.0;

TEST(Distribution, StaysTheTargetsWhereBitsDiffer) {
  for (const SamplingParams& params : Settings()) {
    const Counts expected = Expected(params);
    const Drawn without = Draw(params, nullptr);
    EXPECT_LT(WorstDeviation(without.counts, expected), kTooMuch);
    for (const int which : {0, 1, 2}) {
      SCOPED_TRACE(testing::Message() << "proposer " << which << ", temperature "
                                      << params.temperature << ", top_k " << params.top_k);
      const Drawn with = Draw(params, MakeProposer(which));
      EXPECT_LT(WorstDeviation(with.counts, expected), kTooMuch);
      EXPECT_GT(with.accepted, kAnswers / 2);
      EXPECT_LT(with.accepted, with.drafted);
      // The last bits do matter: a few answers in a thousand differ.
      int differ = 0;
      for (const auto& [seed, answer] : with.answers) differ += answer != without.answers.at(seed);
      EXPECT_GT(differ, 10);
      EXPECT_LT(differ, kAnswers / 50);
    }
  }
}

// With plain parameters only.
double Probability(std::span<const float> logits, TokenId token) {
  return Softmax({logits.begin(), logits.end()})[static_cast<size_t>(token)];
}

struct WrongRule {
  const char* name;
  int proposer;
  DrawRule rule;
};

std::vector<WrongRule> WrongRules() {
  const auto keep = [](TokenId token) {
    SampledToken out;
    out.token = token;
    return out;
  };
  return {
      {"a proposed token is kept where it is likely enough", 2,
       [keep](Sampler& sampler, const JitteryDraw& draw) {
         if (draw.proposed >= 0 && Probability(draw.logits, draw.proposed) > 0.3)
           return keep(draw.proposed);
         return DrawOfTarget(sampler, draw);
       }},
      {"a proposed token is kept where it is nearly the one drawn", 0,
       [](Sampler& sampler, const JitteryDraw& draw) {
         JitteryDraw leaning = draw;
         if (draw.proposed >= 0) leaning.logits[static_cast<size_t>(draw.proposed)] += 0.15f;
         return DrawOfTarget(sampler, leaning);
       }},
      {"one noise for all rows of a sequence", 2,
       [](Sampler& sampler, const JitteryDraw& draw) {
         SampleRow row = *draw.row;
         row.position = static_cast<uint32_t>(draw.first_position);
         return sampler.Sample(draw.logits, row);
       }},
      {"rejection as in speculative sampling, but a new draw from all of the target", 2,
       [keep](Sampler& sampler, const JitteryDraw& draw) {
         if (draw.proposed < 0) return DrawOfTarget(sampler, draw);
         const double p = Probability(draw.logits, draw.proposed);
         const double q = Probability(OtherModel::Logits(draw.last), draw.proposed);
         const uint64_t key = draw.row->params->seed * 64 + draw.row->position;
         if (SplitMix64(key).Uniform() < p / q) return keep(draw.proposed);
         return DrawOfTarget(sampler, draw);
       }},
  };
}

TEST(Distribution, RulesThatKeepTooManyAreFound) {
  const SamplingParams params;
  const Counts expected = Expected(params);
  for (const WrongRule& wrong : WrongRules()) {
    const Drawn with = Draw(params, MakeProposer(wrong.proposer), wrong.rule);
    EXPECT_GT(WorstDeviation(with.counts, expected), 2 * kTooMuch) << wrong.name;
  }
}

}  // namespace
}  // namespace aisp
