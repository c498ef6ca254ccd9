// LoRA adapters with a base checkpoint compared with merged checkpoints; which adapters are
// refused; and which requests share KV.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <utility>

#include "engine/engine.h"
#include "tests/model/golden.h"
#include "tests/model/lora_files.h"
#include "tests/model/unequal_chunks.h"
#include "tests/support/temp_files.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;

constexpr double kTolerance = 2e-3;
const std::vector<std::string> kAll = {
    "q_proj",    "k_proj",   "v_proj",   "o_proj",    "gate_proj",          "up_proj",
    "down_proj", "q_a_proj", "q_b_proj", "kv_b_proj", "kv_a_proj_with_mqa",
};

std::shared_ptr<const LoraAdapter> Open(const std::string& name, const std::string& folder) {
  auto adapter = LoraAdapter::Load(name, folder, 128);
  EXPECT_TRUE(adapter.has_value()) << adapter.error().message;
  return *adapter;
}

double Worst(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i)
    worst = std::max(worst, std::fabs(double{a[i]} - double{b[i]}));
  return worst;
}

class Lora : public testing::TestWithParam<std::string> {};

TEST_P(Lora, RowsOfTwoAdaptersAndOfNoneInOneBatchAreThoseOfMergedWeights) {
  const std::string base = GoldenDirectory(GetParam());
  TestAdapter one = RandomAdapter(base, kAll, 4, 1);
  TestAdapter two = RandomAdapter(base, {"q_proj", "q_b_proj", "o_proj", "down_proj"}, 16, 2);
  two.by_root = true;
  const TempFolder folder;
  one.Write(folder.path() + "/one");
  two.Write(folder.path() + "/two");
  WriteMerged(base, one, folder.path() + "/merged one");
  WriteMerged(base, two, folder.path() + "/merged two");
  Rig::Options options;
  options.adapters = {Open("one", folder.path() + "/one"), Open("two", folder.path() + "/two")};
  Rig rig = Rig::Open(base, options);
  std::vector<TokenId> prompt = LoadGolden(GetParam()).back().prompt;
  prompt.resize(40);
  const auto last = [&](const std::string& directory) {
    Rig alone = Rig::Open(directory, {});
    auto sequence = alone.NewSequence(prompt, 40);
    return alone.LastLogits(sequence, 40);
  };
  const std::vector<std::vector<float>> expected = {last(base), last(folder.path() + "/merged one"),
                                                    last(folder.path() + "/merged two")};
  EXPECT_GT(Worst(expected[0], expected[1]), 20 * kTolerance);
  EXPECT_GT(Worst(expected[0], expected[2]), 20 * kTolerance);
  EXPECT_GT(Worst(expected[1], expected[2]), 20 * kTolerance);

  // In unequal chunks, in common steps, with some rows alone in a step.
  std::vector<Rig::Sequence> sequences;
  for (int32_t adapter : {-1, 0, 1, 0}) {
    sequences.push_back(rig.NewSequence(prompt, 40));
    sequences.back().adapter = adapter;
  }
  const std::vector<std::vector<float>> mixed = InUnequalChunks(rig, sequences, 40);
  EXPECT_EQ(mixed[0], expected[0]);  // bit for bit
  EXPECT_LT(Worst(mixed[1], expected[1]), kTolerance);
  EXPECT_LT(Worst(mixed[2], expected[2]), kTolerance);
  EXPECT_EQ(mixed[3], mixed[1]);

  auto alone = rig.NewSequence(prompt, 40);
  alone.adapter = 1;
  EXPECT_EQ(rig.LastLogits(alone, 40), mixed[2]);
}

INSTANTIATE_TEST_SUITE_P(Families, Lora,
                         testing::Values("llama", "qwen2", "qwen3", "mixtral", "deepseek-v3"),
                         [](const auto& each) {
                           std::string name = each.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// ---- slots ----

class LoraSlots : public testing::Test {
 protected:
  void SetUp() override {
    RandomAdapter(base_, kAll, 4, 1).Write(folder_.path() + "/one");
    RandomAdapter(base_, {"q_proj", "down_proj"}, 16, 2).Write(folder_.path() + "/two");
    one_ = Open("one", folder_.path() + "/one");
    two_ = Open("two", folder_.path() + "/two");
    prompt_ = LoadGolden("llama").back().prompt;
    prompt_.resize(40);
    Rig::Options options;
    options.adapters = {one_, two_};
    Rig rig = Rig::Open(base_, options);
    for (const int32_t adapter : {-1, 0, 1}) expected_.push_back(Last(rig, adapter));
  }
  std::vector<float> Last(Rig& rig, int32_t adapter) {
    auto sequence = rig.NewSequence(prompt_, 40);
    sequence.adapter = adapter;
    return rig.LastLogits(sequence, 16);
  }
  static void Put(Rig& rig, int32_t slot, const LoraAdapter* adapter) {
    PackedAdapter packed;
    if (adapter != nullptr) packed = *rig.executor->model().PackAdapter(*adapter);
    const Status put = rig.executor->SetAdapter(slot, std::move(packed));
    ASSERT_TRUE(put.has_value()) << put.error().message;
  }

  const std::string base_ = GoldenDirectory("llama");
  const TempFolder folder_;
  std::shared_ptr<const LoraAdapter> one_, two_;
  std::vector<TokenId> prompt_;
  std::vector<std::vector<float>> expected_;  // without one, with one, with two
};

TEST_F(LoraSlots, AreFilledReplacedAndEmptiedBetweenSteps) {
  Rig::Options options;
  options.max_adapters = 3;
  Rig rig = Rig::Open(base_, options);
  EXPECT_EQ(rig.executor->adapter_slots(), 3);
  EXPECT_EQ(Last(rig, 2), expected_[0]);  // an empty slot
  const AdaptedLinear* bound = nullptr;
  for (const Node& node : rig.executor->model().programme().nodes()) {
    if (node.kind == NodeKind::kLinear && node.name == "qkv")
      bound = node.As<LinearParams>().adapters;
  }
  ASSERT_NE(bound, nullptr);

  Put(rig, 2, one_.get());
  EXPECT_EQ(rig.executor->FindAdapter(one_->digest()), 2);
  EXPECT_EQ(rig.executor->FindAdapter(two_->digest()), -1);
  EXPECT_EQ(Last(rig, 2), expected_[1]);
  EXPECT_EQ(bound->adapters[2].size(), 3u);  // q, k and v

  Put(rig, 2, two_.get());
  EXPECT_EQ(rig.executor->FindAdapter(one_->digest()), -1);
  EXPECT_EQ(Last(rig, 2), expected_[2]);
  EXPECT_EQ(bound->adapters[2].size(), 1u);

  Put(rig, 2, nullptr);
  EXPECT_EQ(rig.executor->FindAdapter(two_->digest()), -1);
  EXPECT_EQ(Last(rig, 2), expected_[0]);
  EXPECT_TRUE(bound->adapters[2].empty());
}

TEST_F(LoraSlots, ABatchMixesAdaptersOfTheStartLaterOnesAndNone) {
  Rig::Options options;
  options.adapters = {two_};
  options.max_adapters = 4;
  Rig rig = Rig::Open(base_, options);
  EXPECT_EQ(rig.executor->FindAdapter(two_->digest()), 0);
  Put(rig, 3, one_.get());
  std::vector<Rig::Sequence> sequences;
  for (const int32_t adapter : {3, -1, 0, 1}) {
    sequences.push_back(rig.NewSequence(prompt_, 40));
    sequences.back().adapter = adapter;
  }
  std::vector<Rig::Rows> rows;
  for (auto& sequence : sequences) rows.push_back({&sequence, 40});
  const auto logits = rig.Step(rows);
  EXPECT_EQ(logits[0], expected_[1]);
  EXPECT_EQ(logits[1], expected_[0]);
  EXPECT_EQ(logits[2], expected_[2]);
  EXPECT_EQ(logits[3], expected_[0]);
}

TEST_F(LoraSlots, WithoutThemNothingIsBound) {
  Rig rig = Rig::Open(base_, {});
  EXPECT_EQ(rig.executor->adapter_slots(), 0);
  for (const Node& node : rig.executor->model().programme().nodes()) {
    if (node.kind != NodeKind::kLinear) continue;
    EXPECT_EQ(node.As<LinearParams>().adapters, nullptr) << node.name;
  }
}

TEST_F(LoraSlots, AnAdapterOfAnotherModelIsRefusedBeforeItIsSet) {
  Rig::Options options;
  options.max_adapters = 1;
  Rig rig = Rig::Open(GoldenDirectory("llama-mha-hd128"), options);
  const auto packed = rig.executor->model().PackAdapter(*one_);
  ASSERT_FALSE(packed.has_value());
  EXPECT_THAT(packed.error().message, HasSubstr("made for another model"));
}

TEST(LoraBf16, RowsStayCloseToTheF32Ones) {
  if (!CpuComputes(DType::kBF16)) GTEST_SKIP() << "this CPU has no bf16 products";
  const std::string base = GoldenDirectory("llama");
  const TempFolder folder;
  RandomAdapter(base, kAll, 4, 1).Write(folder.path());
  std::vector<std::vector<float>> logits;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Rig::Options options;
    options.compute_dtype = dtype;
    options.adapters = {Open("one", folder.path())};
    Rig rig = Rig::Open(base, options);
    for (const int32_t adapter : {0, -1}) {
      auto sequence = rig.NewSequence(LoadGolden("llama")[2].prompt, 64);
      sequence.adapter = adapter;
      logits.push_back(rig.LastLogits(sequence, 16));
    }
  }
  // As close as rows without an adapter are.
  EXPECT_LT(Worst(logits[0], logits[2]), 2 * Worst(logits[1], logits[3]));
  EXPECT_GT(Worst(logits[0], logits[1]), 0.3);
}

// ---- refused adapters ----

struct Refusal {
  const char* what;
  std::function<void(TestAdapter*, std::string* config)> change;
  const char* named;
};

void Replace(std::string* text, const std::string& from, const std::string& to) {
  ASSERT_NE(text->find(from), std::string::npos);
  text->replace(text->find(from), from.size(), to);
}

TEST(LoraFiles, WhatIsNotAppliedIsRefusedByName) {
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj";
  const Refusal refusals[] = {
      {"DoRA", [](auto*, auto* c) { Replace(c, "\"use_dora\":false", "\"use_dora\":true"); },
       "use_dora"},
      {"biases", [](auto*, auto* c) { Replace(c, "\"none\"", "\"lora_only\""); }, "\"bias\""},
      {"whole modules", [](auto*, auto* c) { Replace(c, "save\":null", "save\":[\"lm_head\"]"); },
       "modules_to_save"},
      {"ranks by pattern",
       [](auto*, auto* c) { Replace(c, "rank_pattern\":{}", "rank_pattern\":{\"q\":2}"); },
       "rank_pattern"},
      {"another kind", [](auto*, auto* c) { Replace(c, "\"LORA\"", "\"IA3\""); }, "IA3"},
      {"changed base weights",
       [](auto*, auto* c) { Replace(c, "weights\":true", "weights\":\"pissa\""); },
       "init_lora_weights"},
      {"a rank over the limit", [](auto*, auto* c) { Replace(c, "\"r\":4", "\"r\":256"); },
       "at most 128"},
      {"no rank", [](auto*, auto* c) { Replace(c, "\"r\":4", "\"rr\":4"); }, "\"r\" is missing"},
      {"no JSON", [](auto*, auto* c) { c->resize(9); }, "not valid JSON"},
      {"another rank than configured", [](auto*, auto* c) { Replace(c, "\"r\":4", "\"r\":5"); },
       "configured rank of 5"},
      {"a half", [&](auto* a, auto*) { a->tensors.erase(q + ".lora_B.weight"); }, "no lora_B"},
      {"a value that is none",
       [&](auto* a, auto*) { a->tensors[q + ".lora_A.weight"].values[3] = std::nanf(""); },
       "not finite"},
      {"a value that bf16 does not hold",
       [&](auto* a, auto*) { a->tensors[q + ".lora_B.weight"].values[0] = 3.39e38f; },
       "not finite"},
      {"a tensor of another kind",
       [&](auto* a, auto*) {
         a->tensors[q + ".lora_magnitude_vector"] = {{1}, {1}};
       },
       "lora_magnitude_vector"},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.what);
    TestAdapter adapter = RandomAdapter(GoldenDirectory("llama"), kAll, 4, 1);
    std::string config = adapter.ConfigJson();
    refusal.change(&adapter, &config);
    const TempFolder folder;
    adapter.Write(folder.path());
    folder.Write("adapter_config.json", config);
    const auto loaded = LoraAdapter::Load("one", folder.path(), 128);
    ASSERT_FALSE(loaded.has_value());
    EXPECT_THAT(loaded.error().message, HasSubstr(refusal.named));
    EXPECT_THAT(loaded.error().message, HasSubstr(folder.path()));
  }
}

TEST(LoraFiles, ModulesThatCannotBeChangedAndShapesOfAnotherModelAreRefusedByName) {
  const auto refused = [](const std::string& base, const std::string& model,
                          const std::string& target) {
    const TempFolder folder;
    RandomAdapter(GoldenDirectory(base), {target}, 4, 1).Write(folder.path());
    const auto device = MakeTestDevice();
    const auto ops = MakeTestOps();
    ModelOptions options;
    options.adapters = {Open("one", folder.path())};
    const auto loaded = Model::Load(GoldenDirectory(model), options, *device, *ops);
    EXPECT_FALSE(loaded.has_value());
    return loaded ? "" : loaded.error().message;
  };
  EXPECT_THAT(refused("llama", "llama", "embed_tokens"), HasSubstr("changes model.embed_tokens"));
  EXPECT_THAT(refused("llama", "mixtral", "gate_proj"), HasSubstr("mlp.gate_proj"));
  EXPECT_THAT(refused("llama-mha-hd128", "llama", "q_proj"), HasSubstr("made for another model"));
}

TEST(LoraFiles, TheDigestIsOfBothFilesAndNotOfTheName) {
  const TempFolder folder;
  TestAdapter adapter = RandomAdapter(GoldenDirectory("llama"), {"q_proj"}, 4, 1);
  adapter.Write(folder.path() + "/a");
  adapter.alpha = 9;
  adapter.Write(folder.path() + "/b");
  EXPECT_EQ(Open("one", folder.path() + "/a")->digest(),
            Open("two", folder.path() + "/a")->digest());
  EXPECT_NE(Open("one", folder.path() + "/a")->digest(),
            Open("one", folder.path() + "/b")->digest());
}

// ---- in the engine ----

struct Answer {
  std::vector<TokenId> tokens;
  int32_t cached = 0;
};

class Runner {
 public:
  explicit Runner(Rig rig)
      : rig_(std::move(rig)), engine_(Options(), rig_.executor.get(), &clock_, nullptr) {}

  Result<SequenceId> Add(const std::vector<TokenId>& prompt, const std::string& adapter) {
    SequenceRequest request;
    request.tokens = prompt;
    request.prompt_tokens = static_cast<int32_t>(prompt.size());
    request.sampling.temperature = 0;
    request.max_new_tokens = 12;
    request.adapter = adapter;
    return engine_.Add(std::move(request));
  }
  std::map<SequenceId, Answer> Run() {
    std::map<SequenceId, Answer> answers;
    while (engine_.CanLaunch() || engine_.InFlight()) {
      if (engine_.CanLaunch()) {
        EXPECT_TRUE(engine_.Launch().has_value());
      }
      if (!engine_.InFlight()) continue;
      for (const TokenOutput& out : engine_.Collect().tokens) {
        EXPECT_EQ(out.error.message, "");
        if (out.token >= 0) answers[out.sequence].tokens.push_back(out.token);
        answers[out.sequence].cached = engine_.Times(out.sequence).cached_tokens;
      }
    }
    return answers;
  }
  Engine& engine() { return engine_; }
  Executor& executor() { return *rig_.executor; }
  Status Load(const LoraAdapter& adapter) {
    return engine_.LoadAdapter(*rig_.executor->model().PackAdapter(adapter));
  }
  // One step whose tokens are ignored.
  void Step() {
    EXPECT_TRUE(engine_.Launch().has_value());
    engine_.Collect();
  }
  Answer Ask(const std::vector<TokenId>& prompt, const std::string& adapter) {
    const auto id = Add(prompt, adapter);
    EXPECT_TRUE(id.has_value());
    return Run()[*id];
  }

 private:
  static EngineOptions Options() {
    EngineOptions options;
    options.limits.max_batch_tokens = 64;
    options.limits.max_prefill_chunk = 16;
    return options;
  }
  SteadyClock clock_;
  Rig rig_;
  Engine engine_;
};

class LoraEngine : public LoraSlots {
 protected:
  Runner WithPlaces(int32_t places) {
    Rig::Options options;
    options.max_adapters = places;
    return Runner(Rig::Open(base_, options));
  }
};

TEST_F(LoraEngine, AnAdapterThatIsUnloadedServesWhoHasItAndNobodyElse) {
  std::vector<TokenId> expected;
  {
    Runner undisturbed = WithPlaces(1);
    ASSERT_TRUE(undisturbed.Load(*one_).has_value());
    expected = undisturbed.Ask(prompt_, one_->digest()).tokens;
    ASSERT_EQ(expected.size(), 12u);
  }
  Runner runner = WithPlaces(1);
  ASSERT_TRUE(runner.Load(*one_).has_value());
  ASSERT_TRUE(runner.Load(*one_).has_value());  // still loaded
  const auto running = runner.Add(prompt_, one_->digest());
  ASSERT_TRUE(running.has_value());
  ASSERT_TRUE(runner.engine().Launch().has_value());
  runner.engine().DropAdapter(one_->digest());  // during a step
  EXPECT_FALSE(runner.engine().HasAdapter(one_->digest()));
  EXPECT_EQ(runner.Add(prompt_, one_->digest()).error().code, Code::kUnavailable);
  const Status full = runner.Load(*two_);
  ASSERT_FALSE(full.has_value());
  EXPECT_EQ(full.error().code, Code::kResourceExhausted);
  EXPECT_THAT(full.error().message, HasSubstr("all 1 places"));
  EXPECT_EQ(runner.Run()[*running].tokens, expected);
  EXPECT_EQ(runner.executor().AdapterIn(0), "");
  ASSERT_TRUE(runner.Load(*two_).has_value());
  EXPECT_EQ(runner.executor().AdapterIn(0), two_->digest());
  EXPECT_NE(runner.Ask(prompt_, two_->digest()).tokens, expected);
}

TEST_F(LoraEngine, ACancelledSequenceKeepsItsPlaceUntilItsRowsAreCollected) {
  Runner runner = WithPlaces(1);
  ASSERT_TRUE(runner.Load(*one_).has_value());
  const auto running = runner.Add(prompt_, one_->digest());
  ASSERT_TRUE(running.has_value());
  ASSERT_TRUE(runner.engine().Launch().has_value());
  runner.engine().Cancel(*running);
  runner.engine().DropAdapter(one_->digest());
  EXPECT_EQ(runner.executor().AdapterIn(0), one_->digest());
  runner.engine().Collect();
  EXPECT_EQ(runner.executor().AdapterIn(0), "");
}

TEST_F(LoraEngine, OneThatLeavesStaysWhenItIsLoadedAgain) {
  Runner runner = WithPlaces(2);
  ASSERT_TRUE(runner.Load(*one_).has_value());
  const auto running = runner.Add(prompt_, one_->digest());
  runner.Step();
  runner.engine().DropAdapter(one_->digest());
  ASSERT_TRUE(runner.Load(*one_).has_value());
  EXPECT_TRUE(runner.engine().HasAdapter(one_->digest()));
  runner.Run();
  EXPECT_EQ(runner.executor().AdapterIn(0), one_->digest());
  EXPECT_EQ(runner.executor().AdapterIn(1), "");
}

TEST_F(LoraEngine, KvOfOneAdapterNeverServesAnother) {
  const std::string base = GoldenDirectory("llama");
  const TempFolder folder;
  RandomAdapter(base, kAll, 4, 1).Write(folder.path() + "/one");
  RandomAdapter(base, kAll, 8, 2).Write(folder.path() + "/two");
  Rig::Options options;
  options.adapters = {Open("one", folder.path() + "/one"), Open("two", folder.path() + "/two")};
  const std::string digests[] = {"", options.adapters[0]->digest(), options.adapters[1]->digest()};
  const std::vector<TokenId> prompt = LoadGolden("llama").back().prompt;

  Runner runner(Rig::Open(base, options));
  std::vector<Answer> first;
  for (const std::string& digest : digests) {
    first.push_back(runner.Ask(prompt, digest));
    EXPECT_EQ(first.back().cached, 0) << digest;
  }
  EXPECT_NE(first[0].tokens, first[1].tokens);
  EXPECT_NE(first[0].tokens, first[2].tokens);
  EXPECT_NE(first[1].tokens, first[2].tokens);
  for (size_t i = 0; i < 3; ++i) {
    const Answer again = runner.Ask(prompt, digests[i]);
    EXPECT_GT(again.cached, 100);
    EXPECT_EQ(again.tokens, first[i].tokens);
  }
  // All at once in another engine with an empty cache.
  Runner other(Rig::Open(base, options));
  std::vector<SequenceId> ids;
  for (const std::string& digest : digests) ids.push_back(*other.Add(prompt, digest));
  auto answers = other.Run();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(answers[ids[i]].tokens, first[i].tokens);
    EXPECT_EQ(answers[ids[i]].cached, 0);
  }
  const auto unknown = runner.Add(prompt, "0123");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_EQ(unknown.error().code, Code::kUnavailable);  // another worker may have it
  EXPECT_THAT(unknown.error().message, HasSubstr("0123"));
}

}  // namespace
}  // namespace aisp
