// An EAGLE-3 head on the GPU: its logits are the CPU's, and whoever proposes, the answers are those
// of a run without.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>

#include "engine/async_draft_head.h"
#include "engine/async_executor.h"
#include "engine/eagle.h"
#include "engine/engine.h"
#include "engine/warm_up.h"
#include "model/bf16.h"
#include "speculation/speculator.h"
#include "tests/kernels/cuda/gpu.h"
#include "tests/kernels/cuda/run_engine.h"
#include "tests/model/golden.h"
#include "tests/support/hash_guide.h"

namespace aisp {
namespace {

constexpr int32_t kBlockTokens = 16;

// A head of random weights, with a device's memory around it.
struct HeadOn {
  HeadOn(Device& on, Ops& ops, const EagleSpec& spec, DType dtype, DType kv_dtype,
         std::span<const float> embedding_values)
      : device(on) {
    stream = *device.CreateStream();
    embedding_memory = *device.Allocate(embedding_values.size_bytes(), MemoryKind::kDevice);
    Put(embedding_memory.data(), embedding_values.data(), embedding_values.size_bytes());
    const TensorView embedding = TensorView::Dense(embedding_memory.data(), DType::kF32,
                                                   {spec.layer.vocabulary, spec.layer.hidden});
    auto made =
        EagleHead::Load(GoldenDirectory("llama-eagle3"), spec, embedding,
                        {.compute_dtype = dtype, .max_rows = 64, .max_sequences = 8}, device, ops);
    AISP_CHECK_MSG(made.has_value(), made.error().message);
    head = std::move(*made);
    layout = *MakeKvLayout(spec.layer.kv(), kBlockTokens, kv_dtype, 16, 0);
    pool = *device.Allocate(layout.PoolBytes(), MemoryKind::kDevice);
    const Status bound = head->Bind(KvViews(layout, pool.data()).front());
    AISP_CHECK_MSG(bound.has_value(), bound.error().message);
  }

  void Put(void* to, const void* from, size_t bytes) {
    AISP_CHECK(device.Copy(to, from, bytes, *stream).has_value());
    AISP_CHECK(device.Synchronize(*stream).has_value());
  }

  // A step; the head's logits of the wanted rows, over the target's vocabulary.
  std::vector<float> Run(const ForwardBatch& batch, std::span<const float> features,
                         std::span<const int32_t> outputs, int32_t pad_to) {
    std::vector<const std::byte*> rows;
    Buffer memory;
    if (!features.empty()) {
      std::vector<std::byte> stored(features.size() * DTypeBytes(head->feature_dtype()));
      for (size_t i = 0; i < features.size(); ++i) {
        if (head->feature_dtype() == DType::kF32) {
          std::memcpy(stored.data() + i * 4, &features[i], 4);
        } else {
          const uint16_t bits = ToBf16(features[i]);
          std::memcpy(stored.data() + i * 2, &bits, 2);
        }
      }
      memory = *device.Allocate(stored.size(), MemoryKind::kDevice);
      Put(memory.data(), stored.data(), stored.size());
      const size_t bytes = head->feature_bytes();
      for (size_t i = 0; i < batch.tokens.size(); ++i)
        rows.push_back(static_cast<const std::byte*>(memory.data()) + i * bytes);
      EXPECT_TRUE(head->TakeFeatures(rows, *stream));
    } else {
      EXPECT_TRUE(head->GoOnFrom(outputs, *stream));
    }
    using enum EagleHead::Part;
    const auto part = features.empty() ? kGoOn : batch.logit_rows.empty() ? kCatchUp : kBegin;
    const auto uploaded = head->Upload(batch, pad_to, 0, *stream);
    AISP_CHECK_MSG(uploaded.has_value(), uploaded.error().message);
    const Status enqueued = head->Enqueue(part, *uploaded, {}, *stream);
    EXPECT_TRUE(enqueued.has_value()) << enqueued.error().message;
    const TensorView logits = head->target_logits();
    std::vector<float> out(batch.logit_rows.size() * static_cast<size_t>(logits.cols()));
    EXPECT_TRUE(device.Copy(out.data(), logits.data, out.size() * sizeof(float), *stream));
    EXPECT_TRUE(device.Synchronize(*stream));
    return out;
  }

  Device& device;
  std::unique_ptr<Stream> stream;
  Buffer embedding_memory, pool;
  std::unique_ptr<EagleHead> head;
  KvLayout layout;
};

// Of the tokens that the head has a logit for; the others are no one's.
double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 1e-30;
  size_t none = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == EagleHead::kNoLogit || b[i] == EagleHead::kNoLogit) {
      EXPECT_EQ(a[i], b[i]) << i;
      ++none;
      continue;
    }
    if (std::isnan(b[i])) return 1e9;
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{a[i]} * a[i];
  }
  EXPECT_TRUE(a.empty() || none > 0);
  return std::sqrt(difference / norm);
}

// The same head on both devices, and three sequences of random tokens and features.
class Parity {
 public:
  Parity(CudaBackend& gpu, DType dtype, DType kv_dtype)
      : cpu_device_(MakeTestDevice()),
        cpu_ops_(MakeTestOps()),
        target_(*LoadModelSpec(GoldenDirectory("llama"))),
        spec_(*LoadEagleSpec(GoldenDirectory("llama-eagle3"), target_)),
        token_(0, target_.vocabulary - 1) {
    std::vector<float> embedding(static_cast<size_t>(target_.vocabulary * target_.hidden));
    for (float& v : embedding) v = normal_(random_);
    cpu_.emplace(*cpu_device_, *cpu_ops_, spec_, DType::kF32, DType::kF32, embedding);
    gpu_.emplace(*gpu.device, *gpu.ops, spec_, dtype, kv_dtype, embedding);
  }

  // So many rows of each, with features; how far apart the logits behind the last ones are.
  double Begin(const std::array<int32_t, 3>& counts, int32_t pad_to, bool draws = true) {
    alive_ = {0, 1, 2};
    Take({counts.begin(), counts.end()});
    if (!draws) logit_rows_.clear();
    std::vector<float> features(tokens_.size() * static_cast<size_t>(cpu_->head->feature_size()));
    for (float& v : features) v = normal_(random_);
    return Distance(cpu_->Run(batch(), features, {}, 0), gpu_->Run(batch(), features, {}, pad_to));
  }
  // A row of each that is named by where it was among those of the last step.
  double GoOn(const std::vector<int32_t>& outputs, int32_t pad_to) {
    std::vector<size_t> next;
    for (const int32_t output : outputs) next.push_back(alive_[static_cast<size_t>(output)]);
    alive_ = next;
    Take(std::vector<int32_t>(alive_.size(), 1));
    return Distance(cpu_->Run(batch(), {}, outputs, 0), gpu_->Run(batch(), {}, outputs, pad_to));
  }

 private:
  void Take(const std::vector<int32_t>& counts) {
    tokens_.clear(), positions_.clear(), logit_rows_.clear(), sequences_.clear();
    for (size_t i = 0; i < alive_.size(); ++i) {
      const size_t s = alive_[i];
      sequences_.push_back({static_cast<int32_t>(tokens_.size()), counts[i], known_[s] + counts[i],
                            static_cast<int32_t>(4 * s)});
      for (int32_t row = 0; row < counts[i]; ++row) {
        tokens_.push_back(token_(random_));
        positions_.push_back(known_[s]++);
      }
      logit_rows_.push_back(static_cast<int32_t>(tokens_.size()) - 1);
    }
    slots_.assign(tokens_.size(), 0);
  }
  ForwardBatch batch() const {
    return {tokens_, positions_, slots_, sequences_, tables_, logit_rows_};
  }

  const std::unique_ptr<Device> cpu_device_;
  const std::unique_ptr<Ops> cpu_ops_;
  const ModelSpec target_;
  const EagleSpec spec_;
  std::mt19937 random_{std::random_device{}()};
  std::normal_distribution<float> normal_;
  std::uniform_int_distribution<int32_t> token_;
  std::optional<HeadOn> cpu_, gpu_;
  std::vector<size_t> alive_;
  std::array<int32_t, 3> known_{};
  const std::vector<int32_t> tables_ = {3, 1, 7, 14, 2, 9, 4, 12, 5, 11, 6, 13};
  std::vector<TokenId> tokens_;
  std::vector<int32_t> positions_, logit_rows_, slots_;
  std::vector<SequenceRows> sequences_;
};

// Prompts, rows behind a verified draft with as many as a graph has, one each; then what goes on.
void ExpectParity(CudaBackend& gpu, DType dtype, DType kv_dtype, double tolerance) {
  Parity parity(gpu, dtype, kv_dtype);
  parity.Begin({17, 20, 9}, 0, /*draws=*/false);
  EXPECT_LT(parity.Begin({5, 2, 1}, 16), tolerance);
  EXPECT_LT(parity.Begin({1, 1, 1}, 4), tolerance);
  EXPECT_LT(parity.Begin({3, 4, 2}, 16), tolerance);
  EXPECT_LT(parity.GoOn({0, 1, 2}, 0), tolerance);
  EXPECT_LT(parity.GoOn({0, 1, 2}, 4), tolerance);
  EXPECT_LT(parity.GoOn({0, 2}, 4), tolerance);
  EXPECT_LT(parity.GoOn({1}, 0), tolerance);
}

TEST(GpuEagle, HasTheLogitsOfTheCpu) {
  AISP_OPEN_GPU(gpu);
  ExpectParity(gpu, DType::kF32, DType::kF32, 1e-4);
}

TEST(GpuEagle, HasTheLogitsOfTheCpuInBf16) {
  AISP_OPEN_GPU(gpu);
  ExpectParity(gpu, DType::kBF16, DType::kBF16, 3e-2);
}

struct Answer {
  std::vector<TokenId> tokens;
  FinishReason finish = FinishReason::kNone;
};

std::vector<SequenceRequest> Requests(uint64_t seed, int32_t vocabulary) {
  SplitMix64 random(seed);
  std::vector<SequenceRequest> out;
  for (int i = 0; i < 16; ++i) {
    SequenceRequest r;
    const auto length = 3 + random.Below(i % 4 == 0 ? 90 : 30);
    for (uint64_t t = 0; t < length; ++t)
      r.tokens.push_back(
          static_cast<TokenId>(4 + random.Below(static_cast<uint64_t>(vocabulary - 4))));
    r.prompt_tokens = static_cast<int32_t>(length);
    r.max_new_tokens = static_cast<int32_t>(2 + random.Below(40));
    r.sampling.seed = random.Next();
    r.sampling.temperature = i % 3 == 0 ? 0.0f : 0.8f;
    if (i % 4 == 1) r.sampling.top_p = 0.8f;
    if (i % 5 == 2) r.sampling.presence_penalty = 0.5f;
    if (i % 5 == 3)
      r.guide = std::make_shared<HashGuide>(random.Next(), vocabulary, 1 + random.Below(25));
    out.push_back(std::move(r));
  }
  return out;
}

struct Counts {
  uint64_t drafted = 0, accepted = 0;
};

std::vector<Answer> RunAll(Executor& executor, std::vector<SequenceRequest> requests,
                           std::shared_ptr<Speculator> speculator, Counts* counts,
                           EngineOptions options = {}) {
  options.speculator = std::move(speculator);
  options.limits.max_draft_rows = executor.max_draws() - executor.max_slots();
  options.limits.max_prefill_chunk = 64;
  options.limits.max_sequences = std::min(6, options.limits.max_sequences);
  std::vector<Answer> answers(requests.size());
  const auto on_token = [&](size_t i, TokenOutput& output) {
    if (output.token >= 0) answers[i].tokens.push_back(output.token);
    answers[i].finish = output.finish;
  };
  RunEngine(executor, options, std::move(requests), on_token, [&](const CollectOutput& step) {
    for (const VerifiedDraft& draft : step.drafts) {
      counts->drafted += static_cast<uint64_t>(draft.drafted);
      counts->accepted += static_cast<uint64_t>(draft.accepted);
    }
  });
  return answers;
}

// Prompts of random tokens in small pools, so that sequences are preempted; lengths that are
// chosen, so that plain steps are launched ahead; and all of it in steps launched operation by
// operation.
TEST(GpuEagle, AnswersAreThoseWithoutIt) {
  const std::string target = StoryDirectory("story-7m");
  const std::string folder = StoryDirectory("story-7m-eagle3");
  if (target.empty() || folder.empty()) GTEST_SKIP() << "the built-in models are not there";
  AISP_OPEN_GPU(gpu);
  const auto spec = LoadEagleSpec(folder, *LoadModelSpec(target));
  ASSERT_TRUE(spec.has_value()) << spec.error().message;
  for (const bool graphs : {true, false}) {
    ModelExecutorOptions base;
    base.model.compute_dtype = DType::kF32;
    base.model.feature_layers = spec->feature_layers;
    base.max_slots = 6;
    base.max_draft_rows = 24;
    base.num_blocks = 28;
    auto made =
        AsyncExecutor::Create(target, {.base = base, .use_graphs = graphs}, *gpu.device, *gpu.ops);
    ASSERT_TRUE(made.has_value()) << made.error().message;
    AsyncExecutor& executor = **made;
    Counts counts;
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << (graphs ? " graphs" : ""));
      const std::vector<Answer> plain =
          RunAll(executor, Requests(seed, executor.vocabulary()), nullptr, &counts);
      DraftHeadOptions options;
      options.head.compute_dtype = DType::kF32;
      options.head.max_rows = 60;
      options.head.max_sequences = 6;
      options.head.max_context = 1024;
      options.num_blocks = seed % 3 == 0 ? 12 : 40;
      options.use_graphs = graphs;
      auto head = AsyncDraftHead::Create(folder, *spec, executor.model().embedding(), options,
                                         *executor.stream(), *gpu.device, *gpu.ops);
      ASSERT_TRUE(head.has_value()) << head.error().message;
      const SteadyClock clock;
      const auto speculator = std::make_shared<Speculator>(
          SpeculatorOptions{.num_tokens = seed % 2 == 0 ? 4 : 11,
                            .adaptive = seed % 2 == 0,
                            .slow = std::chrono::seconds(10)},
          std::make_unique<EagleProposer>(EagleOptions{}, std::move(*head)), &clock);
      const std::vector<Answer> with =
          RunAll(executor, Requests(seed, executor.vocabulary()), speculator, &counts);
      for (size_t i = 0; i < plain.size(); ++i) {
        EXPECT_EQ(with[i].tokens, plain[i].tokens) << i;
        EXPECT_EQ(with[i].finish, plain[i].finish) << i;
      }
      EXPECT_EQ(speculator->stats().failed, 0u);
      if (HasFailure()) return;
    }
    std::printf("eagle3 on the GPU: %llu of %llu proposed tokens stood\n",
                static_cast<unsigned long long>(counts.accepted),
                static_cast<unsigned long long>(counts.drafted));
    EXPECT_GT(counts.drafted, 300u);
    // The head knows the target's own texts; prompts of random tokens are none.
    EXPECT_GT(counts.accepted * 6, counts.drafted);
  }
}

// A target that gives features and its head, of the built-in models.
struct Pair {
  static std::optional<Pair> Create(CudaBackend& gpu, DType dtype) {
    const std::string target = StoryDirectory("story-7m"),
                      folder = StoryDirectory("story-7m-eagle3");
    if (target.empty() || folder.empty()) return std::nullopt;
    Pair pair;
    pair.folder = folder;
    pair.spec = *LoadEagleSpec(folder, *LoadModelSpec(target));
    ModelExecutorOptions base;
    base.model.compute_dtype = dtype;
    base.kv_dtype = dtype;
    base.model.feature_layers = pair.spec.feature_layers;
    base.max_slots = 6;
    base.max_draft_rows = 24;
    base.num_blocks = 120;
    auto made = AsyncExecutor::Create(target, {.base = base}, *gpu.device, *gpu.ops);
    AISP_CHECK_MSG(made.has_value(), made.error().message);
    pair.executor = std::move(*made);
    return pair;
  }
  std::unique_ptr<AsyncDraftHead> Head(CudaBackend& gpu) const {
    DraftHeadOptions options;
    options.head.compute_dtype = executor->model().compute_dtype();
    options.kv_dtype = options.head.compute_dtype;
    options.head.max_rows = 64;
    options.head.max_sequences = 6;
    options.head.max_context = 1024;
    options.num_blocks = 120;
    auto made = AsyncDraftHead::Create(folder, spec, executor->model().embedding(), options,
                                       *executor->stream(), *gpu.device, *gpu.ops);
    AISP_CHECK_MSG(made.has_value(), made.error().message);
    return std::move(*made);
  }

  std::string folder;
  EagleSpec spec;
  std::unique_ptr<AsyncExecutor> executor;
};

std::vector<float> InF32(std::span<const std::byte> rows, DType dtype) {
  std::vector<float> out(rows.size() / DTypeBytes(dtype));
  if (dtype == DType::kF32) {
    std::memcpy(out.data(), rows.data(), rows.size());
  } else {
    WidenBf16({reinterpret_cast<const uint16_t*>(rows.data()), out.size()}, out.data());
  }
  return out;
}

// What a step brings to the host is what it leaves on the device, and what is brought back has the
// same bits.
TEST(GpuEagle, FeaturesComeToTheHostAndBackAsTheyAre) {
  AISP_OPEN_GPU(gpu);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::optional<Pair> pair = Pair::Create(gpu, dtype);
    if (!pair) GTEST_SKIP() << "the built-in models are not there";
    AsyncExecutor& executor = *pair->executor;
    EXPECT_GE(executor.max_kept_features(), 64);
    const WarmUpStep prompt(80, false, executor.kv_layout().block_tokens);
    std::vector<int32_t> wanted, kept;
    for (int32_t row = 3; row < 80; ++row) wanted.push_back(row);
    for (int32_t row = 16; row < 80; ++row) {
      if (row != 40) kept.push_back(row);
    }
    StepInput input;
    input.step = 1;
    input.batch = prompt.batch();
    input.feature_rows = wanted;
    input.kept_rows = kept;
    const auto ticket = executor.Launch(input);
    ASSERT_TRUE(ticket.has_value()) << ticket.error().message;
    const auto result = executor.Collect(*ticket);
    ASSERT_TRUE(result.has_value()) << result.error().message;
    const Buffer there = *gpu.device->Allocate(result->device_features.size(), MemoryKind::kHost);
    ASSERT_TRUE(gpu.device->Copy(there.data(), result->device_features.data(), there.bytes(),
                                 *executor.stream()));
    ASSERT_TRUE(gpu.device->Synchronize(*executor.stream()));
    const std::vector<float> all =
        InF32({static_cast<const std::byte*>(there.data()), there.bytes()}, dtype);
    const auto size = static_cast<size_t>(executor.feature_size());
    ASSERT_EQ(all.size(), wanted.size() * size);
    ASSERT_EQ(result->kept_features.size(), kept.size() * size);
    for (size_t i = 0; i < kept.size(); ++i) {
      const auto row = result->kept_features.subspan(i * size, size);
      const auto at = all.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(kept[i] - 3) * size);
      ASSERT_TRUE(std::equal(row.begin(), row.end(), at)) << "row " << kept[i];
      ASSERT_NE(std::count(row.begin(), row.end(), 0.0f), static_cast<ptrdiff_t>(size));
    }
    const auto head = pair->Head(gpu);
    const std::span<const float> run = result->kept_features;
    std::vector<std::span<const std::byte>> placed;
    ASSERT_TRUE(head->PlaceFeatures(std::vector<std::span<const float>>(3, run), &placed));
    ASSERT_EQ(placed.size(), 3u);
    for (const std::span<const std::byte> rows : placed) {
      const std::vector<float> back = InF32(rows, dtype);
      ASSERT_TRUE(std::equal(back.begin(), back.end(), run.begin(), run.end()));
    }
  }
}

// Six beginnings of stories that the model tells: each for one token first, then for more.
std::vector<SequenceRequest> OwnTextsTwice(Executor& executor) {
  std::vector<SequenceRequest> requests;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SequenceRequest r;
    // "Tell me a story about a fox and a river.", as the chat template renders it.
    r.tokens = {1, 3, 58, 415, 383, 265, 1209, 547, 265, 1872, 277, 265, 1164, 20, 5, 4};
    r.prompt_tokens = static_cast<int32_t>(r.tokens.size());
    r.max_new_tokens = 160;
    r.sampling.temperature = 0.8f;
    r.sampling.seed = seed;
    requests.push_back(std::move(r));
  }
  Counts none;
  const std::vector<Answer> texts = RunAll(executor, requests, nullptr, &none);
  for (size_t i = 0; i < texts.size(); ++i) {
    SequenceRequest& r = requests[i];
    const size_t length = std::min(texts[i].tokens.size(), 60 + 9 * i);
    r.tokens.insert(r.tokens.end(), texts[i].tokens.begin(),
                    texts[i].tokens.begin() + static_cast<ptrdiff_t>(length));
    r.prompt_tokens = static_cast<int32_t>(r.tokens.size());
    r.max_new_tokens = 48;
    r.sampling.temperature = 0;
  }
  std::vector<SequenceRequest> twice = requests;
  for (SequenceRequest& r : twice) r.max_new_tokens = 1;
  twice.insert(twice.end(), requests.begin(), requests.end());
  return twice;
}

// A text of the model's own, whose KV is found the second time: the head drafts what it did the
// first time, and without kept features it stands less often.
TEST(GpuEagle, BehindACachedPrefixItDraftsAsBehindAComputedOne) {
  AISP_OPEN_GPU(gpu);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::optional<Pair> pair = Pair::Create(gpu, dtype);
    if (!pair) GTEST_SKIP() << "the built-in models are not there";
    AsyncExecutor& executor = *pair->executor;
    const SteadyClock clock;
    const std::vector<SequenceRequest> twice = OwnTextsTwice(executor);
    enum { kComputed, kCached, kForgotten };
    std::array<Counts, 3> counts;
    std::array<std::vector<Answer>, 3> answers;
    for (const int how : {kComputed, kCached, kForgotten}) {
      EngineOptions options;
      options.limits.max_sequences = 1;
      options.enable_prefix_cache = how != kComputed;
      options.feature_cache_bytes = how == kCached ? size_t{64} << 20 : 0;
      const auto speculator = std::make_shared<Speculator>(
          SpeculatorOptions{.num_tokens = 4, .adaptive = false, .slow = std::chrono::seconds(10)},
          std::make_unique<EagleProposer>(EagleOptions{.min_probability = 0, .feature_window = 64},
                                          pair->Head(gpu)),
          &clock);
      const auto at = static_cast<size_t>(how);
      answers[at] = RunAll(executor, twice, speculator, &counts[at], options);
      EXPECT_EQ(speculator->stats().failed, 0u);
      std::printf("%s, %s: %llu of %llu stood\n", dtype == DType::kF32 ? "f32" : "bf16",
                  how == kComputed ? "computed"
                  : how == kCached ? "cached"
                                   : "cached, without features",
                  static_cast<unsigned long long>(counts[at].accepted),
                  static_cast<unsigned long long>(counts[at].drafted));
    }
    const auto rate = [&](int how) {
      const Counts& c = counts[static_cast<size_t>(how)];
      return static_cast<double>(c.accepted) /
             static_cast<double>(std::max<uint64_t>(1, c.drafted));
    };
    EXPECT_GT(counts[kComputed].drafted, 100u);
    EXPECT_GT(rate(kComputed), 0.5);
    EXPECT_NEAR(rate(kCached), rate(kComputed), 0.01);
    EXPECT_LT(rate(kForgotten), rate(kCached));
    if (dtype != DType::kF32) continue;
    for (size_t i = 0; i < twice.size(); ++i) {
      EXPECT_EQ(answers[kCached][i].tokens, answers[kComputed][i].tokens) << i;
      EXPECT_EQ(answers[kForgotten][i].tokens, answers[kComputed][i].tokens) << i;
    }
  }
}

}  // namespace
}  // namespace aisp
