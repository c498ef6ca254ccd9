// The heads that were trained for story-7m: their drafts equal PyTorch's, however the features
// arrive.
#include <gtest/gtest.h>

#include "engine/eagle.h"
#include "engine/medusa.h"
#include "engine/model_draft_head.h"
#include "model/files.h"
#include "model/json_reader.h"
#include "model/medusa_head.h"
#include "tests/model/golden.h"

namespace aisp {
namespace {

struct Case {
  std::vector<TokenId> tokens, draft;
  int32_t prompt_tokens = 0;
  double margin = 0;
};

// Parameter: the name of the method.
class HeadStory : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    target_ = StoryDirectory("story-7m");
    folder_ = StoryDirectory("story-7m-" + GetParam());
    if (target_.empty() || folder_.empty()) GTEST_SKIP() << "the built-in models are not there";
    const ModelSpec target = *LoadModelSpec(target_);
    ModelExecutorOptions options;
    if (GetParam() == "eagle3") {
      const auto spec = LoadEagleSpec(folder_, target);
      ASSERT_TRUE(spec.has_value()) << spec.error().message;
      options.model.feature_layers = spec->feature_layers;
    } else {
      options.model.feature_layers = {static_cast<int32_t>(target.layers.size())};
    }
    device_ = MakeTestDevice();
    ops_ = MakeTestOps();
    options.model.compute_dtype = DType::kF32;
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

  // Features of every token but the last one, computed in steps of `chunk` rows.
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

  std::unique_ptr<Proposer> NewProposer() {
    const Model& model = executor_->model();
    if (GetParam() == "medusa") {
      auto heads = MedusaHeads::Load(folder_, *LoadMedusaSpec(folder_, model.spec()), model, {},
                                     *device_, *ops_);
      EXPECT_TRUE(heads.has_value()) << heads.error().message;
      return std::make_unique<MedusaProposer>(MedusaProposerOptions{.min_probability = 0},
                                              std::move(*heads));
    }
    DraftHeadOptions options;
    options.head.max_sequences = 2;
    options.num_blocks = 40;
    auto head = GetParam() == "eagle3"
                    ? ModelDraftHead::Create(folder_, *LoadEagleSpec(folder_, model.spec()),
                                             model.embedding(), options, *device_, *ops_)
                    : ModelDraftHead::Create(folder_, *LoadMtpSpec(folder_, model.spec()), model,
                                             options, *device_, *ops_);
    EXPECT_TRUE(head.has_value()) << head.error().message;
    return std::make_unique<EagleProposer>(EagleOptions{.min_probability = 0}, std::move(*head));
  }

  // Gives it the positions [from, size - 1) of the first `size` tokens.
  void Tell(Proposer& proposer, const DraftContext& all, size_t size, size_t from,
            std::span<const float> features) {
    DraftContext context = all;
    context.tokens = all.tokens.first(size);
    const auto width = static_cast<size_t>(proposer.feature_size());
    const ComputedRows rows{
        context, static_cast<int32_t>(from),
        std::as_bytes(features.subspan(from * width, (size - 1 - from) * width))};
    EXPECT_TRUE(proposer.Computed({&rows, 1}).has_value());
  }
  TokenDraft Draft(Proposer& proposer, const DraftContext& all, size_t size) {
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
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<ModelExecutor> executor_;
  std::vector<Case> cases_;
  SamplingParams greedy_;
};

TEST_P(HeadStory, DraftsAreThoseOfPyTorch) {
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

TEST_P(HeadStory, FeaturesDoNotDependOnHowAPromptIsCut) {
  const std::vector<TokenId>& tokens = cases_.back().tokens;
  const std::vector<float> whole = Features(tokens);
  ASSERT_EQ(whole.size(), (tokens.size() - 1) * static_cast<size_t>(executor_->feature_size()));
  EXPECT_EQ(Features(tokens, 7), whole);
  EXPECT_EQ(Features(tokens, 1), whole);
}

// Bit for bit, the confidences too: a leftover row of a draft would change them.
TEST_P(HeadStory, AStateKeptThroughDraftsIsThatOfAFreshOne) {
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

INSTANTIATE_TEST_SUITE_P(OfStory7m, HeadStory, testing::Values("eagle3", "medusa", "mtp"),
                         [](const auto& method) { return method.param; });

}  // namespace
}  // namespace aisp
