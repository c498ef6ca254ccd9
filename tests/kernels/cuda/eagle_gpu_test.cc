// An EAGLE-3 head on the GPU: its logits are the CPU's, and whoever proposes, the answers are those
// of a run without.
#include <array>
#include <map>
#include <optional>

#include "engine/async_draft_head.h"
#include "engine/async_executor.h"
#include "engine/eagle.h"
#include "engine/engine.h"
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
                           std::shared_ptr<Speculator> speculator, Counts* counts) {
  EngineOptions options;
  options.speculator = std::move(speculator);
  options.limits.max_draft_rows = executor.max_draws() - executor.max_slots();
  options.limits.max_prefill_chunk = 64;
  options.limits.max_sequences = 6;
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

}  // namespace
}  // namespace aisp
