// The head that was trained for story-7m: it drafts what PyTorch does, however the features come.
#include <gtest/gtest.h>

#include "engine/eagle.h"
#include "engine/model_draft_head.h"
#include "model/files.h"
#include "model/json_reader.h"
#include "tests/model/golden.h"

namespace aisp {
namespace {

struct Case {
  std::vector<TokenId> tokens, draft;
  int32_t prompt_tokens = 0;
  double margin = 0;
};

class EagleStory : public testing::Test {
 protected:
  void SetUp() override {
    target_ = StoryDirectory("story-7m");
    folder_ = StoryDirectory("story-7m-eagle3");
    if (target_.empty() || folder_.empty()) GTEST_SKIP() << "the built-in models are not there";
    const auto spec = LoadEagleSpec(folder_, *LoadModelSpec(target_));
    ASSERT_TRUE(spec.has_value()) << spec.error().message;
    spec_ = *spec;
    device_ = MakeTestDevice();
    ops_ = MakeTestOps();
    ModelExecutorOptions options;
    options.model.compute_dtype = DType::kF32;
    options.model.feature_layers = spec_.feature_layers;
    options.num_blocks = 32;
    auto executor = ModelExecutor::Create(target_, options, *device_, *ops_);
    ASSERT_TRUE(executor.has_value()) << executor.error().message;
    executor_ = std::move(*executor);
    greedy_.temperature = 0;
    const Json json = Json::parse(*ReadTextFile(folder_ + "/expected.json"));
    for (const Json& c : json["cases"]) {
      cases_.push_back({c["tokens"].get<std::vector<TokenId>>(),
                        c["draft"].get<std::vector<TokenId>>(), c["prompt_tokens"].get<int32_t>(),
                        c["margin"].get<double>()});
    }
  }

  // Of every token but the last one, computed in steps of `chunk` rows.
  std::vector<float> Features(const std::vector<TokenId>& tokens, int32_t chunk = 512) {
    const auto rows = static_cast<int32_t>(tokens.size()) - 1;
    std::vector<float> out;
    for (int32_t begin = 0; begin < rows; begin += chunk) {
      const StepResult step = Step(tokens, begin, std::min(rows, begin + chunk));
      out.insert(out.end(), step.features.begin(), step.features.end());
    }
    return out;
  }
  StepResult Step(const std::vector<TokenId>& tokens, int32_t begin, int32_t end) {
    std::vector<int32_t> positions, table, rows;
    for (int32_t i = begin; i < end; ++i) {
      positions.push_back(i);
      rows.push_back(i - begin);
    }
    for (int32_t i = 0; i < executor_->kv_layout().BlocksFor(end); ++i) table.push_back(i);
    const std::vector<int32_t> slots(positions.size(), 0);
    const SequenceRows sequence{0, end - begin, end, 0};
    StepInput input;
    input.batch = ForwardBatch{
        std::span<const TokenId>(tokens).subspan(static_cast<size_t>(begin), positions.size()),
        positions,
        slots,
        {&sequence, 1},
        table,
        {}};
    input.feature_rows = rows;
    input.hidden_rows = rows;
    const auto ticket = executor_->Launch(input);
    EXPECT_TRUE(ticket.has_value()) << ticket.error().message;
    return *executor_->Collect(*ticket);
  }

  std::unique_ptr<EagleProposer> NewProposer() {
    DraftHeadOptions options;
    options.head.max_sequences = 2;
    options.num_blocks = 40;
    auto head = ModelDraftHead::Create(folder_, spec_, executor_->model().embedding(), options,
                                       *device_, *ops_);
    EXPECT_TRUE(head.has_value()) << head.error().message;
    return std::make_unique<EagleProposer>(EagleOptions{.min_probability = 0}, std::move(*head));
  }

  // Tells it of positions [from, size - 1) of the first `size` tokens.
  void Tell(EagleProposer& proposer, const DraftContext& all, size_t size, size_t from,
            std::span<const float> features) {
    DraftContext context = all;
    context.tokens = all.tokens.first(size);
    const auto width = static_cast<size_t>(proposer.feature_size());
    const ComputedRows rows{
        context, static_cast<int32_t>(from),
        std::as_bytes(features.subspan(from * width, (size - 1 - from) * width))};
    EXPECT_TRUE(proposer.Computed({&rows, 1}).has_value());
  }
  TokenDraft Draft(EagleProposer& proposer, const DraftContext& all, size_t size) {
    DraftContext context = all;
    context.tokens = all.tokens.first(size);
    TokenDraft draft;
    EXPECT_TRUE(proposer.Propose({&context, 1}, {&draft, 1}).has_value());
    return draft;
  }
  DraftContext ContextOf(const Case& c) {
    DraftContext context;
    context.sequence = SequenceId(7);
    context.tokens = c.tokens;
    context.prompt_tokens = c.prompt_tokens;
    context.limit = static_cast<int32_t>(c.draft.size());
    context.sampling = &greedy_;
    return context;
  }

  std::string target_, folder_;
  EagleSpec spec_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<ModelExecutor> executor_;
  std::vector<Case> cases_;
  SamplingParams greedy_;
};

TEST_F(EagleStory, DraftsAreThoseOfPyTorch) {
  int compared = 0;
  for (const Case& c : cases_) {
    if (c.margin < 1e-3) continue;
    const auto proposer = NewProposer();
    Tell(*proposer, ContextOf(c), c.tokens.size(), 0, Features(c.tokens));
    EXPECT_EQ(Draft(*proposer, ContextOf(c), c.tokens.size()).tokens, c.draft);
    ++compared;
  }
  EXPECT_GT(compared, 8);
}

TEST_F(EagleStory, FeaturesDoNotDependOnHowAPromptIsCut) {
  const std::vector<TokenId>& tokens = cases_.back().tokens;
  const std::vector<float> whole = Features(tokens);
  ASSERT_EQ(whole.size(), (tokens.size() - 1) * static_cast<size_t>(executor_->feature_size()));
  EXPECT_EQ(Features(tokens, 7), whole);
  EXPECT_EQ(Features(tokens, 1), whole);
}

// Bit for bit, the confidences too: a row of a draft that stayed behind would show in them.
TEST_F(EagleStory, AStateKeptThroughDraftsIsThatOfAFreshOne) {
  for (const Case& c : cases_) {
    const std::vector<float> features = Features(c.tokens);
    const DraftContext all = ContextOf(c);
    const auto kept = NewProposer();
    size_t known = 0;
    for (size_t size = static_cast<size_t>(c.prompt_tokens) + 1; size <= c.tokens.size();
         size += 1 + size % 7) {
      Tell(*kept, all, size, known > 3 ? known - 3 : 0, features);
      known = size - 1;
      const TokenDraft have = Draft(*kept, all, size);
      const auto fresh = NewProposer();
      Tell(*fresh, all, size, 0, features);
      const TokenDraft want = Draft(*fresh, all, size);
      ASSERT_EQ(have.tokens, want.tokens) << size;
      ASSERT_EQ(have.confidence, want.confidence) << size;
    }
  }
}

}  // namespace
}  // namespace aisp
