// Draft heads that read the target's hidden states, on the GPU: the answers are those of a run
// without them, and as many tokens are accepted as on the CPU.
#include <array>
#include <optional>

#include "engine/async_draft_head.h"
#include "engine/async_executor.h"
#include "engine/async_medusa_draws.h"
#include "engine/eagle.h"
#include "engine/medusa.h"
#include "tests/kernels/cuda/draft_runs.h"
#include "tests/kernels/cuda/gpu.h"
#include "tests/model/golden.h"

namespace aisp {
namespace {

// The built-in model and its draft head of one method.
struct Built {
  std::string method, target, folder;
  ModelSpec spec;

  static std::optional<Built> Find(const std::string& method) {
    Built b;
    b.method = method;
    b.target = StoryDirectory("story-7m");
    b.folder = StoryDirectory("story-7m-" + method);
    if (b.target.empty() || b.folder.empty()) return std::nullopt;
    b.spec = *LoadModelSpec(b.target);
    return b;
  }

  ModelExecutorOptions Target(DType dtype, int32_t blocks) const {
    ModelExecutorOptions o;
    o.model.compute_dtype = o.kv_dtype = dtype;
    o.model.feature_layers = method == "eagle3"
                                 ? LoadEagleSpec(folder, spec)->feature_layers
                                 : std::vector<int32_t>{static_cast<int32_t>(spec.layers.size())};
    o.max_slots = 6;
    o.max_draft_rows = 24;
    o.num_blocks = blocks;
    return o;
  }

  static DraftHeadOptions Head(DType dtype, int32_t blocks) {
    DraftHeadOptions o;
    o.head.compute_dtype = o.kv_dtype = dtype;
    o.head.max_rows = 60;
    o.head.max_sequences = 6;
    o.head.max_context = 1024;
    o.num_blocks = blocks;
    return o;
  }

  template <typename T>
  static T Made(Result<T> made) {
    AISP_CHECK_MSG(made.has_value(), made.error().message);
    return std::move(*made);
  }

  std::unique_ptr<Proposer> OnGpu(CudaBackend& gpu, AsyncExecutor& executor,
                                  const DraftHeadOptions& options, float min_probability,
                                  int32_t window = Proposer::kWholePrompt) const {
    const Model& model = executor.model();
    Stream& stream = *executor.stream();
    if (method == "medusa") {
      const AsyncMedusaOptions medusa{.heads = {.max_rows = options.head.max_sequences},
                                      .use_graphs = options.use_graphs,
                                      .places = options.feature_places};
      return std::make_unique<MedusaProposer>(
          MedusaProposerOptions{.min_probability = min_probability},
          Made(AsyncMedusaDraws::Create(folder, *LoadMedusaSpec(folder, spec), model, medusa,
                                        stream, *gpu.device, *gpu.ops)));
    }
    auto head =
        method == "eagle3"
            ? Made(AsyncDraftHead::Create(folder, *LoadEagleSpec(folder, spec), model.embedding(),
                                          options, stream, *gpu.device, *gpu.ops))
            : Made(AsyncDraftHead::Create(folder, *LoadMtpSpec(folder, spec), model, options,
                                          stream, *gpu.device, *gpu.ops));
    return std::make_unique<EagleProposer>(
        EagleOptions{
            .min_probability = min_probability, .method = method, .feature_window = window},
        std::move(head));
  }

  std::unique_ptr<Proposer> OnCpu(const Model& model, Device& device, Ops& ops,
                                  const DraftHeadOptions& options) const {
    if (method == "medusa") {
      std::unique_ptr<ParallelHeads> heads =
          Made(MedusaHeads::Load(folder, *LoadMedusaSpec(folder, spec), model,
                                 {.max_rows = options.head.max_sequences}, device, ops));
      return std::make_unique<MedusaProposer>(MedusaProposerOptions{.min_probability = 0},
                                              std::move(heads));
    }
    auto head = method == "eagle3"
                    ? Made(ModelDraftHead::Create(folder, *LoadEagleSpec(folder, spec),
                                                  model.embedding(), options, device, ops))
                    : Made(ModelDraftHead::Create(folder, *LoadMtpSpec(folder, spec), model,
                                                  options, device, ops));
    return std::make_unique<EagleProposer>(EagleOptions{.min_probability = 0, .method = method},
                                           std::move(head));
  }
};

class GpuDrafts : public testing::TestWithParam<const char*> {};

// Random prompts in small pools, so that sequences are preempted. The lengths let plain steps be
// launched ahead. All of it also runs with steps launched operation by operation.
TEST_P(GpuDrafts, AnswersAreThoseWithoutThem) {
  const std::optional<Built> built = Built::Find(GetParam());
  if (!built) GTEST_SKIP() << "the built-in models are not there";
  AISP_OPEN_GPU(gpu);
  for (const bool graphs : {true, false}) {
    const auto made = Built::Made(AsyncExecutor::Create(
        built->target, {.base = built->Target(DType::kF32, 28), .use_graphs = graphs}, *gpu.device,
        *gpu.ops));
    AsyncExecutor& executor = *made;
    AcceptanceCounts counts;
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << (graphs ? " graphs" : ""));
      const std::vector<DraftedAnswer> plain =
          RunAll(executor, RandomRequests(seed, executor.vocabulary()), nullptr, &counts);
      DraftHeadOptions options = Built::Head(DType::kF32, seed % 3 == 0 ? 12 : 40);
      if (built->method == "medusa" && seed % 3 == 0) options.feature_places = 4;
      options.use_graphs = graphs;
      const SteadyClock clock;
      const auto speculator =
          std::make_shared<Speculator>(SpeculatorOptions{.num_tokens = seed % 2 == 0 ? 4 : 11,
                                                         .adaptive = seed % 2 == 0,
                                                         .slow = std::chrono::seconds(10)},
                                       built->OnGpu(gpu, executor, options, 0.1f), &clock);
      const std::vector<DraftedAnswer> with =
          RunAll(executor, RandomRequests(seed, executor.vocabulary()), speculator, &counts);
      for (size_t i = 0; i < plain.size(); ++i) {
        EXPECT_EQ(with[i].tokens, plain[i].tokens) << i;
        EXPECT_EQ(with[i].finish, plain[i].finish) << i;
      }
      EXPECT_EQ(speculator->stats().failed, 0u);
      if (HasFailure()) return;
    }
    std::printf("%s on the GPU: %llu of %llu proposed tokens accepted\n", GetParam(),
                static_cast<unsigned long long>(counts.accepted),
                static_cast<unsigned long long>(counts.drafted));
    EXPECT_GT(counts.drafted, 300u);
    // The head learned the target's own texts, which random prompts are not. Medusa's heads do not
    // see the drawn tokens.
    EXPECT_GT(counts.accepted * (built->method == "medusa" ? 16 : 6), counts.drafted);
  }
}

// Greedy and sampled, one at a time and six together: in f32 the drafts are those of the CPU.
TEST_P(GpuDrafts, AsManyTokensAreAcceptedAsOnTheCpu) {
  const std::optional<Built> built = Built::Find(GetParam());
  if (!built) GTEST_SKIP() << "the built-in models are not there";
  AISP_OPEN_GPU(gpu);
  const auto device = MakeTestDevice();
  const auto ops = MakeTestOps();
  const ModelExecutorOptions target = built->Target(DType::kF32, 120);
  const auto there =
      Built::Made(AsyncExecutor::Create(built->target, {.base = target}, *gpu.device, *gpu.ops));
  const auto here = Built::Made(ModelExecutor::Create(built->target, target, *device, *ops));
  const SteadyClock clock;
  const SpeculatorOptions all{.num_tokens = 4, .adaptive = false, .slow = std::chrono::seconds(10)};
  const DraftHeadOptions head = Built::Head(DType::kF32, 120);
  std::vector<SequenceRequest> requests = OwnTexts(*there);
  for (const float temperature : {0.0f, 0.8f}) {
    for (const int32_t together : {1, 6}) {
      for (SequenceRequest& r : requests) r.sampling.temperature = temperature;
      EngineOptions options;
      options.limits.max_sequences = together;
      AcceptanceCounts gpu_counts, cpu_counts;
      const auto with =
          RunAll(*there, requests,
                 std::make_shared<Speculator>(all, built->OnGpu(gpu, *there, head, 0), &clock),
                 &gpu_counts, options);
      const auto cpu = RunAll(*here, requests,
                              std::make_shared<Speculator>(
                                  all, built->OnCpu(here->model(), *device, *ops, head), &clock),
                              &cpu_counts, options);
      for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(with[i].tokens, cpu[i].tokens) << i;
      EXPECT_EQ(gpu_counts.drafted, cpu_counts.drafted);
      EXPECT_EQ(gpu_counts.accepted, cpu_counts.accepted);
      EXPECT_GT(cpu_counts.accepted, 100u);
      std::printf(
          "%s, temperature %.1f, %d together: GPU %llu of %llu, CPU %llu of %llu accepted\n",
          GetParam(), static_cast<double>(temperature), together,
          static_cast<unsigned long long>(gpu_counts.accepted),
          static_cast<unsigned long long>(gpu_counts.drafted),
          static_cast<unsigned long long>(cpu_counts.accepted),
          static_cast<unsigned long long>(cpu_counts.drafted));
    }
  }
}

enum Features { kComputed, kCached, kForgotten };
constexpr const char* kFeatureNames[] = {"computed", "cached", "cached, without features"};

struct ThreeRuns {
  std::array<AcceptanceCounts, 3> counts;
  std::array<std::vector<DraftedAnswer>, 3> answers;
  double rate(Features how) const {
    const AcceptanceCounts& c = counts[how];
    return static_cast<double>(c.accepted) / static_cast<double>(std::max<uint64_t>(1, c.drafted));
  }
};

// Each text for one token first, then for more: the second time its KV is a prefix hit.
ThreeRuns RunTwice(const Built& built, CudaBackend& gpu, DType dtype, int32_t window) {
  const auto executor = Built::Made(AsyncExecutor::Create(
      built.target, {.base = built.Target(dtype, 120)}, *gpu.device, *gpu.ops));
  const SteadyClock clock;
  const std::vector<SequenceRequest> texts = OwnTexts(*executor);
  std::vector<SequenceRequest> twice = texts;
  for (SequenceRequest& r : twice) r.max_new_tokens = 1;
  twice.insert(twice.end(), texts.begin(), texts.end());
  ThreeRuns runs;
  for (const Features how : {kComputed, kCached, kForgotten}) {
    EngineOptions options;
    options.limits.max_sequences = 1;
    options.enable_prefix_cache = how != kComputed;
    options.feature_cache_bytes = how == kCached ? size_t{64} << 20 : 0;
    const auto speculator = std::make_shared<Speculator>(
        SpeculatorOptions{.num_tokens = 4, .adaptive = false, .slow = std::chrono::seconds(10)},
        built.OnGpu(gpu, *executor, Built::Head(dtype, 120), 0, window), &clock);
    runs.answers[how] = RunAll(*executor, twice, speculator, &runs.counts[how], options);
    EXPECT_EQ(speculator->stats().failed, 0u);
    std::printf("%s, %s, %s: %llu of %llu accepted\n", built.method.c_str(),
                dtype == DType::kF32 ? "f32" : "bf16", kFeatureNames[how],
                static_cast<unsigned long long>(runs.counts[how].accepted),
                static_cast<unsigned long long>(runs.counts[how].drafted));
  }
  return runs;
}

// The head drafts the same as the first time; without kept features it begins after the prefix hit.
TEST_P(GpuDrafts, BehindACachedPrefixAreThoseBehindAComputedOne) {
  const std::optional<Built> built = Built::Find(GetParam());
  if (!built) GTEST_SKIP() << "the built-in models are not there";
  AISP_OPEN_GPU(gpu);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const ThreeRuns runs = RunTwice(*built, gpu, dtype, 64);
    EXPECT_GT(runs.counts[kComputed].drafted, 100u);
    EXPECT_GT(runs.rate(kComputed), 0.5);
    EXPECT_NEAR(runs.rate(kCached), runs.rate(kComputed), 0.01);
    // Medusa's heads read only the last position, which is always computed.
    if (built->method == "medusa") {
      EXPECT_NEAR(runs.rate(kForgotten), runs.rate(kCached), 0.01);
    } else {
      EXPECT_LT(runs.rate(kForgotten), runs.rate(kCached));
    }
    if (dtype != DType::kF32) continue;
    for (size_t i = 0; i < runs.answers[kComputed].size(); ++i) {
      EXPECT_EQ(runs.answers[kCached][i].tokens, runs.answers[kComputed][i].tokens) << i;
      EXPECT_EQ(runs.answers[kForgotten][i].tokens, runs.answers[kComputed][i].tokens) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(OfStory7m, GpuDrafts, testing::Values("eagle3", "medusa", "mtp"),
                         [](const auto& method) { return std::string(method.param); });

}  // namespace
}  // namespace aisp
