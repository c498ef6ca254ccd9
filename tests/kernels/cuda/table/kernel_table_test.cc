// The table of kernels without a GPU: what a resolved programme launches, compared with what the
// backend launched before it had a table, and the rules that hold for every entry.
#include "kernels/cuda/table/kernel_table.h"
#include "kernels/adapters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <sstream>

#include "kernels/cuda/load.h"
#include "tests/kernels/cuda/table/dispatch_before.h"

namespace aisp::cuda {
namespace {

struct Weights {
  const char* name;
  std::optional<WeightFormat> format;
  DType dtype;
  DType kv;
};
constexpr Weights kWeights[] = {
    {"bf16", WeightFormat::kCompute, DType::kBF16, DType::kBF16},
    {"fp8", WeightFormat::kFp8, DType::kBF16, DType::kF8E4M3},
    {"fp8-block", WeightFormat::kFp8Block, DType::kBF16, DType::kBF16},
    {"nvfp4", WeightFormat::kNvfp4, DType::kBF16, DType::kBF16},
    {"f32", WeightFormat::kCompute, DType::kF32, DType::kF32},
};

class KernelTableTest : public testing::TestWithParam<std::tuple<const char*, const Weights*>> {
 protected:
  void SetUp() override {
    const auto& [shape, weights] = GetParam();
    model_ = PlanModel(shape, weights->format, weights->dtype, weights->kv);
    ASSERT_NE(model_, nullptr);
  }
  std::unique_ptr<PlannedModel> model_;
};

TEST_P(KernelTableTest, DecodeStepsLaunchWhatTheyLaunchedBefore) {
  for (int32_t rows = 1; rows <= 256; rows = rows < 66 ? rows + 1 : rows + 19) {
    ASSERT_EQ(LaunchedBefore(*model_, DecodeBucket(rows)), LaunchedNow(*model_, DecodeBucket(rows)))
        << rows << " rows";
  }
}

TEST_P(KernelTableTest, PromptsLaunchWhatTheyLaunchedBefore) {
  for (const int32_t rows : {2, 17, 64, 65, 100, 128, 129, 300, 640, 1000, 1024, 2048}) {
    Bucket bucket = PrefillBucket(rows);
    ASSERT_EQ(LaunchedBefore(*model_, bucket), LaunchedNow(*model_, bucket)) << rows << " rows";
    bucket.mode = StepMode::kMixed;
    bucket.sequences = bucket.logit_rows = 2;
    ASSERT_EQ(LaunchedBefore(*model_, bucket), LaunchedNow(*model_, bucket)) << rows << " mixed";
  }
}

// Except for attention, where the rows of a sequence share its keys, verify rows use the kernels of
// as many decode rows.
TEST_P(KernelTableTest, VerifyingRowsHaveTheLinearLayersOfAsManyDecodingOnes) {
  const auto linear = [&](const Bucket& bucket) {
    std::vector<std::string_view> names;
    for (const PlannedLaunch& launch : model_->Resolved(bucket)) {
      const NodeKind kind = model_->programme().node(launch.nodes[0]).kind;
      if (kind == NodeKind::kLinear) names.push_back(launch.row->name);
    }
    return names;
  };
  for (const int32_t sequences : {1, 4, 8}) {
    const Bucket verify = VerifyBucket(sequences, 8);
    const size_t verifying = linear(verify).size();
    size_t decoding = 0;
    for (const PlannedLaunch& launch : model_->Resolved(DecodeBucket(8 * sequences)))
      decoding += model_->programme().node(launch.nodes[0]).kind == NodeKind::kLinear ? 1 : 0;
    EXPECT_EQ(verifying, decoding) << sequences;
  }
  EXPECT_EQ(CanonicalBucket(VerifyBucket(2, 3)), CanonicalBucket(VerifyBucket(3, 2)));
  EXPECT_NE(CanonicalBucket(VerifyBucket(1, 6)), CanonicalBucket(VerifyBucket(2, 3)));
}

// Few heads and rows: a work item of decode attention has room for sixteen query rows, and a
// sequence has two for each KV head.
TEST_P(KernelTableTest, AttentionOfVerifyingRowsIsThatOfDecodingWhereItHasRoom) {
  const Programme& programme = model_->programme();
  for (const int32_t rows : {2, 4, 5, 8, 9, 16}) {
    for (const PlannedLaunch& launch : model_->Resolved(VerifyBucket(3, rows))) {
      const Node& node = programme.node(launch.covered().back());
      if (node.kind != NodeKind::kAttend) continue;
      const auto& p = node.As<AttentionParams>();
      const auto& rope = programme.node(programme.Producer(launch.covered().back()));
      if (rope.kind != NodeKind::kRopeAppend || !AttentionRefusal(p, model_->facts).empty())
        continue;
      const bool fused =
          HasFusedDecode(rope.As<RopeAppendParams>(), p, VerifyRows(rows), model_->facts);
      EXPECT_EQ(launch.row->id == KernelId::kFusedDecode, fused) << rows << " rows";
      const int32_t group = p.num_heads / p.kv.num_kv_heads;
      if (group == 4 && p.kv.head_dim == 128) {
        EXPECT_EQ(fused, rows <= 8) << rows << " rows";
      }
    }
  }
  // In large steps only if each sequence has one row.
  for (const PlannedLaunch& launch : model_->Resolved(VerifyBucket(32, 8))) {
    const Node& node = programme.node(launch.covered().back());
    if (node.kind != NodeKind::kAttend) continue;
    const auto& p = node.As<AttentionParams>();
    if (p.num_heads / p.kv.num_kv_heads > 2) {
      EXPECT_NE(launch.row->id, KernelId::kFusedDecode);
    }
  }
}

// A layer that adapters may change is launched alone and hands its rows over in memory; steps
// without adapters do not change.
TEST_P(KernelTableTest, RowsWithAdaptersHaveLaunchesForEachLayerThatTheyChange) {
  AdaptedLinear adapted;
  adapted.adapters.resize(1);
  const PackedLinear* down = nullptr;
  for (const Node& node : model_->programme().nodes()) {
    if (node.kind == NodeKind::kLinear && node.name == "down" && node.layer == 0)
      down = node.As<LinearParams>().weight;
  }
  if (down == nullptr) GTEST_SKIP() << "no such layer";
  Programme programme = model_->programme();
  programme.BindAdapters(
      [&](const PackedLinear* weight) { return weight == down ? &adapted : nullptr; });
  const auto resolve = [&](const Bucket& bucket) {
    auto launches = Resolve(programme, CanonicalBucket(bucket), model_->choice());
    EXPECT_TRUE(launches.has_value());
    return std::move(*launches);
  };
  for (Bucket bucket : {DecodeBucket(1), DecodeBucket(32), PrefillBucket(300)}) {
    bucket.adapters = true;
    int adapts = 0;
    for (const PlannedLaunch& launch : resolve(bucket)) {
      const bool holds =
          std::any_of(launch.covered().begin(), launch.covered().end(), [&](NodeId id) {
            const auto* linear = std::get_if<LinearParams>(&programme.node(id).params);
            return linear != nullptr && linear->weight == down;
          });
      EXPECT_EQ(launch.match.adapts, holds);
      if (!holds) continue;
      ++adapts;
      EXPECT_EQ(launch.num_nodes, 1);
      EXPECT_FALSE(launch.consumes_slots || launch.publishes_slots);
    }
    EXPECT_EQ(adapts, 1);
    const auto with = resolve(bucket).size();
    bucket.adapters = false;
    EXPECT_EQ(resolve(bucket).size(), model_->Resolved(bucket).size());
    EXPECT_GE(with, model_->Resolved(bucket).size());
  }
}

TEST_P(KernelTableTest, EveryNodeIsComputedOnceInItsOrder) {
  for (const Bucket& bucket : {DecodeBucket(1), DecodeBucket(32), PrefillBucket(300)}) {
    NodeId next = 0;
    for (const PlannedLaunch& launch : model_->Resolved(bucket)) {
      for (const NodeId id : launch.covered()) {
        while (id != next && model_->programme().node(next).kind == NodeKind::kGatherRows) ++next;
        ASSERT_EQ(id, next);
        ++next;
      }
    }
    EXPECT_EQ(static_cast<size_t>(next), model_->programme().nodes().size());
  }
}

TEST_P(KernelTableTest, WorkersThatShareTheDeviceNeverWaitForEachOther) {
  model_->facts.exclusive = false;
  for (const int32_t rows : {1, 8, 64}) {
    for (const PlannedLaunch& launch : model_->Resolved(DecodeBucket(rows))) {
      EXPECT_FALSE(launch.row->exclusive) << launch.row->name;
      EXPECT_FALSE(launch.consumes_slots || launch.publishes_slots);
      if (launch.row->id == KernelId::kOneToken) {
        EXPECT_EQ(launch.num_nodes, 1);
      }
    }
  }
}

TEST_P(KernelTableTest, LaunchesAreDescribed) {
  const ChoiceFacts facts = model_->choice();
  for (const Bucket& bucket : {DecodeBucket(1), DecodeBucket(48), PrefillBucket(1024)}) {
    for (const PlannedLaunch& launch : model_->Resolved(bucket)) {
      const LaunchInfo info = DescribeLaunch(model_->programme(), bucket, facts, launch, 1024);
      EXPECT_FALSE(info.nodes.empty());
      EXPECT_FALSE(info.kernel.empty());
      EXPECT_GT(info.us, 0) << info.nodes;
    }
  }
}

std::string Name(const testing::TestParamInfo<KernelTableTest::ParamType>& info) {
  std::string name = std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param)->name;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, KernelTableTest,
                         testing::Combine(testing::Values("llama-3.2-1b", "llama-3.1-8b",
                                                          "llama-3.1-70b", "qwen3-8b",
                                                          "mixtral-8x7b", "qwen3-30b-a3b"),
                                          testing::Values(&kWeights[0], &kWeights[1], &kWeights[2],
                                                          &kWeights[3], &kWeights[4])),
                         Name);

TEST(KernelTable, KeysAreSplitInStepsOfFewPromptRows) {
  for (const StepMode mode : {StepMode::kPrefill, StepMode::kMixed}) {
    Bucket bucket = PrefillBucket(64);
    bucket.mode = mode;
    bucket.prompt_context = 8000;
    EXPECT_EQ(SplitTokens(bucket), 64);
    EXPECT_EQ(SplitTokens(CanonicalBucket(bucket)), 64);
    Bucket longer = bucket;
    longer.prompt_context = 9000;
    EXPECT_EQ(CanonicalBucket(bucket), CanonicalBucket(longer));
    bucket.rows = 65;
    EXPECT_EQ(SplitTokens(bucket), 0);
    bucket.rows = 16;
    EXPECT_EQ(SplitTokens(bucket), 16);
    bucket.prompt_context = 2000;
    EXPECT_EQ(SplitTokens(bucket), 0);
    EXPECT_EQ(SplitTokens(CanonicalBucket(bucket)), 0);
  }
  EXPECT_EQ(SplitTokens(DecodeBucket(8)), 0);
}

TEST(KernelTable, OneSequencePublishesItsRowsInSlotsInEveryLayer) {
  const auto model = PlanModel("llama-3.1-8b", WeightFormat::kFp8, DType::kBF16, DType::kF8E4M3);
  int32_t attention = 0, consumes = 0, publishes = 0;
  for (const PlannedLaunch& launch : model->Resolved(DecodeBucket(1))) {
    if (launch.row->id == KernelId::kFusedDecode) {
      ++attention;
      EXPECT_TRUE(launch.consumes_slots && launch.publishes_slots);
    }
    consumes += launch.consumes_slots ? 1 : 0;
    publishes += launch.publishes_slots ? 1 : 0;
  }
  EXPECT_EQ(attention, 32);
  EXPECT_EQ(consumes, 64);
  EXPECT_EQ(publishes, 64);
}

// Two to eight rows of bf16 or FP8 weights have their own kernel where more rows use the chain's.
TEST(KernelTable, FewTokensHaveTheirOwnChain) {
  using enum WeightFormat;
  for (const WeightFormat format : {kCompute, kFp8, kFp8Block, kNvfp4}) {
    const auto model = PlanModel("llama-3.1-8b", format, DType::kBF16, DType::kBF16);
    for (const int32_t rows : {1, 2, 4, 8, 9}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(format)) + ", rows " + std::to_string(rows));
      std::vector<Bucket> buckets = {DecodeBucket(rows)};
      if (rows > 1 && rows <= 8) buckets.push_back(VerifyBucket(1, rows));
      for (const Bucket& bucket : buckets) {
        int32_t few = 0, chains = 0;
        for (const PlannedLaunch& launch : model->Resolved(bucket)) {
          few += launch.row->id == KernelId::kFewTokens ? 1 : 0;
          chains += launch.row->id == KernelId::kChain ? 1 : 0;
        }
        const bool takes = rows >= 2 && rows <= 8 && (format == kCompute || format == kFp8);
        EXPECT_EQ(few, takes ? 32 : 0);
        EXPECT_EQ(chains, takes || rows == 1 ? 0 : 32);
      }
    }
  }
}

// The residual stream is copied before the next layer writes it, so that the layers of a chain stay
// together: one more launch, and no other change.
TEST(KernelTable, CopiesOfTheResidualStreamCutNoChain) {
  const auto plain = PlanModel("llama-3.1-8b", WeightFormat::kCompute, DType::kBF16, DType::kBF16);
  const auto copies =
      PlanModel("llama-3.1-8b", WeightFormat::kCompute, DType::kBF16, DType::kBF16, {2, 16, 29});
  for (const Bucket& bucket : {DecodeBucket(1), DecodeBucket(8), VerifyBucket(4, 4)}) {
    SCOPED_TRACE(bucket.rows);
    const auto before = plain->Resolved(bucket), after = copies->Resolved(bucket);
    EXPECT_EQ(after.size(), before.size() + 3);
    int32_t taps = 0;
    for (size_t i = 1; i < after.size(); ++i) {
      if (after[i].row->id != KernelId::kTap) continue;
      ++taps;
      EXPECT_EQ(copies->programme().node(after[i - 1].covered().back()).kind, NodeKind::kAttend);
    }
    EXPECT_EQ(taps, 3);
  }
}

TEST(KernelTable, AChainEndsAtAnAllReduce) {
  const auto model = PlanModel("llama-3.1-8b", WeightFormat::kFp8, DType::kBF16, DType::kBF16);
  // o and down of a layer, each followed by a sum over devices.
  const Programme& whole = model->programme();
  const auto linear = [&](std::string_view name) -> const LinearParams& {
    for (const Node& node : whole.nodes()) {
      if (node.layer == 0 && node.name == name) return node.As<LinearParams>();
    }
    ADD_FAILURE() << name;
    return whole.nodes()[2].As<LinearParams>();
  };
  for (const bool reduces : {false, true}) {
    ProgrammeBuilder b;
    b.SetLayer(0);
    b.GivenResidual(linear("o").y);
    b.LinearAdd(b.Given(linear("o").x), linear("o"), "o");
    if (reduces) b.AllReduce(nullptr);
    RmsNormParams norm;
    norm.x = linear("o").y;
    norm.weight = norm.x;
    norm.y = linear("gate_up").x;
    const ValueId x = b.Norm(b.residual(), norm);
    b.LinearAdd(b.Linear(x, linear("gate_up"), "gate_up"), linear("down"), "down");
    const Programme programme = b.Finish();
    const auto launches = Resolve(programme, DecodeBucket(8), model->choice());
    if (!reduces) {
      ASSERT_TRUE(launches.has_value());
      EXPECT_EQ(launches->size(), 1u);
      continue;
    }
    // It has no kernel yet; the error names it.
    ASSERT_FALSE(launches.has_value());
    EXPECT_EQ(launches.error().code, Code::kUnimplemented);
    EXPECT_NE(launches.error().message.find("all-reduce"), std::string::npos);
  }
}

TEST(KernelTable, AMeasuredChoiceIsTaken) {
  const auto model = PlanModel("llama-3.1-8b", WeightFormat::kCompute, DType::kBF16, DType::kBF16);
  const auto kernel_of_qkv = [&](int32_t rows) {
    for (const PlannedLaunch& launch : model->Resolved(DecodeBucket(rows))) {
      if (model->programme().node(launch.nodes[0]).name == "qkv")
        return std::pair(launch.row->id, launch.match.instance);
    }
    return std::pair(KernelId::kDraw, -1);
  };
  EXPECT_EQ(kernel_of_qkv(128).first, KernelId::kCublasLt);
  std::istringstream measured(
      "# a comment\nchoice.4 format0-input0-store0-n6144-k4096 128 192\nother words\n");
  model->profile.Read(measured);
  EXPECT_EQ(kernel_of_qkv(128).first, KernelId::kGemm);
  EXPECT_EQ(GemmInstances()[static_cast<size_t>(kernel_of_qkv(128).second)].tokens, 192);
}

TEST(KernelTable, NormsRoundForTheLayerThatReadsThem) {
  const auto model = PlanModel("llama-3.1-8b", WeightFormat::kFp8, DType::kBF16, DType::kF8E4M3);
  model->facts.fp8_activation_rows = 65;
  const auto launches_of = [&](int32_t rows) {
    int norms = 0, rounded = 0, rounds = 0;
    const std::vector<PlannedLaunch> launches = model->Resolved(DecodeBucket(rows));
    for (size_t i = 0; i < launches.size(); ++i) {
      norms += launches[i].row->id == KernelId::kNorm ? 1 : 0;
      rounds += launches[i].match.rounds ? 1 : 0;
      if (!launches[i].publishes_fp8) continue;
      ++rounded;
      EXPECT_TRUE(launches.at(i + 1).consumes_fp8 && !launches.at(i + 1).match.rounds);
    }
    return std::array{norms, rounded, rounds};
  };
  // The first layer's input norm is the embedding's, and the last norm is the head's, which does
  // not round.
  EXPECT_EQ(launches_of(128), (std::array{64, 63, 65}));
  EXPECT_EQ(launches_of(64)[1], 0);
}

TEST(KernelTable, FewRowsHaveTilesOfFewTokens) {
  const auto model = PlanModel("llama-3.1-8b", WeightFormat::kFp8, DType::kBF16, DType::kF8E4M3);
  model->facts.fp8_activation_rows = kAutoFp8ActivationRows;
  const auto tokens_of = [&](int32_t rows) {
    std::set<int> tokens;
    for (const PlannedLaunch& launch : model->Resolved(DecodeBucket(rows))) {
      if (launch.row->id == KernelId::kGemm)
        tokens.insert(GemmInstances()[static_cast<size_t>(launch.match.instance)].tokens);
    }
    return tokens;
  };
  EXPECT_EQ(tokens_of(kAutoFp8ActivationRows - 1), std::set<int>{});
  EXPECT_EQ(tokens_of(kAutoFp8ActivationRows), std::set<int>{64});
  EXPECT_EQ(tokens_of(64), std::set<int>{64});
  // Not measured here, so the library is expected to be faster.
  EXPECT_EQ(tokens_of(65).count(64), 0u);
  // More rows read weights once for each 128 of them.
  for (const Node& node : model->programme().nodes()) {
    if (node.kind != NodeKind::kLinear) continue;
    const LinearTraits w = node.As<LinearParams>().weight->traits();
    if (w.format != WeightFormat::kFp8) continue;
    EXPECT_NE(GemmInstances()[static_cast<size_t>(ExpectedGemm(w, 96, true, 132))].tokens, 64);
  }
}

// Drafts of few sequences do not change the arithmetic: it is that of the step without them.
TEST(KernelTable, VerifyStepsOfAChainRoundAsTheirSequencesAlone) {
  const auto model = PlanModel("llama-3.1-8b", WeightFormat::kFp8, DType::kBF16, DType::kBF16);
  model->facts.fp8_activation_rows = kAutoFp8ActivationRows;
  const auto rounds = [&](const Bucket& bucket) {
    const auto launches = model->Resolved(bucket);
    return std::any_of(launches.begin(), launches.end(),
                       [](const PlannedLaunch& launch) { return launch.match.rounds; });
  };
  EXPECT_FALSE(rounds(DecodeBucket(32)));
  EXPECT_TRUE(rounds(DecodeBucket(40)));
  EXPECT_FALSE(rounds(VerifyBucket(8, 5)));
  EXPECT_FALSE(rounds(VerifyBucket(32, 2)));
  EXPECT_TRUE(rounds(VerifyBucket(32, 3)));  // beyond a chain unrounded rows would cost too much
  EXPECT_TRUE(rounds(VerifyBucket(40, 2)));
}

TEST(KernelTable, FewTilesOfAProductAreSplit) {
  LinearTraits down;
  down.format = aisp::WeightFormat::kFp8;
  down.epilogue = Epilogue::kAccumulate;
  down.output = DType::kF32;
  down.n = 4096;
  down.k = 14336;
  const auto splits = [&](int32_t rows) {
    std::vector<int> out;
    for (const int instance : GemmInstancesOf(down.format, true)) {
      if (GemmInstances()[static_cast<size_t>(instance)].tokens == 128)
        out.push_back(GemmSplits(down, rows, instance, 132));
    }
    return out;
  };
  EXPECT_EQ(splits(128), std::vector{4});
  EXPECT_EQ(splits(256), std::vector{2});
  EXPECT_EQ(splits(1024), std::vector{1});
  down.epilogue = Epilogue::kStore;  // f32 outputs that are stored are never sums of splits
  EXPECT_EQ(splits(128), std::vector{1});
  down.output = DType::kBF16;
  EXPECT_EQ(splits(128), std::vector{4});
  down.n = 6144;
  EXPECT_EQ(splits(128), std::vector{2});
}

TEST(KernelTable, WhatNoKernelTakesIsRefusedByName) {
  auto model = PlanModel("llama-3.1-8b", WeightFormat::kCompute, DType::kBF16, DType::kBF16);
  model->facts.hopper = false;
  model->facts.name = "an old card";
  const auto launches = Resolve(model->programme(), DecodeBucket(4), model->choice());
  ASSERT_FALSE(launches.has_value());
  EXPECT_EQ(launches.error().code, Code::kUnimplemented);
  EXPECT_NE(launches.error().message.find("layer 0 attend"), std::string::npos)
      << launches.error().message;
}

TEST(KernelTable, ASlowPathIsNamed) {
  for (const KernelRow& row : KernelTable()) {
    EXPECT_EQ(row.id == KernelId::kChain || row.id == KernelId::kFewTokens, row.exclusive)
        << row.name;
    if (row.id == KernelId::kStreamPieces) {
      EXPECT_FALSE(row.slow.empty());
    }
  }
}

}  // namespace
}  // namespace aisp::cuda
