// Speculation with a real model: 500 requests that mix everything a draw depends on give the same
// tokens and logprobs with and without it, whatever the proposer.
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "common/random.h"
#include "engine/draft_model.h"
#include "engine/eagle.h"
#include "engine/engine.h"
#include "engine/medusa.h"
#include "engine/model_draft_head.h"
#include "model/medusa_head.h"
#include "speculation/ngram_proposer.h"
#include "speculation/speculator.h"
#include "speculation/suffix_proposer.h"
#include "tests/model/golden.h"

namespace aisp {
namespace {

constexpr int32_t kVocabulary = 64;

// After token t only those tokens may follow whose distance to it is in a fixed half of all, and
// after every third token only one; a text of `length` tokens is complete. As forced it names those
// single tokens, followed by a guess.
class PatternGuide final : public DrawGuide {
 public:
  PatternGuide(TokenId first, size_t length, size_t words)
      : taken_{first}, length_(length), mask_(words) {}
  std::span<const uint32_t> Allowed() override {
    std::fill(mask_.begin(), mask_.end(), 0u);
    for (TokenId t = 0; t < kVocabulary; ++t) {
      if (Follows(t)) mask_[static_cast<size_t>(t) / 32] |= 1u << (t % 32);
    }
    return mask_;
  }
  bool Take(TokenId token) override {
    if (AtEnd() || !Follows(token)) return false;
    taken_.push_back(token);
    return true;
  }
  void Rewind(size_t count) override {
    ASSERT_LT(count, taken_.size());
    taken_.resize(taken_.size() - count);
  }
  bool AtEnd() override { return taken_.size() > length_; }
  std::vector<TokenId> Forced(size_t limit) override {
    std::vector<TokenId> out;
    for (TokenId last = taken_.back(); out.size() < limit; last = out.back()) {
      out.push_back(Only(last));
      if (last % 3 != 0) break;
    }
    return out;
  }

 private:
  static TokenId Only(TokenId last) { return (last * 5 + 9) % kVocabulary; }
  bool Follows(TokenId t) const {
    if (taken_.size() > length_) return false;
    const TokenId last = taken_.back();
    return last % 3 == 0 ? t == Only(last) : (t * 7 + last * 3) % 4 < 2;
  }
  std::vector<TokenId> taken_;
  size_t length_;
  std::vector<uint32_t> mask_;
};

// Drafts random tokens, fails now and then.
class WildProposer final : public Proposer {
 public:
  std::string_view name() const override { return "wild"; }
  Status Propose(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) override {
    if (random_.Below(400) == 0) return Internal("a proposer that fails");
    for (size_t i = 0; i < contexts.size(); ++i) {
      // Also more than the limit and outside the vocabulary.
      const uint64_t count = random_.Below(12);
      for (uint64_t j = 0; j < count; ++j)
        drafts[i].Add(static_cast<TokenId>(random_.Below(kVocabulary + 2)) - 1, 0.5f);
    }
    return {};
  }
  void Ended(const DraftContext&) override {}

 private:
  SplitMix64 random_{5};
};

// Drafts what every sequence drew without speculation, with a mistake now and then.
class OracleProposer final : public Proposer {
 public:
  using Book = std::map<std::vector<TokenId>, std::vector<TokenId>>;
  explicit OracleProposer(const Book* answers) : answers_(*answers) {}
  std::string_view name() const override { return "oracle"; }
  Status Propose(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) override {
    for (size_t i = 0; i < contexts.size(); ++i) {
      const DraftContext& c = contexts[i];
      const auto& sampling = *c.sampling;
      std::vector<TokenId> key(c.tokens.begin(), c.tokens.begin() + c.prompt_tokens);
      key.push_back(static_cast<TokenId>(sampling.seed));
      key.push_back(static_cast<TokenId>(sampling.choice));
      const std::vector<TokenId>& answer = answers_.at(key);
      const size_t done = c.tokens.size() - static_cast<size_t>(c.prompt_tokens);
      for (size_t at = done; at < answer.size(); ++at) {
        const bool wrong = random_.Below(5) == 0;
        drafts[i].Add(wrong ? static_cast<TokenId>(random_.Below(kVocabulary)) : answer[at], 0.8f);
      }
    }
    return {};
  }
  void Ended(const DraftContext&) override {}

 private:
  const Book& answers_;
  SplitMix64 random_{9};
};

// Another choice, as with n > 1: only the choice's index differs.
SequenceRequest AnotherChoice(const SequenceRequest& before) {
  SequenceRequest r = before;
  ++r.sampling.choice;
  return r;
}

SequenceRequest RandomRequest(SplitMix64& random, uint64_t seed, const SequenceRequest* before) {
  SequenceRequest r;
  if (before != nullptr && random.Below(3) == 0) {
    r.tokens.assign(before->tokens.begin(), before->tokens.begin() + before->prompt_tokens);
    if (random.Below(2) == 0) return AnotherChoice(*before);
  }
  const uint64_t more = 1 + random.Below(30);
  for (uint64_t i = 0; i < more; ++i)
    r.tokens.push_back(static_cast<TokenId>(random.Below(random.Below(2) == 0 ? 6 : kVocabulary)));
  if (r.tokens.size() > 80) r.tokens.resize(80);
  r.prompt_tokens = static_cast<int32_t>(r.tokens.size());
  r.max_new_tokens = static_cast<int32_t>(random.Below(40));
  SamplingParams& p = r.sampling;
  p.seed = seed;
  p.choice = static_cast<uint32_t>(random.Below(3));
  p.temperature = random.Below(3) == 0 ? 0.0f : 0.3f + static_cast<float>(random.Uniform());
  if (random.Below(3) == 0) p.top_k = static_cast<int32_t>(1 + random.Below(20));
  if (random.Below(3) == 0) p.top_p = 0.5f + 0.5f * static_cast<float>(random.Uniform());
  if (random.Below(4) == 0) p.min_p = 0.1f;
  if (random.Below(3) == 0) p.presence_penalty = static_cast<float>(random.Uniform() * 2 - 1);
  if (random.Below(3) == 0) p.frequency_penalty = static_cast<float>(random.Uniform() * 2 - 1);
  if (random.Below(3) == 0) p.repetition_penalty = 0.8f + static_cast<float>(random.Uniform());
  if (random.Below(3) == 0) p.num_logprobs = static_cast<int32_t>(random.Below(5));
  if (random.Below(4) == 0) {
    p.logit_bias.emplace_back(static_cast<TokenId>(random.Below(kVocabulary)), 3.0f);
    p.logit_bias.emplace_back(static_cast<TokenId>(random.Below(kVocabulary)), -50.0f);
  }
  if (random.Below(2) == 0) {
    r.stop_token_ids = {static_cast<TokenId>(random.Below(kVocabulary)), 3};
    if (random.Below(2) == 0) r.min_new_tokens = static_cast<int32_t>(random.Below(12));
  }
  r.priority = static_cast<int32_t>(random.Below(3));
  r.cache_scope = random.Below(2) == 0 ? "" : "tenant";
  if (random.Below(5) == 0) r.max_draft_tokens = static_cast<int32_t>(random.Below(4));
  return r;
}

struct Drawn {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  FinishReason finish = FinishReason::kNone;
  DraftCounts drafts;
  int32_t preemptions = 0;
};

struct Answers {
  std::vector<Drawn> answers;
  int64_t steps = 0, drafted = 0, accepted = 0, forced = 0, forced_accepted = 0;
  uint64_t preemptions = 0;
};

class Speculation : public testing::Test {
 protected:
  static constexpr int kRequests = 500;

  void SetUp() override {
    SplitMix64 random(20);
    for (int i = 0; i < kRequests; ++i) {
      requests_.push_back(RandomRequest(random, 1000 + static_cast<uint64_t>(i),
                                        i > 0 ? &requests_[static_cast<size_t>(i) - 1] : nullptr));
      constrained_.push_back(random.Below(4) == 0);
      lengths_.push_back(1 + random.Below(30));
      cancel_.push_back(random.Below(20) == 0);
    }
  }

  // Null: no proposer.
  using MakeProposer = std::function<std::unique_ptr<Proposer>(const Model&, Device&, Ops&)>;
  template <typename P, typename... Args>
  static MakeProposer Of(Args... args) {
    return [args...](const Model&, Device&, Ops&) { return std::make_unique<P>(args...); };
  }
  // `blocks`: of the draft model's pool.
  static MakeProposer DraftModel(const std::string& golden, int32_t blocks, int32_t catch_up) {
    return [=](const Model&, Device& device, Ops& ops) {
      static const SteadyClock clock;
      ModelExecutorOptions options;
      options.model.compute_dtype = DType::kF32;
      options.model.max_batch_tokens = 48;
      options.max_slots = 6;
      options.num_blocks = blocks;
      auto executor = ModelExecutor::Create(GoldenDirectory(golden), options, device, ops);
      EXPECT_TRUE(executor.has_value());
      return std::make_unique<DraftModelProposer>(DraftModelOptions{.catch_up_tokens = catch_up},
                                                  std::move(*executor), &clock);
    };
  }

  // A head of random weights, which reads the residual streams in front of these layers.
  static constexpr int32_t kHeadLayers[] = {0, 1, 1};
  static MakeProposer Head(int32_t blocks, int32_t context) {
    return [=](const Model& model, Device& device, Ops& ops) {
      const std::string folder = GoldenDirectory("llama-eagle3");
      const auto spec = LoadEagleSpec(folder, model.spec());
      EXPECT_TRUE(spec.has_value()) << spec.error().message;
      DraftHeadOptions options;
      options.head.max_sequences = 6;
      options.head.max_rows = 6 * EagleProposer::kWaiting;
      options.head.max_context = context;
      options.num_blocks = blocks;
      auto head = ModelDraftHead::Create(folder, *spec, model.embedding(), options, device, ops);
      EXPECT_TRUE(head.has_value()) << head.error().message;
      return std::make_unique<EagleProposer>(EagleOptions{}, std::move(*head));
    };
  }

  // A next-token layer and Medusa's heads of random weights, which read the output of the last
  // layer.
  static constexpr int32_t kBehindAll[] = {2};
  static MakeProposer NextTokenLayer() {
    return [](const Model& model, Device& device, Ops& ops) {
      const std::string folder = GoldenDirectory("llama-mtp");
      const auto spec = LoadMtpSpec(folder, model.spec());
      EXPECT_TRUE(spec.has_value()) << spec.error().message;
      DraftHeadOptions options;
      options.head.max_sequences = 6;
      options.head.max_rows = 6 * EagleProposer::kWaiting;
      options.head.max_context = 256;
      options.num_blocks = 64;
      auto head = ModelDraftHead::Create(folder, *spec, model, options, device, ops);
      EXPECT_TRUE(head.has_value()) << head.error().message;
      return std::make_unique<EagleProposer>(EagleOptions{.method = "mtp"}, std::move(*head));
    };
  }
  static MakeProposer Medusa() {
    return [](const Model& model, Device& device, Ops& ops) {
      const std::string folder = GoldenDirectory("llama-medusa");
      const auto spec = LoadMedusaSpec(folder, model.spec());
      EXPECT_TRUE(spec.has_value()) << spec.error().message;
      auto heads = MedusaHeads::Load(folder, *spec, model, {.max_rows = 6}, device, ops);
      EXPECT_TRUE(heads.has_value()) << heads.error().message;
      return std::make_unique<MedusaProposer>(MedusaProposerOptions{.min_probability = 0},
                                              std::move(*heads));
    };
  }

  static ModelExecutorOptions ExecutorOptions(std::span<const int32_t> feature_layers) {
    ModelExecutorOptions options;
    options.model.compute_dtype = DType::kF32;
    options.model.max_batch_tokens = 48;
    options.max_slots = 6;
    options.max_draft_rows = 16;
    options.num_blocks = 13;  // so few that sequences are preempted
    options.model.feature_layers.assign(feature_layers.begin(), feature_layers.end());
    return options;
  }
  static EngineOptions SmallEngine() {
    EngineOptions options;
    options.limits.max_sequences = 6;
    options.limits.max_batch_tokens = 48;
    options.limits.max_prefill_chunk = 20;
    options.limits.max_draft_rows = 16;
    return options;
  }

  // The index of each sequence's request.
  using Index = std::map<SequenceId, size_t>;

  void AddSome(Engine& engine, int32_t vocabulary, size_t* next, Index* index) {
    for (; *next < requests_.size() && index->size() < 12; ++*next) {
      SequenceRequest r = requests_[*next];
      if (constrained_[*next])
        r.guide = std::make_shared<PatternGuide>(r.tokens.back(), lengths_[*next],
                                                 static_cast<size_t>(vocabulary + 31) / 32);
      const auto id = engine.Add(std::move(r));
      EXPECT_TRUE(id.has_value()) << id.error().message;
      (*index)[*id] = *next;
    }
  }
  static void Take(const CollectOutput& out, Answers* run, Index* index) {
    for (const VerifiedDraft& draft : out.drafts) {
      run->forced += draft.forced;
      run->forced_accepted += draft.forced_accepted;
    }
    for (const TokenOutput& o : out.tokens) {
      Drawn& drawn = run->answers[index->at(o.sequence)];
      if (o.token >= 0) drawn.tokens.push_back(o.token);
      if (o.logprob) drawn.logprobs.push_back(o.logprob->logprob);
      drawn.preemptions = o.preemptions;
      if (o.finish == FinishReason::kNone) continue;
      drawn.finish = o.finish;
      run->drafted += o.drafts.drafted;
      run->accepted += o.drafts.accepted;
      index->erase(o.sequence);
    }
  }
  void CancelSome(Engine& engine, const Answers& run, Index* index) {
    std::erase_if(*index, [&](const auto& each) {
      const auto& [id, at] = each;
      const bool ends = cancel_[at] && run.answers[at].tokens.size() >= 5;
      if (ends) engine.Cancel(id);
      return ends;
    });
  }

  Answers RunAll(const MakeProposer& make, bool adaptive, bool forced_runs = false,
                 std::span<const int32_t> feature_layers = kHeadLayers) {
    auto device = MakeTestDevice();
    auto ops = MakeTestOps();
    auto executor = ModelExecutor::Create(GoldenDirectory("llama"), ExecutorOptions(feature_layers),
                                          *device, *ops);
    EXPECT_TRUE(executor.has_value());
    const SteadyClock clock;
    EngineOptions engine_options = SmallEngine();
    if (make || forced_runs) {
      // A slow machine must not stop a proposer.
      const SpeculatorOptions speculation{.num_tokens = 6,
                                          .adaptive = adaptive,
                                          .slow = std::chrono::seconds(10),
                                          .forced_runs = forced_runs};
      engine_options.speculator = std::make_shared<Speculator>(
          speculation, make ? make(executor->get()->model(), *device, *ops) : nullptr, &clock);
    }
    Engine engine(engine_options, executor->get(), &clock, nullptr);
    Answers run;
    run.answers.resize(requests_.size());
    Index index;
    size_t next = 0;
    while (next < requests_.size() || engine.InFlight() || engine.CanLaunch()) {
      AddSome(engine, executor->get()->vocabulary(), &next, &index);
      EXPECT_TRUE(engine.Launch().has_value());
      ++run.steps;
      Take(engine.Collect(), &run, &index);
      CancelSome(engine, run, &index);
      engine.CheckInvariants();
    }
    run.preemptions = engine.Preemptions();
    if (engine.speculator() != nullptr) {
      EXPECT_EQ(engine.speculator()->sequences(), 0u);
    }
    EXPECT_EQ(engine.blocks().Stats().pinned, 0);
    return run;
  }

  void ExpectEqual(const Answers& plain, const Answers& run, const char* who) {
    for (size_t i = 0; i < requests_.size(); ++i) {
      std::vector<TokenId> want = plain.answers[i].tokens, have = run.answers[i].tokens;
      std::vector<float> want_logprobs = plain.answers[i].logprobs;
      std::vector<float> have_logprobs = run.answers[i].logprobs;
      if (cancel_[i]) {  // the step decides where it is cut
        want.resize(std::min(want.size(), have.size()));
        have.resize(want.size());
        want_logprobs.resize(std::min(want_logprobs.size(), have_logprobs.size()));
        have_logprobs.resize(want_logprobs.size());
      } else {
        ASSERT_EQ(plain.answers[i].finish, run.answers[i].finish) << who << " request " << i;
      }
      ASSERT_EQ(want, have) << who << " request " << i;
      ASSERT_EQ(want_logprobs, have_logprobs) << who << " request " << i;
    }
  }

  std::vector<SequenceRequest> requests_;
  std::vector<bool> constrained_, cancel_;
  std::vector<size_t> lengths_;
};

TEST_F(Speculation, ChangesNoTokenWhoeverProposes) {
  const Answers plain = RunAll(nullptr, false);
  ASSERT_EQ(plain.drafted, 0);
  OracleProposer::Book answers;
  int finished = 0;
  for (size_t i = 0; i < requests_.size(); ++i) {
    const SequenceRequest& r = requests_[i];
    std::vector<TokenId> key(r.tokens);
    key.push_back(static_cast<TokenId>(r.sampling.seed));
    key.push_back(static_cast<TokenId>(r.sampling.choice));
    answers[key] = plain.answers[i].tokens;
    finished += plain.answers[i].finish == FinishReason::kStop ? 1 : 0;
  }
  EXPECT_GT(finished, 50);
  EXPECT_GT(plain.preemptions, 5u);

  for (const bool adaptive : {false, true}) {
    const Answers oracle = RunAll(Of<OracleProposer>(&answers), adaptive);
    ExpectEqual(plain, oracle, "oracle");
    const Answers ngram = RunAll(Of<NgramProposer>(NgramOptions{.min = 1, .max = 4}), adaptive);
    ExpectEqual(plain, ngram, "ngram");
    const Answers suffix = RunAll(Of<SuffixProposer>(SuffixOptions{}), adaptive);
    ExpectEqual(plain, suffix, "suffix");
    const Answers wild = RunAll(Of<WildProposer>(), adaptive);
    ExpectEqual(plain, wild, "wild");
    // The target as its own draft model, and another model in a pool of too few blocks.
    const Answers twin = RunAll(DraftModel("llama", 64, 16), adaptive);
    ExpectEqual(plain, twin, "its own draft");
    const Answers other = RunAll(DraftModel("llama3-rope", 9, 16), adaptive);
    ExpectEqual(plain, other, "another model");
    const Answers head = RunAll(Head(64, 256), adaptive);
    ExpectEqual(plain, head, "a head");
    const Answers small_head = RunAll(Head(9, 48), adaptive);
    ExpectEqual(plain, small_head, "a head without room");
    const Answers layer = RunAll(NextTokenLayer(), adaptive, false, kBehindAll);
    ExpectEqual(plain, layer, "a next-token layer");
    const Answers medusa = RunAll(Medusa(), adaptive, false, kBehindAll);
    ExpectEqual(plain, medusa, "Medusa's heads");
    if (adaptive) continue;
    EXPECT_LT(oracle.steps, plain.steps * 3 / 4);
    EXPECT_GT(oracle.accepted, 1000);
    EXPECT_GT(twin.drafted, 1000);
    EXPECT_EQ(twin.accepted, twin.drafted);
    for (const Answers* run :
         {&oracle, &ngram, &suffix, &wild, &other, &head, &small_head, &layer, &medusa}) {
      EXPECT_GT(run->drafted, 200);
      EXPECT_GT(run->accepted, 0);
      EXPECT_LT(run->accepted, run->drafted);
    }
  }
}

TEST_F(Speculation, ForcedRunsChangeNoTokenAloneAndBesideAProposer) {
  const Answers plain = RunAll(nullptr, false);
  ASSERT_EQ(plain.forced, 0);
  for (const bool adaptive : {false, true}) {
    const Answers alone = RunAll(nullptr, adaptive, /*forced_runs=*/true);
    ExpectEqual(plain, alone, "forced runs");
    EXPECT_EQ(alone.drafted, 0);
    const Answers ngram =
        RunAll(Of<NgramProposer>(NgramOptions{.min = 1, .max = 4}), adaptive, true);
    ExpectEqual(plain, ngram, "forced runs and ngram");
    const Answers draft = RunAll(DraftModel("llama3-rope", 9, 16), adaptive, true);
    ExpectEqual(plain, draft, "forced runs and a draft model");
    // Where the cost of steps decides, the number of verified tokens depends on how busy the
    // machine is.
    const int least = adaptive ? 0 : 50;
    for (const Answers* run : {&alone, &ngram, &draft}) {
      EXPECT_GT(run->forced_accepted, least);
      EXPECT_GT(run->forced, run->forced_accepted);
    }
    if (!adaptive) {
      EXPECT_GT(ngram.drafted, 50);
    }
  }
}

}  // namespace
}  // namespace aisp
